"""How tests of evaluation run a tiny model, and what transformers says of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.evaluate import EvaluationReport
from engine.evaluate.windows import Cut

NUM_TOKENS = 150


def config_of(folder: Path, **changes: Any) -> EngineConfig:
    config = EngineConfig(
        model=str(folder), dtype="float32", num_threads=1, block_size=8, max_num_batched_tokens=512
    )
    return config.replace(**changes)


@torch.inference_mode()
def by_transformers(model: Any, ids: Sequence[int], cut: Cut) -> tuple[torch.Tensor, torch.Tensor]:
    """(log probabilities, final hidden states) that predict the tokens 1, 2, ..., each from the
    window in which it is scored: one pass over every window, nothing cached or packed."""
    logprobs, states = [], []
    for window in cut.windows(len(ids)):
        output = model(torch.tensor([ids[window.start : window.end]]), output_hidden_states=True)
        rows = slice(window.first_scored - window.start - 1, window.end - window.start - 1)
        logprobs.append(output.logits[0, rows].double().log_softmax(-1))
        states.append(output.hidden_states[-1][0, rows].double())
    return torch.cat(logprobs), torch.cat(states)


def figures(report: EvaluationReport) -> list[float]:
    """Every number of a report that a chunk size could change."""
    kl, similarity = report.divergence.kl, report.divergence.similarity  # type: ignore[union-attr]
    losses = report.candidate_loss, report.reference_loss
    return [
        kl.mean, kl.p50, kl.p90, kl.p99 or 0.0, kl.max,
        report.divergence.top1_agreement,  # type: ignore[union-attr]
        report.divergence.mean_abs_logprob_change,  # type: ignore[union-attr]
        similarity.mean, similarity.p1 or 0.0, similarity.min,  # type: ignore[union-attr]
        *(n for loss in losses if loss for n in (loss.mean_nll, loss.perplexity)),
    ]  # fmt: skip

"""What is measured of a text, against the plainest statement of it by transformers; in float32."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from engine.evaluate import EvaluationTask, PromptLine, from_json, run, to_json
from engine.evaluate import scoring as measures
from engine.evaluate.head import Head
from engine.evaluate.windows import Cut
from engine.text import tokenizer as tokenization
from tests import ROOT
from tests.engine import tiny_models
from tests.engine.evaluate.tiny_evaluations import NUM_TOKENS, by_transformers, config_of, figures


@pytest.mark.parametrize("cut", [Cut(200, 199), Cut(64, 63), Cut(40, 13)])
def test_every_figure_is_what_transformers_gives(
    cut: Cut, tiny_model: Any, tiny_folder: Path, other_model: Any, other_folder: Path,
    words: list[int], text: str,
) -> None:  # fmt: skip
    report = run(
        EvaluationTask(
            config_of(other_folder, max_num_batched_tokens=24),
            reference=config_of(tiny_folder, max_num_batched_tokens=17),
            text=text,
            context_length=cut.context_length,
            stride=cut.stride,
            num_worst=5,
        )
    )
    p, h = by_transformers(tiny_model, words, cut)
    q, g = by_transformers(other_model, words, cut)
    targets = torch.tensor(words[1:])
    kl = (p.exp() * (p - q)).sum(-1)
    true_p, true_q = (x.gather(1, targets[:, None])[:, 0] for x in (p, q))
    cosines = torch.nn.functional.cosine_similarity(h, g, dim=-1)

    assert report.text is not None
    assert report.divergence is not None
    assert report.divergence.similarity is not None
    assert report.text.num_tokens == NUM_TOKENS
    assert report.text.num_scored == len(targets) == report.divergence.kl.num_samples
    assert report.text.num_windows == len(list(cut.windows(NUM_TOKENS)))
    near = {"rel": 1e-4, "abs": 1e-6}
    found = report.divergence
    assert found.kl.mean == pytest.approx(float(kl.mean()), **near)
    assert found.kl.p50 == pytest.approx(float(kl.median()), rel=0.05)
    assert found.kl.p90 == pytest.approx(float(np.percentile(kl, 90)), **near)
    assert found.kl.p99 == pytest.approx(float(np.percentile(kl, 99)), **near)
    assert found.kl.max == pytest.approx(float(kl.max()), **near)
    assert found.kl_percentiles == pytest.approx(np.percentile(kl, range(101)).tolist(), **near)
    assert found.top1_agreement == pytest.approx(
        float((p.argmax(-1) == q.argmax(-1)).double().mean())
    )
    assert found.similarity is not None
    assert found.similarity.mean == pytest.approx(float(cosines.mean()), **near)
    assert found.similarity.p1 == pytest.approx(float(np.percentile(cosines, 1)), **near)
    assert found.similarity.min == pytest.approx(float(cosines.min()), **near)
    assert found.mean_abs_logprob_change == pytest.approx(
        float((true_p - true_q).abs().mean()), **near
    )
    assert report.reference_loss is not None
    assert report.candidate_loss is not None
    assert report.reference_loss.mean_nll == pytest.approx(-float(true_p.mean()), **near)
    assert report.candidate_loss.mean_nll == pytest.approx(-float(true_q.mean()), **near)
    assert report.candidate_loss.perplexity == pytest.approx(math.exp(-float(true_q.mean())))
    assert report.candidate_loss.bits_per_byte == pytest.approx(
        -float(true_q.sum()) / math.log(2) / report.text.num_bytes, **near
    )

    order = kl.argsort(descending=True)[:5].tolist()
    assert [w.position for w in report.worst] == [row + 1 for row in order]
    for worst, row in zip(report.worst, order, strict=True):
        assert worst.token_id == words[worst.position]
        assert worst.token == f"t{worst.token_id}"
        assert worst.kl == pytest.approx(float(kl[row]), **near)
        assert worst.reference_logprob == pytest.approx(float(true_p[row]), rel=1e-4)
        assert worst.candidate_logprob == pytest.approx(float(true_q[row]), rel=1e-4)
        assert [a.token_id for a in worst.reference_top] == p[row].topk(3).indices.tolist()
        assert [a.token_id for a in worst.candidate_top] == q[row].topk(3).indices.tolist()
        around = words[max(0, worst.position - 24) : worst.position]
        assert worst.before == " ".join(f"t{i}" for i in around)
    assert from_json(json.loads(json.dumps(to_json(report)))) == from_json(to_json(report))


@pytest.mark.slow
@settings(
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(chunk=st.integers(1, 90), tile=st.integers(1, 60), block=st.sampled_from([1, 8, 64]))
def test_no_figure_depends_on_how_the_text_is_chunked(
    chunk: int, tile: int, block: int, tiny_folder: Path, other_folder: Path, text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    @functools.cache
    def measured(chunk: int, block: int) -> list[float]:
        settings = {"max_num_batched_tokens": chunk, "block_size": block}
        return figures(
            run(
                EvaluationTask(
                    config_of(other_folder, **settings),
                    reference=config_of(tiny_folder, **settings),
                    text=text,
                    context_length=70,
                    stride=40,
                )
            )
        )

    expected = measured(512, 16)
    with monkeypatch.context() as patch:
        patch.setattr(measures, "TILE_BYTES", tile * 4 * tiny_models.VOCAB_SIZE)
        assert measured(chunk, block) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_does_not_differ_from_itself(dtype: str, tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder, dtype=dtype)
    report = run(
        EvaluationTask(config, reference=config, text=text, prompts=(PromptLine(1, text[:40], 9),))
    )
    assert report.divergence is not None
    assert report.divergence.kl.mean == report.divergence.kl.max == 0.0
    assert report.divergence.top1_agreement == 1.0
    assert report.divergence.similarity is not None
    assert report.divergence.similarity.min == pytest.approx(1.0, abs=1e-9)
    assert report.divergence.mean_abs_logprob_change == 0.0
    assert report.perplexity_change == 0.0
    assert report.worst == ()
    assert report.answers is not None
    assert report.answers.identical_share == report.answers.mean_equal_share == 1.0


def test_logits_are_made_in_tiles(
    tiny_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the chunk: of a large vocabulary its logits would be gigabytes."""
    seen: list[int] = []
    original = Head.logits

    def watched(self: Head, states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return original(self, states)

    monkeypatch.setattr(Head, "logits", watched)
    monkeypatch.setattr(measures, "TILE_BYTES", 10 * 4 * tiny_models.VOCAB_SIZE)
    run(EvaluationTask(config_of(tiny_folder), reference=config_of(tiny_folder), text=text))
    assert max(seen) == 10
    assert sum(seen) == 2 * (NUM_TOKENS - 1) + 2  # and one for each head, to try it
    monkeypatch.undo()
    assert 151_936 * 4 * measures.rows_per_tile(151_936) <= measures.TILE_BYTES
    assert measures.rows_per_tile(10**9) == 1


def test_perplexity_alone_needs_no_reference(
    tiny_folder: Path, tiny_model: Any, text: str, words: list[int]
) -> None:
    report = run(EvaluationTask(config_of(tiny_folder), text=text, max_tokens=100))
    with torch.inference_mode():
        ids = torch.tensor([words[:100]])
        loss = float(tiny_model(ids, labels=ids).loss)
    assert report.candidate_loss is not None
    assert report.candidate_loss.mean_nll == pytest.approx(loss, rel=1e-5)
    assert report.reference is report.divergence is report.reference_loss is None
    assert report.text is not None
    assert report.text.is_cut
    assert (report.text.num_tokens, report.text.num_scored) == (100, 99)
    assert "99 tokens" in report.notices[0]


def test_the_starter_model_has_the_perplexity_of_transformers() -> None:
    folder = ROOT / "resources" / "starter" / "chat"
    prompt = "<|im_start|>user\nWhat is paging?<|im_end|>\n<|im_start|>assistant\n"
    text = prompt + "The KV cache is kept in blocks of a fixed size, and a table finds them. " * 3
    report = run(EvaluationTask(config_of(folder), text=text, context_length=32, stride=16))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenization.Tokenizer.from_folder(folder, allow_missing=False).encode(text)
    logprobs, _ = by_transformers(model, ids, Cut(32, 16))
    expected = logprobs.gather(1, torch.tensor(ids[1:])[:, None])
    assert report.candidate_loss is not None
    assert report.candidate_loss.mean_nll == pytest.approx(-float(expected.mean()), rel=1e-5)
    assert report.text is not None
    first = len(tokenization.Tokenizer.from_folder(folder, allow_missing=False).decode(ids[:1]))
    plain_text = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert report.text.num_bytes == len(plain_text) - first

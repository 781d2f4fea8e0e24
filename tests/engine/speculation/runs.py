"""The requests that the tests of speculation serve with and without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import LLMEngine, SamplingParams
from engine.speculation.proposer import Proposer
from engine.speculation.speculator import Speculator
from tests.engine import tiny_models

LENGTH = 24
PROMPTS = tiny_models.make_prompts((5, 30, 17, 41))
PROMPTS.append(PROMPTS[3][:32] + PROMPTS[0])
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(temperature=1.0, seed=7, max_tokens=LENGTH, ignore_eos=True)
PARAMS = [
    GREEDY,
    SEEDED,
    SamplingParams(temperature=0.8, seed=1, top_p=0.9, min_p=0.01, max_tokens=LENGTH,
                   ignore_eos=True),
    SamplingParams(temperature=0, repetition_penalty=1.4, frequency_penalty=0.4, logprobs=1,
                   presence_penalty=0.3, max_tokens=LENGTH, ignore_eos=True),
    SamplingParams(temperature=1.2, seed=3, top_k=20, logit_bias={9: 4.0}, min_tokens=6,
                   max_tokens=LENGTH),
]  # fmt: skip


def draft_settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "speculative_method": "draft_model", "speculative_model": str(folder),
        "speculative_adaptive": False, **changes,
    }  # fmt: skip


def eagle(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings that draft with the EAGLE-3 head in `folder`, as many tokens as are asked for."""
    return {
        "speculative_method": "eagle3", "speculative_model": str(folder),
        "speculative_adaptive": False, **changes,
    }  # fmt: skip


def results(engine: LLMEngine, params: Sequence[SamplingParams] = PARAMS) -> list[Any]:
    found = []
    for output in engine.generate(PROMPTS, list(params)):
        chances = [pytest.approx(entry.logprob, abs=1e-4) for entry in output.logprobs]
        found.append((output.token_ids, output.text, output.finish_reason, chances))
    engine.check_integrity()
    return found


def use_proposer(engine: LLMEngine, proposer: Proposer | None) -> None:
    """Draft with this proposer until the next cache rebuild or reload."""
    loop = engine._loop
    loop.settle()
    loop.speculator = proposer and Speculator(engine.config, proposer)

"""Engines of tiny models for tests of devices: made with changes, shut down together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine import EngineConfig, LLMEngine, SamplingParams

Make = Callable[..., LLMEngine]
"""family, changes of the configuration -> an engine."""

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22], [30] * 17]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, top_k=20, max_tokens=7, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.7, seed=1, min_p=0.02, repetition_penalty=1.2, max_tokens=5),
]


class Engines:
    """folder_of: where the model of a family is; settings: of all of them."""

    def __init__(self, folder_of: Callable[[str], Path], **settings: Any) -> None:
        self._folder_of = folder_of
        self._base = EngineConfig(device="cuda:0", dtype="float32", **settings)
        self._made: list[LLMEngine] = []

    def make(self, family: str = "llama", **changes: Any) -> LLMEngine:
        config = self._base.replace(model=str(self._folder_of(family)), **changes)
        self._made.append(LLMEngine(config))
        return self._made[-1]

    def shutdown(self) -> None:
        for engine in self._made:
            engine.shutdown()


def tokens_of(
    engine: LLMEngine,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    params: SamplingParams | list[SamplingParams] = PARAMS,
) -> list[list[int]]:
    found = [output.token_ids for output in engine.generate(prompts, params)]
    engine.check_integrity()
    return found

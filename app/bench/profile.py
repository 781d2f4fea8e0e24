"""Profiles the steps of a load of equal requests; see `engine.telemetry.profiler`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from engine.errors import ConfigError
from engine.hardware.peaks import Peaks
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.snapshot.profile import DECODE, PREFILL, StepsProfile
from engine.telemetry.profile import as_dict, raised
from engine.units import counted, duration_text, short_figure

WARM_STEPS = 4
"""Decode steps before those that count: some are recorded then."""


class ProfiledLoad(NamedTuple):
    """profiles: of the steps with prompt tokens, and of the decode steps. plain_s: mean seconds of
    the same steps without the profiler, by kind."""

    profiles: tuple[StepsProfile, ...]
    plain_s: Mapping[str, float]
    peaks: Peaks

    def as_dict(self) -> dict[str, Any]:
        return {
            "peaks": {
                "read_bytes_per_s": self.peaks.read_bytes_per_s,
                "flops_per_s": self.peaks.flops_per_s, "dtype": self.peaks.dtype,
            },
            "profiles": [
                {**as_dict(one, self.peaks), "plain_step_ms": 1e3 * self.plain_s.get(one.kind, 0.0)}
                for one in self.profiles
            ],
        }  # fmt: skip


def profile_load(
    engine: LLMEngine,
    prompt_tokens: int,
    concurrency: int,
    steps: int,
    trace: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> ProfiledLoad:
    """Profile `concurrency` requests of `prompt_tokens` random tokens: their prompts, then `steps`
    decode steps. Raises ConfigError where the engine has no room for them."""
    _check(engine, prompt_tokens, concurrency, steps)
    progress("Measuring peaks")
    peaks = engine.measure_peaks()
    load = _Load(engine, prompt_tokens, concurrency)
    progress("Warming up")
    load.run(1, lambda kind, step: step())
    progress("Running without the profiler")
    plain = _Timer()
    load.run(steps, plain.step)
    progress("Profiling")
    with engine.profiler() as profiler:
        load.run(steps, lambda kind, step: profiler.step(step))
    if trace is not None:
        progress("Writing the trace")
        profiler.export_trace(trace)
    profiles = profiler.profiles()
    return ProfiledLoad(profiles, plain.means(), raised(peaks, profiles))


def _check(engine: LLMEngine, prompt_tokens: int, concurrency: int, steps: int) -> None:
    config = engine.config
    prompts = concurrency * prompt_tokens
    turns = -(-prompts // (config.max_num_batched_tokens or prompts))  # the first decode meanwhile
    length = prompt_tokens + turns + WARM_STEPS + steps + 1
    if length > engine.model_info.max_model_len:
        raise ConfigError(
            f"{prompt_tokens} prompt tokens and {steps} steps need a context of {length} tokens; "
            f"the model has {engine.model_info.max_model_len}.",
            "Reduce --prompt-tokens or --steps.",
        )
    if concurrency > config.max_num_seqs:
        raise ConfigError(
            f"--concurrency {concurrency} is above the batch limit of {config.max_num_seqs}.",
            f"Set --max-num-seqs to {concurrency} or more.",
        )
    blocks = concurrency * -(-length // config.block_size)
    if blocks > engine.plan.num_blocks:
        raise ConfigError(
            f"{concurrency} requests need {blocks} KV blocks; the cache has "
            f"{engine.plan.num_blocks}.",
            "Reduce --concurrency or --prompt-tokens, or raise --kv-cache-memory-bytes.",
        )


Step = Callable[[], Any]


class _Load:
    def __init__(self, engine: LLMEngine, prompt_tokens: int, concurrency: int) -> None:
        self._engine = engine
        self._prompt_tokens, self._concurrency = prompt_tokens, concurrency
        self._tokens = random.Random("profile")

    def run(self, steps: int, run: Callable[[str, Step], Any]) -> None:
        """The prompts, and after the warm-up `steps` steps with all requests, each through `run`
        with its kind."""
        engine, vocab = self._engine, self._engine.model_info.vocab_size
        params = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0.0)
        ids = []
        for _ in range(self._concurrency):
            prompt = [self._tokens.randrange(vocab) for _ in range(self._prompt_tokens)]
            ids.append(engine.add_request(prompt, params))
        waiting = set(ids)
        while waiting:
            events = run(PREFILL, engine.step)
            waiting -= {event.request_id for event in events if event.is_first}
        for _ in range(WARM_STEPS):
            engine.step()
        for _ in range(steps):
            run(DECODE, engine.step)
        for request_id in ids:
            engine.abort(request_id)
        while engine.has_unfinished:
            engine.step()


class _Timer:
    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def step(self, kind: str, compute: Step) -> Any:
        began = time.perf_counter()
        result = compute()
        self._seconds.setdefault(kind, []).append(time.perf_counter() - began)
        return result

    def means(self) -> dict[str, float]:
        return {kind: fmean(seconds) for kind, seconds in self._seconds.items()}


def heading(one: StepsProfile, plain_s: float | None) -> str:
    """ "Decode: 32 steps of 4 tokens, 12.3 ms per step (12.1 ms without the profiler)"."""
    tokens = short_figure(one.num_tokens / one.num_steps)
    return (
        f"{one.kind.capitalize()}: {counted(one.num_steps, 'step')} of {tokens} tokens, "
        f"{duration_text(one.seconds / one.num_steps)} per step "
        f"({duration_text(plain_s)} without the profiler)"
    )

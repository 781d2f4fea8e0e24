"""Runs workloads on an engine in this process.

Decoding reads all weights once per step, so it is compared with the machine's memory bandwidth.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.bench.load import Clock, Engine, EngineRun, Pace, run_load
from app.bench.report import EngineFacts, figures, request_figures
from app.bench.workload import (
    BenchRequest,
    Workload,
    special_token_ids,
    stand_in_ids,
    usable_token_ids,
)
from engine.config import SETTINGS, Change
from engine.errors import ConfigError
from engine.snapshot import EngineSnapshot

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.snapshot import MemoryPlan, ModelInfo


class SettableEngine(Engine, Protocol):
    """An engine whose settings a run may change."""

    @property
    def model_info(self) -> ModelInfo: ...
    @property
    def config(self) -> EngineConfig: ...
    @property
    def plan(self) -> MemoryPlan: ...
    def reconfigure(self, **changes: Any) -> object: ...


SUM_BYTES = 2**30
REPEATS = 5


def read_bandwidth(num_threads: int, num_bytes: int = SUM_BYTES) -> float:
    """Bytes per second of a read-only sum over `num_bytes` of memory with `num_threads` threads:
    the best of five, because whatever else runs on the machine can only slow it down."""
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        data = torch.ones(num_bytes // 4, dtype=torch.float32)
        best = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            data.sum()
            best = min(best, time.perf_counter() - began)
        return num_bytes / best
    finally:
        torch.set_num_threads(threads_before)


def engine_facts(snapshot: EngineSnapshot, bandwidth: float | None) -> EngineFacts:
    """Facts for a run's figures. `bandwidth`: from `read_bandwidth`."""
    memory, model = snapshot.memory, snapshot.model
    return EngineFacts(
        # of an input embedding alone only the rows of the step's tokens are read
        weights_per_step=None if model.num_experts else model.weights_bytes - model.lookup_bytes,
        # a layer with a sliding window reads less of a long context
        kv_bytes_per_token=memory.plan.block_bytes_in_all / snapshot.blocks.block_size,
        read_bandwidth=None if memory.plan.host_layers else bandwidth,  # two memories are read
    )


def vocabulary_of(engine: SettableEngine) -> list[int]:
    """Token ids for random prompts."""
    special = special_token_ids(Path(engine.config.model))
    return usable_token_ids(engine.model_info.vocab_size, special)


Progress = Callable[[str, int, int], None]
WARMUP_OUTPUT = 8
MOST_WARM_BATCH = 64
_BATCH_OF_RATE = 8  # of arrivals that do not wait for replies
_WARM_PROMPT = 8  # tokens


def warm_batches(most: int, vocabulary: list[int]) -> list[BenchRequest]:
    """Requests to send at once: two steps of each batch size from `most` down to 1. On a CPU the
    engine records a step for each size when it comes again (`engine.runner.recording`), which takes
    several times as long and would be measured as a latency."""
    prompt = tuple(vocabulary[:_WARM_PROMPT])
    counts = [2 * number + 1 for number in range(1, most + 1)]
    return [BenchRequest(prompt, count, count) for count in counts]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, how fast, and how often."""

    workload: Workload
    pace: Pace
    seed: int = 0
    num_warmups: int = 1
    rounds: int = 1

    def with_requests(self, count: int) -> Plan:
        return replace(self, workload=replace(self.workload, num_requests=count))

    def run_label(self, name: str, number: int) -> str:
        """ "voice-bot, run 2 of 3" of run 1, counted from 0; without its number if it is the only
        one."""
        return name if self.rounds == 1 else f"{name}, run {number + 1} of {self.rounds}"

    def warm_ups(self, variant: str, vocabulary: list[int], salt: object) -> list[BenchRequest]:
        """Short requests before the measurement."""
        requests = self.workload.requests(variant, vocabulary, self.seed, salt)
        short = [r._replace(output_len=min(r.output_len, WARMUP_OUTPUT)) for r in requests]
        return random.Random(self.seed).sample(short, min(self.num_warmups, len(short)))


class BenchRunner:
    """Runs a plan on one engine.

    Every run has its own token ids, so that no run hits the previous one's prefixes. Equal seeds
    give equal lengths and arrivals. `plan`: as the model takes it.
    """

    def __init__(
        self,
        engine: SettableEngine,
        plan: Plan,
        progress: Progress = lambda stage, done, total: None,
        bandwidth: bool = True,
        clock: Clock = Clock(),  # noqa: B008 - immutable
    ) -> None:
        self.engine = engine
        self.clock = clock
        has_template = engine.model_info.has_chat_template
        self.plan = replace(plan, workload=plan.workload.for_model(has_template))
        self.progress = progress
        # a server may not report its vocabulary
        self._vocabulary = vocabulary_of(engine) or stand_in_ids()
        self._num_runs = 0
        self._warmed = 0  # batch sizes up to this one had their steps with this KV cache
        self._check_fits()
        self._bandwidth = self._measure_bandwidth() if bandwidth else None

    def variants(self) -> dict[str, dict[str, Any]]:
        """Figures of each variant of the workload, by its name."""
        found = {}
        for name in self.plan.workload.variants:
            self._warm_up(name)
            plan = self.plan
            runs = [self._run(name, plan.run_label(name, n)) for n in range(plan.rounds)]
            found[name] = figures(runs, self._facts())
        return found

    def compare(self, setting: str, values: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """Figures for each value of an engine setting, by the value's name; `rounds`: of each run.

        The values alternate, in reverse order every second round, so that drift of the machine
        affects all of them.
        """
        variant = next(iter(self.plan.workload.variants))
        runs: dict[str, list[EngineRun]] = {str(value): [] for value in values}
        facts: dict[str, EngineFacts] = {}
        for index in range(self.plan.rounds):
            for value in values if index % 2 == 0 else reversed(values):
                self.reconfigure({setting: value})
                self._warm_up(variant)
                label = self.plan.run_label(f"{setting}={value}", index)
                runs[str(value)].append(self._run(variant, label))
                facts[str(value)] = self._facts()
        return {
            name: figures(results, facts[name])
            | {"rounds": [request_figures([one]) for one in results]}
            for name, results in runs.items()
        }

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> EngineRun:
        """One run of a sweep, after a warm-up."""
        if settings:
            self.reconfigure(settings)
        variant = next(iter(self.plan.workload.variants))
        plan = replace(self.plan.with_requests(least), pace=pace)
        self._warm_up(variant, plan)
        return self._run(variant, label, plan, limit_s)

    def _run(
        self, variant: str, label: str, plan: Plan | None = None, limit_s: float = math.inf
    ) -> EngineRun:
        plan = plan or self.plan
        self._num_runs += 1
        requests = plan.workload.requests(variant, self._vocabulary, plan.seed, self._num_runs)
        self.progress(label, 0, len(requests))
        return run_load(
            self.engine,
            requests,
            plan.pace,
            plan.seed,
            progress=lambda done, total: self.progress(label, done, total),
            clock=self.clock,
            limit_s=limit_s,
        )

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply settings between runs: a new KV cache is warmed up before the next one."""
        before = self.engine.config
        self.engine.reconfigure(**settings)
        changed = (name for name, value in settings.items() if getattr(before, name) != value)
        if any(SETTINGS[name].change is not Change.LIVE for name in changed):
            self._warmed = 0

    def _warm_up(self, variant: str, plan: Plan | None = None) -> None:
        plan = plan or self.plan
        if not plan.num_warmups:
            return
        count, context = plan.workload.num_requests, self.engine.model_info.max_model_len
        at_once = _BATCH_OF_RATE if plan.pace.request_rate else plan.pace.concurrency or count
        most = min(count, at_once, MOST_WARM_BATCH, self.engine.config.max_num_seqs,
                   (context - _WARM_PROMPT - 1) // 2)  # fmt: skip
        loads = [(plan.warm_ups(variant, self._vocabulary, "warm-up"), plan.pace)]
        if most > self._warmed:
            loads.insert(0, (warm_batches(most, self._vocabulary), Pace()))
        tell = lambda done, total: self.progress("Warm-up", 0, count)
        for requests, pace in loads:
            run_load(self.engine, requests, pace, progress=tell, clock=self.clock)
        self._warmed = max(most, self._warmed)

    def _facts(self) -> EngineFacts:
        return engine_facts(self.engine.snapshot(), self._bandwidth)

    def _measure_bandwidth(self) -> float | None:
        # The cache was planned to leave a reserve; without it there is nothing to measure with.
        if self.engine.snapshot().memory.free < 2 * SUM_BYTES:
            return None
        self.progress("measuring memory bandwidth", 0, 1)
        return read_bandwidth(self.engine.config.num_threads or 1)

    def _check_fits(self) -> None:
        """Reject before the first run what could only fail during it."""
        longest, name = self.plan.workload.longest_request, self.plan.workload.name
        context = self.engine.model_info.max_model_len
        if longest > context:
            raise ConfigError(
                f"{name} needs a context length of {longest:,} tokens; "
                f"{self.engine.model_info.name} supports {context:,}.",
                "Reduce --input-len or --output-len, or choose a model with a longer context.",
            )
        plan = self.engine.plan
        capacity = plan.num_blocks * self.engine.config.block_size
        if capacity and longest > capacity + 1:  # a server may not report it
            raise ConfigError(
                f"A {name} request needs {longest:,} tokens; "
                f"the KV cache has room for {capacity:,}.",
                "Increase --kv-cache-memory-bytes, or reduce --input-len or --output-len.",
            )

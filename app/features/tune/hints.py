"""Setting hints: what each setting costs or gains now, from snapshots. No Qt."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.features.tune.gpu_layers import layers_moved, layers_now
from engine.config import SETTINGS, EngineConfig
from engine.scheduling.prompt_limit import prompt_tokens
from engine.snapshot import (
    EngineSnapshot,
    SpeculationSnapshot,
    StepRecord,
    ThreadsOf,
)
from engine.units import (
    bytes_text,
    counted,
    duration_text,
    kv_precision_text,
    percent_text,
    precision_name,
    rough_duration,
    setting_text,
)
from widgets.live.metric_store import MetricStore
from widgets.speculation import panel as speculation

Differences = Mapping[str, tuple[Any, Any]]


def change_details(changes: Differences) -> tuple[str, ...]:
    """One line per setting."""
    return tuple(
        f"{SETTINGS[name].label}: {setting_text(before)} → {setting_text(now)}"
        for name, (before, now) in changes.items()
    )


def way(where: str, stack: list[Mapping[str, Any]]) -> str:
    """`where` and the newest entry of a history; "" for an empty one."""
    if not stack:
        return ""
    return where + ", ".join(f"{SETTINGS[n].label} {setting_text(v)}" for n, v in stack[-1].items())


def resolved(applied: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """`applied` with `changes`; an automatic dtype keeps its resolved value."""
    known = {name: value for name, value in changes.items() if (name, value) != ("dtype", "auto")}
    return applied.replace(**known)


WINDOW_S = 60
NO_DRAFT = "No draft tokens verified yet"
NO_STEP = "No steps in the last minute"


def _drafts(s: EngineSnapshot, words: Callable[[SpeculationSnapshot], str]) -> str:
    return (words(s.speculation) if s.speculation is not None else "") or NO_DRAFT


def _sized_for(s: EngineSnapshot) -> str:
    """ "auto: room for 8 requests of 2,048 tokens": it is never larger than max running requests of
    the full context need, as they were set when the cache was made."""
    length = s.model.max_model_len
    if s.config.kv_cache_memory_bytes is not None or not length:
        return ""
    usable = s.blocks.num_blocks * (1.0 - s.config.watermark)
    count = int(usable / math.ceil(length / s.blocks.block_size) + 1e-9)
    return f"auto: room for {counted(count, 'request')} of {length:,} tokens" if count else ""


def _merged(found: Sequence[ThreadsOf]) -> list[ThreadsOf]:
    """Neighbouring step sizes with the same thread count as one."""
    merged: list[ThreadsOf] = []
    for one in found:
        if merged and (merged[-1].last + 1, merged[-1].threads) == (one.first, one.threads):
            merged[-1] = merged[-1]._replace(last=one.last)
        else:
            merged.append(one)
    return merged


def _in_ram(num_bytes: int) -> str:
    """The CPU-offloaded part."""
    return f", {bytes_text(num_bytes)} in RAM" if num_bytes else ""


@dataclass(slots=True)
class _Second:
    """Sums over the steps that began in one second."""

    second: int
    steps: int = 0
    entries: int = 0
    seconds_computed: float = 0.0
    prefills: int = 0
    mixed: int = 0
    largest: tuple[int, float] = (0, 0.0)  # tokens, duration of the step with most tokens
    slowest: tuple[float, int] = (0.0, 0)  # duration, tokens of the longest step with decode

    def add(self, step: StepRecord) -> None:
        prefill = decode = 0
        for entry in step.entries:
            if entry.kind == "prefill":
                prefill += entry.num_tokens
            else:
                decode += entry.num_tokens
        self.steps += 1
        self.entries += len(step.entries)
        self.seconds_computed += step.duration
        self.prefills += prefill > 0
        self.mixed += prefill > 0 and decode > 0
        if prefill + decode >= self.largest[0]:
            self.largest = max(self.largest, (prefill + decode, step.duration))
        if decode:
            self.slowest = max(self.slowest, (step.duration, prefill + decode))


def _step_text(duration: float, tokens: int) -> str:
    return f"{counted(tokens, 'token')} in {duration_text(duration)}"


class Hints:
    """Hints from the steps of the last minute."""

    def __init__(self, metrics: MetricStore | None = None) -> None:
        self.metrics = metrics or MetricStore()
        self._seconds: deque[_Second] = deque()
        self._snapshot: EngineSnapshot | None = None
        self._earlier_preemptions = 0  # until the last change, those that it made included
        self._last_preemption: StepRecord | None = None  # since then
        self._makers: dict[str, Callable[[EngineSnapshot], str]] = {
            "max_num_seqs": lambda s: f"{s.num_running} running · {s.num_waiting} waiting",
            "max_num_batched_tokens": self._largest_step,
            "batching": self._batching,
            "enable_chunked_prefill": self._prefill,
            "enable_prefix_caching": self._prefix,
            "watermark": lambda s: (
                f"{round(s.config.watermark * s.blocks.num_blocks):,} of {s.blocks.num_blocks:,} "
                "blocks reserved"
            ),
            "block_size": self._waste,
            "kv_cache_memory_bytes": self._capacity,
            "kv_cache_dtype": self._kv_dtype,
            "gpu_memory_utilization": self._plan,
            "kv_allocation": lambda s: (
                f"{counted(s.blocks.num_used, 'block')} in use by "
                f"{counted(s.num_running, 'request')}"
            ),
            "speculative_method": lambda s: (
                speculation.verdict(s.speculation).text if s.speculation else "One token per step"
            ),
            "num_speculative_tokens": self._drafts,
            "speculative_adaptive": lambda s: _drafts(s, speculation.times),
            "prompt_lookup_min": lambda s: _drafts(s, speculation.acceptance),
            "prompt_lookup_max": lambda s: _drafts(s, speculation.acceptance),
            "quantization": self._weights,
            "quantization_head": self._head,
            "dtype": lambda s: f"In use: {precision_name(s.model.dtype)}",
            "max_model_len": self._context,
            "num_threads": self._threads,
            "adaptive_threads": self._thread_search,
            "device": self._device,
            "gpu_layers": layers_now,
            "enforce_eager": lambda s: s.model.kernels.get("decode", "No steps are replayed"),
        }

    def update(self, snapshot: EngineSnapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        if before is None or before.config != snapshot.config:
            self._earlier_preemptions = snapshot.counters.preemptions
            self._last_preemption = None
        elif late := [step for step in snapshot.steps if step.preempted]:
            self._last_preemption = late[-1]
        since = snapshot.settings_since
        for step in snapshot.steps:
            if step.start < since:
                continue
            second = int(step.start)
            if not self._seconds or self._seconds[-1].second != second:
                self._seconds.append(_Second(second))
            self._seconds[-1].add(step)
        oldest = max(snapshot.time - WINDOW_S, math.floor(since))
        while self._seconds and self._seconds[0].second < oldest:
            self._seconds.popleft()

    def clear(self) -> None:
        self._snapshot = None
        self._seconds.clear()

    def moved(self, gpu_layers: str) -> str:
        """What `gpu_layers` would move; "" where unknown."""
        return layers_moved(self._snapshot, gpu_layers) if self._snapshot else ""

    def hint(self, name: str) -> str:
        """The hint of a setting, or ""."""
        maker = self._makers.get(name)
        return maker(self._snapshot) if maker and self._snapshot else ""

    @staticmethod
    def _device(s: EngineSnapshot) -> str:
        """Device name; of a GPU its load and temperature."""
        words = [s.model.device_name or s.model.device]
        for gpu in s.gpus[:1] if len(s.gpus) == 1 else ():
            if gpu.utilization is not None:
                words.append(f"{gpu.utilization:.0%} utilization".replace("%", " %"))
            if gpu.temperature_c is not None:
                words.append(f"{gpu.temperature_c:.0f} °C")
        return " · ".join(words)

    def _largest_step(self, s: EngineSnapshot) -> str:
        budget = s.model.token_budget
        if budget is not None and budget.tokens == s.config.max_num_batched_tokens:
            measured = (
                f"Auto: a {budget.tokens:,}-token prefill chunk takes "
                f"{duration_text(budget.seconds)} (limit {duration_text(budget.limit_s)})"
            )
            if (limit := prompt_tokens(budget)) > budget.tokens:
                most = counted(limit, "token")
                measured += f"; up to {most} of a prompt while no request decodes"
            slowest = max((second.slowest for second in self._seconds), default=(0.0, 0))
            if slowest[0] <= budget.limit_s:
                return measured
            return f"{measured} · slowest with decode in the last minute: {_step_text(*slowest)}"
        if not self._seconds:
            return NO_STEP
        tokens, duration = max(second.largest for second in self._seconds)
        return f"Largest step: {_step_text(duration, tokens)}"

    def _batching(self, s: EngineSnapshot) -> str:
        if not self._seconds:
            return NO_STEP
        mean = sum(x.entries for x in self._seconds) / sum(x.steps for x in self._seconds)
        return f"{mean:.1f} requests per step (mean over the last minute)"

    def _prefill(self, s: EngineSnapshot) -> str:
        prefills = sum(second.prefills for second in self._seconds)
        if not prefills:
            return "No prefill in the last minute"
        mixed = sum(second.mixed for second in self._seconds)
        steps = counted(prefills, "prefill step")
        return f"{steps} in the last minute, {mixed:,} mixed with decode"

    def _prefix(self, s: EngineSnapshot) -> str:
        share = self.metrics.prefix_hits()
        if share is None:
            return "No prefix cache lookups yet"
        tokens = counted(share.num_tokens, "prompt token")
        return f"Hit rate {100 * share.rate:.0f} % over {tokens}"

    @staticmethod
    def _waste(s: EngineSnapshot) -> str:
        slots = s.blocks.num_used * s.blocks.block_size
        if not slots:
            return f"Up to {counted(s.blocks.block_size - 1, 'unused slot')} per request"
        return f"{s.blocks.num_wasted_tokens / slots * 100:.1f} % of allocated slots are unused"

    def _capacity(self, s: EngineSnapshot) -> str:
        tokens = s.blocks.num_blocks * s.blocks.block_size
        plan = s.memory.plan
        size = bytes_text(plan.cache_bytes_in_all) + _in_ram(plan.host_kv_cache)
        parts = (size, counted(tokens, "token"), _sized_for(s), self._preemptions(s))
        return " · ".join(filter(None, parts))

    def _preemptions(self, s: EngineSnapshot) -> str:
        """ "2 preemptions since the last change, the last 40 s ago at 98 % KV usage (3 before)"."""
        count = max(0, s.counters.preemptions - self._earlier_preemptions)
        if not count and not self._earlier_preemptions:
            return "no preemptions"
        text = f"{counted(count, 'preemption')} since the last change"
        last = self._last_preemption
        if count and last is not None:
            usage = f" at {percent_text(last.kv_usage)} KV usage" if last.kv_usage else ""
            text += f", the last {rough_duration(max(0.0, s.time - last.end))} ago{usage}"
        before = self._earlier_preemptions
        return f"{text} ({before:,} before)" if before else text

    @staticmethod
    def _kv_dtype(s: EngineSnapshot) -> str:
        plan = s.memory.plan
        if not plan.key_dtype:
            return ""
        per_token = bytes_text(plan.block_bytes_in_all / s.blocks.block_size)
        stored = kv_precision_text(plan.key_dtype, plan.value_dtype).removeprefix("KV ")
        return f"{stored} · {per_token} per token"

    @staticmethod
    def _plan(s: EngineSnapshot) -> str:
        plan = s.memory.plan
        words = f"Predicted use: {bytes_text(plan.predicted)} of {bytes_text(plan.limit)} usable"
        if not plan.host_layers:
            return words
        return f"{words} · {bytes_text(plan.host_predicted)} in RAM"

    @staticmethod
    def _drafts(s: EngineSnapshot) -> str:
        figures = s.speculation
        if figures is None or figures.acceptance_length is None:
            return NO_DRAFT
        drafted, length = figures.drafted / figures.rounds, figures.acceptance_length
        return f"{drafted:.1f} draft tokens per round, acceptance length {length:.1f}"

    @staticmethod
    def _weights(s: EngineSnapshot) -> str:
        size = bytes_text(s.model.weights_bytes) + _in_ram(s.memory.host_weights)
        bits = 8 * s.model.weights_bytes / max(1, s.model.num_parameters)
        if not s.model.quantization:  # position tables are extra
            is_compressed = s.model.dtype == "bfloat16" and bits < 15
            stored = f", {bits:.1f} bits per weight (lossless)" if is_compressed else ""
            return f"{size} · {precision_name(s.model.dtype)}{stored}"
        return f"{size} · {bits:.1f} bits per weight, embeddings included"

    @staticmethod
    def _head(s: EngineSnapshot) -> str:
        name = s.model.dtype if s.config.quantization_head == "none" else s.config.quantization_head
        size = f"{bytes_text(s.model.output_bytes)} · " if s.model.output_bytes else ""
        return f"{size}{precision_name(name)}"

    @staticmethod
    def _context(s: EngineSnapshot) -> str:
        lengths = [r.num_prompt_tokens + r.num_output_tokens for r in s.requests]
        longest = "No requests"
        if lengths:
            longest = f"Longest request: {counted(max(lengths), 'token')}"
        words = f"{longest} · limit {s.model.max_model_len:,}"
        if not (shorter := s.memory.plan.undivided_model_len):
            return words
        return f"{words} · up to {shorter:,} tokens, all layers fit on {s.model.device}"

    def _threads(self, s: EngineSnapshot) -> str:
        if not self._seconds:
            return NO_STEP
        steps = sum(second.steps for second in self._seconds)
        mean = sum(second.seconds_computed for second in self._seconds) / steps
        words = f"Step time {duration_text(mean)} (mean over the last minute)"
        if s.threads is None:
            return words
        return f"{s.threads.used} of {s.threads.most} threads in the last step · {words}"

    @staticmethod
    def _thread_search(s: EngineSnapshot) -> str:
        """Cores busy with other work, and the fastest thread count per step size."""
        threads = s.threads
        if threads is None:
            return ""
        if threads.most == 1:
            return "1 thread for all steps"
        parts = []
        if threads.others is not None:
            parts.append(f"Other programs use {threads.others:.1f} cores")
        for first, last, best in _merged(threads.found):
            tokens = counted(first, "token") if first == last else f"{first} to {last} tokens"
            parts.append(f"{tokens}: {counted(best, 'thread')}")
        return " · ".join(parts)

"""Values and changes of settings, as the panel and the charts' marks say them. No Qt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.features.models.device_words import (
    RANKS,
    STAGES,
    Places,
    layers_moved,
    layers_now,
    of_gpus,
    ranks_now,
    ranks_wanted,
    stages_now,
    stages_wanted,
)
from app.units import format_bytes
from engine.config import SETTINGS, EngineConfig
from engine.numerics.kv_dtype import kv_words
from engine.snapshot import EngineSnapshot, ModelInfo, StepRecord
from widgets.live.figures import parallel_text
from widgets.speculation import panel as words

Differences = Mapping[str, tuple[Any, Any]]


def short(value: Any) -> str:
    """A value as a person would write it in a sentence."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 2**20:
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def change_text(changes: Differences) -> str:
    """ "Running requests 8 → 16"."""
    return ", ".join(
        f"{SETTINGS[n].label} {short(before)} → {short(now)}"
        for n, (before, now) in changes.items()
    )


def change_details(changes: Differences) -> tuple[str, ...]:
    """The same in the settings' own words, a line each."""
    return tuple(f"{SETTINGS[n].label}: {short(a)} → {short(b)}" for n, (a, b) in changes.items())


def way(where: str, stack: list[Mapping[str, Any]]) -> str:
    """Where the newest entry of a history leads; empty where there is none."""
    if not stack:
        return ""
    return where + ", ".join(f"{SETTINGS[n].label} {short(v)}" for n, v in stack[-1].items())


def resolved(applied: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """`applied` with `changes`, what the engine chose by itself left as it came out."""
    known = {name: value for name, value in changes.items() if (name, value) != ("dtype", "auto")}
    return applied.replace(**known)


WINDOW_S = 60
NO_DRAFT = "no draft was verified yet"
NO_STEP = "no step in the last minute"


def _count(number: int, unit: str) -> str:
    """ "1 token", "2,048 tokens"."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def _in_ram(num_bytes: int) -> str:
    """Of a model that is divided between a GPU and the CPU."""
    return f", {format_bytes(num_bytes)} of it in RAM" if num_bytes else ""


@dataclass(slots=True)
class _Second:
    """The steps that began in one second, summed: thousands of steps a minute stay cheap."""

    second: int
    steps: int = 0
    entries: int = 0
    seconds_computed: float = 0.0
    prefills: int = 0
    mixed: int = 0
    model_s: float = 0.0
    exchange_s: float = 0.0
    largest: tuple[int, float] = (0, 0.0)  # tokens, duration of the step with most tokens

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
        self.model_s += step.model_s
        self.exchange_s += step.exchange_s
        self.prefills += prefill > 0
        self.mixed += prefill > 0 and decode > 0
        if prefill + decode >= self.largest[0]:
            self.largest = max(self.largest, (prefill + decode, step.duration))


class Hints:
    """Remembers the steps of the last minute, to say what a setting costs or brings. `places`: of
    the machine of the engine."""

    def __init__(self) -> None:
        self.places = Places()
        self._seconds: deque[_Second] = deque()
        self._snapshot: EngineSnapshot | None = None
        self._makers: dict[str, Callable[[EngineSnapshot], str]] = {
            "max_num_seqs": self._requests,
            "max_num_batched_tokens": self._largest_step,
            "batching": self._batching,
            "enable_chunked_prefill": self._prefill,
            "enable_prefix_caching": self._prefix,
            "watermark": self._watermark,
            "block_size": self._waste,
            "kv_cache_memory_bytes": self._capacity,
            "kv_cache_dtype": self._kv_dtype,
            "gpu_memory_utilization": self._plan,
            "kv_allocation": self._allocation,
            "speculative_method": self._speculation,
            "num_speculative_tokens": self._drafts,
            "speculative_adaptive": self._draft_times,
            "prompt_lookup_min": self._acceptance,
            "prompt_lookup_max": self._acceptance,
            "quantization": self._weights,
            "quantization_head": self._head,
            "dtype": self._number_format,
            "max_model_len": self._context,
            "num_threads": self._threads,
            "adaptive_threads": self._found_threads,
            "device": self._device,
            "gpu_layers": layers_now,
            RANKS: self._ranks,
            STAGES: lambda s: stages_now(s, self.places),
            "enforce_eager": self._graphs,
        }

    def update(self, snapshot: EngineSnapshot) -> None:
        """Take the state and the new steps of a snapshot."""
        self._snapshot = snapshot
        for step in snapshot.steps:
            second = int(step.start)
            if not self._seconds or self._seconds[-1].second != second:
                self._seconds.append(_Second(second))
            self._seconds[-1].add(step)
        while self._seconds and snapshot.time - self._seconds[0].second > WINDOW_S:
            self._seconds.popleft()

    def clear(self) -> None:
        self._snapshot = None
        self._seconds.clear()

    def moved(self, gpu_layers: str) -> str:
        """What so many layers on the GPU would move; "" where that is not known."""
        return layers_moved(self._snapshot, gpu_layers) if self._snapshot else ""

    @property
    def model(self) -> ModelInfo | None:
        """What is loaded, as far as it is told."""
        return self._snapshot.model if self._snapshot else None

    def ranks(self, count: int, device: str, threads: int | None) -> str:
        """What so many ranks would be; "" where that is not known. threads: None for the number
        of now."""
        config = self._snapshot.config if self._snapshot else None
        threads = threads or getattr(config, "num_threads", None)
        return ranks_wanted(count, device, threads, self.places, self.model)

    def stages(self, count: int, device: str) -> str:
        """What so many stages would be; "" where that is not known."""
        return stages_wanted(count, device, self.places, self.model)

    def hint(self, name: str) -> str:
        """The hint of a setting; empty where there is nothing to say yet."""
        maker = self._makers.get(name)
        return maker(self._snapshot) if maker and self._snapshot else ""

    @staticmethod
    def _device(s: EngineSnapshot) -> str:
        """Its make, and of a GPU how busy and how warm it is."""
        words = [s.model.device_name or s.model.device]
        if several := parallel_text(s.model):
            words.append(several)
        for gpu in s.gpus[:1] if len(s.gpus) == 1 else ():
            if gpu.utilization is not None:
                words.append(f"{gpu.utilization:.0%} busy".replace("%", " %"))
            if gpu.temperature_c is not None:
                words.append(f"{gpu.temperature_c:.0f} °C")
        return " · ".join(words)

    def _ranks(self, s: EngineSnapshot) -> str:
        computed = sum(second.model_s for second in self._seconds)
        waited = sum(second.exchange_s for second in self._seconds)
        return ranks_now(s, self.places, waited / computed if computed else None)

    @staticmethod
    def _graphs(s: EngineSnapshot) -> str:
        return s.model.kernels.get("decode", "no steps are captured")

    @staticmethod
    def _requests(s: EngineSnapshot) -> str:
        return f"{s.num_running} running · {s.num_waiting} waiting"

    def _largest_step(self, s: EngineSnapshot) -> str:
        if not self._seconds:
            return NO_STEP
        tokens, duration = max(second.largest for second in self._seconds)
        return f"largest step {duration * 1e3:,.1f} ms at {_count(tokens, 'token')}"

    def _batching(self, s: EngineSnapshot) -> str:
        if not self._seconds:
            return NO_STEP
        mean = sum(x.entries for x in self._seconds) / sum(x.steps for x in self._seconds)
        return f"{mean:.1f} requests per step in the last minute"

    def _prefill(self, s: EngineSnapshot) -> str:
        prefills = sum(second.prefills for second in self._seconds)
        if not prefills:
            return "no prefill in the last minute"
        mixed = sum(second.mixed for second in self._seconds)
        return f"{_count(prefills, 'prefill step')} a minute, {mixed:,} shared with decode"

    @staticmethod
    def _prefix(s: EngineSnapshot) -> str:
        queries = s.counters.prefix_queries
        if not queries:
            return "no prompt looked up yet"
        rate = 100 * s.counters.prefix_hit_rate
        return f"hits {rate:.0f} % of {_count(queries, 'prompt token')}"

    @staticmethod
    def _watermark(s: EngineSnapshot) -> str:
        kept = round(s.config.watermark * s.blocks.num_blocks)
        return f"{kept:,} of {s.blocks.num_blocks:,} blocks kept free"

    @staticmethod
    def _waste(s: EngineSnapshot) -> str:
        places = s.blocks.num_used * s.blocks.block_size
        if not places:
            return f"at most {_count(s.blocks.block_size - 1, 'token')} lost per request"
        return f"waste {s.blocks.num_wasted_tokens / places * 100:.1f} % now"

    @staticmethod
    def _capacity(s: EngineSnapshot) -> str:
        tokens = s.blocks.num_blocks * s.blocks.block_size
        plan = s.memory.plan
        size = f"{format_bytes(plan.cache_bytes_in_all)} {of_gpus(s.model)}".rstrip()
        size += _in_ram(plan.host_kv_cache)
        preemptions = _count(s.counters.preemptions, "preemption")
        return f"{size} · {_count(tokens, 'token')} · {preemptions}"

    @staticmethod
    def _kv_dtype(s: EngineSnapshot) -> str:
        plan = s.memory.plan
        if not plan.key_dtype:
            return ""
        per_token = format_bytes(plan.block_bytes_in_all / s.blocks.block_size)
        stored = kv_words(plan.key_dtype, plan.value_dtype)
        return f"{stored} · {per_token} a token {of_gpus(s.model)}".rstrip()

    @staticmethod
    def _plan(s: EngineSnapshot) -> str:
        plan = s.memory.plan
        words = f"planned {format_bytes(plan.predicted)} of {format_bytes(plan.limit)}"
        if where := of_gpus(s.model):
            return f"{words} {where}"
        if not plan.host_layers:
            return words
        return f"{words} · {format_bytes(plan.host_predicted)} in RAM beside it"

    @staticmethod
    def _allocation(s: EngineSnapshot) -> str:
        blocks = _count(s.blocks.num_used, "block")
        return f"{blocks} in use by {_count(s.num_running, 'request')}"

    @staticmethod
    def _speculation(snapshot: EngineSnapshot) -> str:
        figures = snapshot.speculation
        return "every token takes a step" if figures is None else words.verdict(figures).text

    @staticmethod
    def _drafts(snapshot: EngineSnapshot) -> str:
        figures = snapshot.speculation
        if figures is None or figures.acceptance_length is None:
            return NO_DRAFT
        drafted = figures.drafted / figures.rounds
        return f"{drafted:.1f} drafted, {figures.acceptance_length:.1f} tokens a round"

    @staticmethod
    def _draft_times(snapshot: EngineSnapshot) -> str:
        figures = snapshot.speculation
        return (words.times(figures) if figures is not None else "") or NO_DRAFT

    @staticmethod
    def _acceptance(snapshot: EngineSnapshot) -> str:
        figures = snapshot.speculation
        return (words.acceptance(figures) if figures is not None else "") or NO_DRAFT

    @staticmethod
    def _weights(s: EngineSnapshot) -> str:
        in_ram = s.memory.host_weights
        size = format_bytes(s.model.weights_bytes) + _in_ram(in_ram)
        if not s.model.quantization:  # tables of positions are held beside the weights
            return f"{size} now · in {s.model.dtype}"
        bits = 8 * s.model.weights_bytes / max(1, s.model.num_parameters)
        return f"{size} now · {bits:.1f} bits a weight"

    @staticmethod
    def _head(s: EngineSnapshot) -> str:
        name = s.model.dtype if s.config.quantization_head == "none" else s.config.quantization_head
        size = f"{format_bytes(s.model.output_bytes)} " if s.model.output_bytes else ""
        return f"{size}in {name}"

    @staticmethod
    def _number_format(s: EngineSnapshot) -> str:
        return f"runs in {s.model.dtype}"

    @staticmethod
    def _context(s: EngineSnapshot) -> str:
        lengths = [r.num_prompt_tokens + r.num_output_tokens for r in s.requests]
        longest = "no request now"
        if lengths:
            longest = f"longest request {_count(max(lengths), 'token')}"
        words = f"{longest} · model allows {s.model.max_model_len:,}"
        if not (shorter := s.memory.plan.undivided_model_len):
            return words
        return f"{words} · with {shorter:,} all layers would be on {s.model.device}"

    def _threads(self, s: EngineSnapshot) -> str:
        if not self._seconds:
            return NO_STEP
        steps = sum(second.steps for second in self._seconds)
        mean = sum(second.seconds_computed for second in self._seconds) / steps
        words = f"step {mean * 1e3:,.1f} ms on average in the last minute"
        if s.threads is None:
            return words
        return f"{s.threads.used} of {s.threads.most} in the last step · {words}"

    @staticmethod
    def _found_threads(s: EngineSnapshot) -> str:
        """Cores that others keep busy, other programs or this one with other work, and what was
        found best for steps of few tokens."""
        threads = s.threads
        if threads is None:
            return ""
        if threads.most == 1:
            return "one thread computes every step"
        parts = []
        if threads.others is not None:
            parts.append(f"other work uses {threads.others:.1f} cores")
        for first, last, best in threads.found:
            tokens = _count(first, "token") if first == last else f"{first} to {last} tokens"
            parts.append(f"{tokens}: {_count(best, 'thread')}")
        return " · ".join(parts)

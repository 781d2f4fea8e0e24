"""One line under each engine setting that says what it does right now. Imports no Qt.

hints = Hints(); hints.update(snapshot); hints.hint("block_size")  ->  "waste 1.3 % now"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from app.units import format_bytes
from engine.snapshot import EngineSnapshot, StepRecord

WINDOW_S = 60.0
MAX_STEPS = 4096


def _count(number: int, unit: str) -> str:
    """ "1 token", "2,048 tokens"."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def _num_tokens(step: StepRecord) -> int:
    return step.num_prefill_tokens + step.num_decode_tokens


class Hints:
    """Remembers the steps of the last minute, to say what a setting costs or brings."""

    def __init__(self) -> None:
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
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
            "gpu_memory_utilization": self._plan,
            "kv_allocation": self._allocation,
            "dtype": self._weights,
            "max_model_len": self._context,
            "num_threads": self._threads,
        }

    def update(self, snapshot: EngineSnapshot) -> None:
        self._snapshot = snapshot
        self._steps.extend(snapshot.steps)
        while self._steps and snapshot.time - self._steps[0].start > WINDOW_S:
            self._steps.popleft()

    def clear(self) -> None:
        self._snapshot = None
        self._steps.clear()

    def hint(self, name: str) -> str:
        """The hint of a setting; empty where there is nothing to say yet."""
        maker = self._makers.get(name)
        return maker(self._snapshot) if maker and self._snapshot else ""

    @staticmethod
    def _requests(s: EngineSnapshot) -> str:
        return f"{s.num_running} running · {s.num_waiting} waiting"

    def _largest_step(self, s: EngineSnapshot) -> str:
        if not self._steps:
            return "no step in the last minute"
        largest = max(self._steps, key=lambda step: (_num_tokens(step), step.duration))
        tokens = _count(_num_tokens(largest), "token")
        return f"largest step {largest.duration * 1e3:,.1f} ms at {tokens}"

    def _batching(self, s: EngineSnapshot) -> str:
        if not self._steps:
            return "no step in the last minute"
        mean = sum(len(step.entries) for step in self._steps) / len(self._steps)
        return f"{mean:.1f} requests per step in the last minute"

    def _prefill(self, s: EngineSnapshot) -> str:
        steps = [step for step in self._steps if step.num_prefill_tokens]
        if not steps:
            return "no prefill in the last minute"
        mixed = sum(step.num_decode_tokens > 0 for step in steps)
        return f"{_count(len(steps), 'prefill step')} a minute, {mixed:,} shared with decode"

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
        size = format_bytes(s.memory.plan.kv_cache)
        preemptions = _count(s.counters.preemptions, "preemption")
        return f"{size} · {_count(tokens, 'token')} · {preemptions}"

    @staticmethod
    def _plan(s: EngineSnapshot) -> str:
        plan = s.memory.plan
        return f"planned {format_bytes(plan.predicted)} of {format_bytes(plan.limit)}"

    @staticmethod
    def _allocation(s: EngineSnapshot) -> str:
        blocks = _count(s.blocks.num_used, "block")
        return f"{blocks} in use by {_count(s.num_running, 'request')}"

    @staticmethod
    def _weights(s: EngineSnapshot) -> str:
        return f"weights {format_bytes(s.model.weights_bytes)}"

    @staticmethod
    def _context(s: EngineSnapshot) -> str:
        lengths = [r.num_prompt_tokens + r.num_output_tokens for r in s.requests]
        longest = max(lengths, default=0)
        limit = s.model.max_model_len
        return f"longest request {_count(longest, 'token')} · model allows {limit:,}"

    def _threads(self, s: EngineSnapshot) -> str:
        if not self._steps:
            return "no step in the last minute"
        durations = sorted(step.duration for step in self._steps)
        return f"step p50 {durations[len(durations) // 2] * 1e3:,.1f} ms"

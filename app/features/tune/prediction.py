"""What a change will cost: the pause of running requests, and memory. No Qt.

    pause = rebuild or reload, as measured before + tokens to recompute / measured prefill rate
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from engine.config import Change
from engine.snapshot import EngineSnapshot, MemoryPlan, RequestState, StepRecord
from engine.units import bytes_text, counted, number, rough_duration

KEPT = 64
MOSTLY = 0.9
"""Share of prefill tokens in a step that measures the prefill rate."""


class PauseModel:
    """Learns the prefill rate from steps, and the time of a cache rebuild from rebuilds."""

    def __init__(self) -> None:
        self._prefills: deque[tuple[int, float]] = deque(maxlen=KEPT)  # tokens, seconds
        self._rebuilds: deque[float] = deque(maxlen=KEPT)  # seconds
        self._to_recompute = 0

    def clear(self) -> None:
        """Another model: its rates are not known."""
        self._prefills.clear()
        self._rebuilds.clear()
        self._to_recompute = 0

    def update(self, snapshot: EngineSnapshot) -> None:
        for step in snapshot.steps:
            self._add(step)
        self._to_recompute = sum(
            request.num_computed_tokens
            for request in snapshot.requests
            if request.state is RequestState.RUNNING
        )

    def _add(self, step: StepRecord) -> None:
        prefill = step.num_prefill_tokens
        tokens = prefill + step.num_decode_tokens
        if tokens and prefill >= MOSTLY * tokens and step.duration > 0:
            self._prefills.append((tokens, step.duration))

    def learn_rebuild(self, seconds: float) -> None:
        self._rebuilds.append(seconds)

    @property
    def prefill_rate(self) -> float | None:
        """Tokens per second; None before the first prefill."""
        seconds = sum(seconds for _, seconds in self._prefills)
        return sum(tokens for tokens, _ in self._prefills) / seconds if seconds else None

    def predict(self, change: Change, reload_s: float | None) -> Pause:
        """Of applying a change now. reload_s: of a reload; None if unknown."""
        own = 0.0 if change is Change.LIVE else reload_s
        if change is Change.CACHE_REBUILD:
            own = statistics.median(self._rebuilds) if self._rebuilds else None
        tokens = 0 if change is Change.LIVE else self._to_recompute
        rate = self.prefill_rate
        recompute = tokens / rate if rate else None if tokens else 0.0
        return Pause(change, own, tokens, recompute)


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of the rebuild or reload itself, and of recomputing `tokens`; None: not measured."""

    change: Change
    own_s: float | None
    tokens: int
    recompute_s: float | None

    @property
    def seconds(self) -> float | None:
        """Of running requests; None as long as a part is not measured."""
        if self.own_s is None or self.recompute_s is None:
            return None
        return self.own_s + self.recompute_s

    @property
    def words(self) -> str:
        """ "Pause about 12 s, recomputes 573 tokens"."""
        if self.change is Change.LIVE:
            return "No pause"
        again = f", recomputes {counted(self.tokens, 'token')}" if self.tokens else ""
        if self.seconds is not None:
            return f"Pause about {rough_duration(self.seconds)}{again}"
        known = (self.own_s or 0.0) + (self.recompute_s or 0.0)
        if known:
            return f"Pause at least {rough_duration(known)}, rest not measured yet{again}"
        return f"Pause not measured yet{again}"


def memory_words(
    before: MemoryPlan, before_block: int, after: MemoryPlan, after_block: int
) -> str:
    """ "Model and KV cache 620 → 580 MiB · KV cache 6,480 → 12,960 tokens": weights, activations
    and KV cache, without the rest of the process. The block sizes are in tokens."""
    now, then = before.num_blocks * before_block, after.num_blocks * after_block
    words = f"Model and KV cache {bytes_text(before.predicted)} → {bytes_text(after.predicted)}"
    if before.host_layers or after.host_layers:
        in_ram = (bytes_text(plan.host_predicted) for plan in (before, after))
        words += f", in RAM {' → '.join(in_ram)}"
    return words if now == then else f"{words} · KV cache {number(now)} → {counted(then, 'token')}"

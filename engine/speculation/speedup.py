"""The measured gain of speculation: tokens per second with it against the same engine without.

While requests only decode, one step in `PROBE_INTERVAL` runs without drafts (the first ones come
sooner, to have a figure soon). Steps with and without are compared at the same number of decoding
requests. The probe costs less than 1 / PROBE_INTERVAL of the gain. Pure Python: no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.snapshot import SpeedUp

PROBE_INTERVAL = 64
_FIRST_PROBES = 8
_MEMORY = 0.995  # per step: some hundred of the last steps decide
_FEWEST_PLAIN = 3


@dataclass(slots=True)
class _Steps:
    """Tokens and seconds of steps, of which old ones count less and less."""

    count: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float, memory: float) -> None:
        self.count += 1
        self.tokens = self.tokens * memory + tokens
        self.seconds = self.seconds * memory + seconds


@dataclass(slots=True)
class _AtBatchSize:
    drafted: _Steps = field(default_factory=_Steps)
    plain: _Steps = field(default_factory=_Steps)


class SpeedMeter:
    """Keeps steps with and without drafts apart, by the number of requests that decode."""

    def __init__(self) -> None:
        self._by_size: dict[int, _AtBatchSize] = {}
        self._since_probe = 0
        self._interval = _FIRST_PROBES

    def wants_plain_step(self) -> bool:
        """Whether the next step with drafts should do without them, to be compared with."""
        return self._since_probe >= self._interval

    def observe(self, num_requests: int, num_tokens: int, seconds: float, drafted: bool) -> None:
        """A step in which `num_requests` requests decoded and nothing else gave `num_tokens`."""
        at = self._by_size.setdefault(num_requests, _AtBatchSize())
        if drafted:
            self._since_probe += 1
            at.drafted.add(num_tokens, seconds, _MEMORY)
        else:
            # a plain step in sixty-four has to be remembered as long as those between them
            at.plain.add(num_tokens, seconds, _MEMORY**8)
            if self._since_probe:
                self._interval = min(self._interval * 2, PROBE_INTERVAL)
            self._since_probe = 0

    @property
    def speed_up(self) -> SpeedUp | None:
        """None until there are steps of both kinds at one number of requests."""
        with_drafts = without = 0.0
        num_drafted = num_plain = 0
        for at in self._by_size.values():
            if at.plain.count < _FEWEST_PLAIN or not at.drafted.count:
                continue
            num_drafted, num_plain = num_drafted + at.drafted.count, num_plain + at.plain.count
            with_drafts += at.drafted.seconds
            without += at.drafted.tokens * at.plain.seconds / at.plain.tokens
        if with_drafts <= 0.0:
            return None
        return SpeedUp(without / with_drafts, num_drafted, num_plain)

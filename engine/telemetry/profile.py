"""A profile of steps: time, bytes and operations by operation of the model.

    seconds of the steps
    |<-- qkv projection --|-- attention --|-- gate/up projection --| ... |-- Python and other -->|

Bytes are those that an operation must read and write at least: each weight, key and value once.
Operations: a multiplication, an addition, a division and an exponential count as one each.
Pure Python: no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engine.hardware.peaks import Peaks

PREFILL, DECODE = "prefill", "decode"
REST = "Python and other"
"""The time of a step outside its operations: scheduling, launches, small torch operations."""


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one operation by one kernel (the weight format or implementation, if known).
    seconds: on a GPU of the device. bytes: read and written."""

    name: str
    kernel: str
    calls: int
    seconds: float
    bytes: float
    operations: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes if self.bytes else 0.0

    def is_compute_bound(self, peaks: Peaks) -> bool:
        """Whether it takes longer to compute than to read and write, at the machine's peaks."""
        return self.operations / peaks.flops_per_s > self.bytes / peaks.read_bytes_per_s

    def least_s(self, peaks: Peaks) -> float:
        """Seconds at the machine's peaks (Williams et al., "Roofline", 2009)."""
        return max(self.operations / peaks.flops_per_s, self.bytes / peaks.read_bytes_per_s)


@dataclass(frozen=True, slots=True)
class StepsProfile:
    """The steps of one kind: PREFILL (with prompt tokens) or DECODE. num_tokens, seconds: of all
    `num_steps`. operations: by time, the longest first."""

    kind: str
    num_steps: int
    num_tokens: int
    seconds: float
    operations: tuple[Operation, ...]

    @property
    def rest_s(self) -> float:
        """Seconds outside of the operations."""
        return max(0.0, self.seconds - sum(one.seconds for one in self.operations))

    def as_dict(self, peaks: Peaks) -> dict[str, Any]:
        """For a report: with rates, shares of the steps' time and bounds."""
        return {
            "kind": self.kind, "num_steps": self.num_steps, "num_tokens": self.num_tokens,
            "step_ms": 1e3 * self.seconds / self.num_steps, "rest_ms": 1e3 * self.rest_s
            / self.num_steps,
            "operations": [
                {
                    **asdict(one), "bytes_per_s": one.bytes_per_s,
                    "operations_per_s": one.operations_per_s,
                    "share": one.seconds / self.seconds,
                    "bound": bound_text(one, peaks), "roof_share": roof_share(one, peaks),
                }
                for one in self.operations
            ],
        }  # fmt: skip


def bound_text(one: Operation, peaks: Peaks) -> str:
    """ "memory" or "compute"."""
    return "compute" if one.is_compute_bound(peaks) else "memory"


def roof_share(one: Operation, peaks: Peaks) -> float:
    """The time at the peaks over the measured one. Above 1 the data was in the CPU's cache."""
    return one.least_s(peaks) / one.seconds if one.seconds else 0.0

"""A profile of steps: time, bytes and operations by operation of the model.

    seconds of the steps
    |<-- qkv projection --|-- attention --|-- gate/up projection --| ... |-- Python and other -->|

Bytes are those that an operation must read and write at least: each weight, key and value once.
Operations: a multiplication, an addition, a division and an exponential count as one each.
"""

from __future__ import annotations

from dataclasses import dataclass

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

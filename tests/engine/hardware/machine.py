"""A machine on which time is told by hand."""

from __future__ import annotations

from engine.hardware.idle_cores import Used


class Machine:
    """Accounts of a machine on which time is told by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.all = self.own = 1000.0
        self.looks = 0

    def pass_(self, seconds: float, others: float, own: float = 1.0) -> None:
        self.now += seconds
        self.all += seconds * (others + own)
        self.own += seconds * own

    def read(self) -> Used:
        self.looks += 1
        return Used(self.all, self.own)

    def clock(self) -> float:
        return self.now

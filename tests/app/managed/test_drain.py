"""A restart waits for requests, and no longer than it should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from app.clients.look import LiveFigures
from app.clients.target import ServerType, Target
from app.managed import drain as drained
from app.managed.drain import drain

HERE = Target("http://127.0.0.1:9")


class Reports:
    """Looks of a server with these requests, (running, waiting) each."""

    closed = 0

    def __init__(self, told: Sequence[tuple[int | None, int | None]]) -> None:
        self._told: Iterator[tuple[int | None, int | None]] = iter(told)

    def __call__(self, *_: object) -> Reports:
        return self

    def look(self) -> LiveFigures:
        running, waiting = next(self._told)
        return LiveFigures(running, waiting)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("told", "limit_s", "left"),
    [
        ([(0, 0)], 9.0, 0),
        ([(2, 1), (1, 0), (0, 1), (0, 0)], 9.0, 0),
        ([(3, 2)], 0.0, 5),  # out of time
        ([(None, None)], 9.0, 0),  # not reported
    ],
)
def test_it_returns_with_the_last_request(
    told: list[tuple[int | None, int | None]], limit_s: float, left: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    reports = Reports(told)
    monkeypatch.setattr(drained, "Looker", reports)
    monkeypatch.setattr(drained, "POLL_S", 0.0)
    assert drain(HERE, ServerType.VLLM, limit_s) == left
    assert reports.closed == 1 and list(reports._told) == []

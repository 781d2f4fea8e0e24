"""`EnginesBench`: measures at the engine that a point names: ours, and servers as their client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.bench.load import Pace, Run
from app.bench.progress import Progress
from app.bench.remote import RemoteBench
from app.bench.runner import Plan
from app.bench.runner import Progress as RequestProgress
from app.bench.sweep import ENGINE, Bench, SweepCancelledError
from app.clients.target import Target
from engine.errors import ConfigError

OWN = "Inferdeck"
"""The name of our engine on the axis."""
AWAY = (
    "Inferdeck has no model loaded while the window uses another engine.",
    "Switch to the local engine, then run again.",
)
"""Cause and remedy."""


class Reached(NamedTuple):
    """A server that answers. model: which of its models; "" for its first."""

    target: Target
    model: str = ""


Reach = Callable[[str], Reached]
"""The server of a name; starts it and waits where necessary. Raises InferdeckError, and
SweepCancelledError."""


@dataclass(slots=True)
class EnginesBench:
    """own: None where our engine has no model. is_over: whether the user cancelled; asked after
    each request. progress: of the requests of a server's run."""

    own: Bench | None
    reach: Reach
    plan: Plan
    tell: Callable[[Progress], None] = lambda progress: None
    is_over: Callable[[], bool] = lambda: False
    progress: RequestProgress = lambda stage, done, total: None
    _last: Progress = field(default_factory=lambda: Progress("", 0, 0, None))
    _servers: dict[Reached, RemoteBench] = field(default_factory=dict)

    def show(self, progress: Progress) -> None:
        """Of the sweep."""
        self._last = progress
        self.tell(progress)

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> Run:  # fmt: skip
        rest = dict(settings)
        bench = self._bench(rest.pop(ENGINE))
        return bench.measure(rest, pace, least, label, limit_s)

    def _bench(self, name: str) -> Bench:
        if name == OWN:
            if self.own is None:
                raise ConfigError(*AWAY)
            return self.own
        self.tell(self._last._replace(label=f"Waiting for {name}"))
        reached = self.reach(name)
        if reached not in self._servers:
            self._servers[reached] = RemoteBench(
                reached.target, self.plan, reached.model, self._check
            )
        self.tell(self._last)
        return self._servers[reached]

    def _check(self, stage: str, done: int, total: int) -> None:
        if self.is_over():
            raise SweepCancelledError
        self.progress(stage, done, total)

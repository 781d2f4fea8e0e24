"""The states of the engine settings since the model was opened, oldest first. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.features.tune.forecast import Forecast
from engine.config import SETTINGS, differences_text
from widgets.live.metric_store import PASSED_S

MOST = 100


@dataclass(slots=True)
class Change:
    """since, at: engine time of its first and last step. text: "Max running requests 16 → 3".
    state: the user's choices from then on that differ from the defaults. result: the measured
    effect in words, "" without one. is_quiet: it has none, and the result before it stays.
    is_lesson: a lesson made or asked for it. forecast: of this change, from before it."""

    since: float
    at: float
    clock: str
    text: str
    state: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    is_quiet: bool = False
    is_lesson: bool = False
    forecast: Forecast | None = None

    @property
    def title(self) -> str:
        return f"Lesson: {self.text}" if self.is_lesson else self.text


Choices = Mapping[str, Any]


class ChangeHistory:
    """Never empty while a model is open: the first entry is its opening."""

    def __init__(self) -> None:
        self.entries: list[Change] = []

    def open(self, at: float, clock: str, text: str, state: Choices) -> None:
        self.entries = [Change(at, at, clock, text, dict(state))]

    def add(
        self,
        at: float,
        clock: str,
        text: str,
        state: Choices,
        *,
        is_quiet: bool = False,
        is_lesson: bool = False,
    ) -> None:
        """The choices are `state` from `at` on. The steps of a lesson are one change, however long
        it stayed at a value in between: it is measured from the lesson's baseline."""
        last, since = self.entries[-1], at
        may_merge = not is_quiet and last is self.latest and last.is_lesson == is_lesson
        if may_merge and (is_lesson or at - last.at < PASSED_S):
            before = self.entries[-2].state
            if differences(before, last.state).keys() == differences(last.state, state).keys():
                self.entries.pop()
                since, text = last.since, differences_text(differences(before, state))
        if text:  # else it went back to the state before
            change = Change(since, at, clock, text, dict(state), "", is_quiet, is_lesson)
            self.entries.append(change)
        if len(self.entries) > MOST:
            del self.entries[1]  # the opening stays

    @property
    def latest(self) -> Change | None:
        """The last change that is not quiet; None before the first."""
        return next((one for one in reversed(self.entries[1:]) if not one.is_quiet), None)

    def keep_forecast(self, forecast: Forecast) -> None:
        """With the latest change, if it is of that one."""
        latest = self.latest
        if latest is None:
            return
        before = self.entries[self.entries.index(latest) - 1]
        made = differences(before.state, latest.state)
        if forecast.changes == {name: value for name, (_, value) in made.items()}:
            latest.forecast = forecast

    def way_back(self, entry: Change) -> dict[str, Any]:
        """The settings that going back to `entry` changes, and their values."""
        found = differences(self.entries[-1].state, entry.state)
        return {name: value for name, (_, value) in found.items()}


def differences(before: Choices, after: Choices) -> dict[str, tuple[Any, Any]]:
    """Values by setting where two sets of choices differ; the default where nothing is chosen."""
    pairs = {
        name: tuple(choices.get(name, SETTINGS[name].default) for choices in (before, after))
        for name in SETTINGS
        if name in before or name in after
    }
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}

"""`Progress`: what a running comparison does now, and how long it still takes, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.features.compare.engines import Switcher
from app.features.compare.record import LEFT, RIGHT, Comparison, Phase
from app.features.compare.sending import SideReplies
from app.features.models.precision import Expected
from engine.units import rough_duration


@dataclass(frozen=True, slots=True)
class Progress:
    """ready: the sides that have an engine. own: the first side of the main engine; next_side: the
    one that it switches to when `own` is done, if any. stays: it does not switch back. expected: of
    a switch to a side; None where none was measured."""

    comparison: Comparison
    phase: Phase
    ready: tuple[int, ...]
    own: int
    next_side: int | None
    stays: bool
    switcher: Switcher
    replies: SideReplies
    expected: Callable[[int], Expected | None]

    @property
    def text(self) -> str:
        seconds = self._time_left_s()
        left = "" if seconds is None else f" · about {rough_duration(max(1.0, seconds))} left"
        return self._phase_text() + left

    def _phase_text(self) -> str:
        comparison, target = self.comparison, self.switcher.target
        match self.phase:
            case Phase.WEIGHING:
                return "Checking whether both sides fit in memory"
            case Phase.LOADING:
                other = RIGHT if self.own == LEFT else LEFT
                return f"Loading {comparison.name_of(other)} in a second engine"
            case Phase.SWITCHING:
                name, is_back = comparison.name_of(target), target == self.switcher.home
                return f"Switching back to {name}" if is_back else f"Switching to {name}"
        asked = [side for side in self.ready if self.replies.is_side_running(side)] or [self.own]
        names = " and ".join(comparison.sides[side].title for side in asked)
        count = len(comparison.pairs)
        done = sum(pair.has_ended(asked[0]) for pair in comparison.pairs)
        return f"Prompt {min(done + 1, count):,} of {count:,} on {names}"

    def _time_left_s(self) -> float | None:
        """For missing replies and switches; None before any reply is complete."""
        replies_s = self.replies.seconds_left(self.comparison.pairs)
        if replies_s is None:
            return None
        return replies_s + sum(map(self._switch_s, self._switches()))

    def _switches(self) -> list[int]:
        """Sides that the main engine still has to switch to, in order."""
        switcher, is_switching = self.switcher, self.phase is Phase.SWITCHING
        at = switcher.target if is_switching else switcher.side
        switches = [at] if is_switching else []
        next_side = self.next_side
        if next_side is not None and at == self.own and self.comparison.has_todo(next_side):
            at = next_side
            switches.append(at)
        return switches if self.stays or at == switcher.home else [*switches, switcher.home]

    def _switch_s(self, side: int) -> float:
        if (expected := self.expected(side)) is not None:
            return expected.seconds
        sides = self.comparison.sides
        return max((s.switch_s for s in sides if s.switch_s is not None), default=0.0)

"""How long a measurement still takes, told from how its stages went so far. No Qt.

    Reference: reading weights | reading the text | measuring speed
    Model:     reading weights | reading the text | measuring speed     takes as long again

Nothing is promised while a kind of work is still to come that was not seen yet.
"""

from __future__ import annotations

from app.quantize.work import Stage
from engine.evaluation.stages import CANDIDATE


class Pace:
    """`last`: the kind of work that each side ends with (what follows its name in a stage)."""

    def __init__(self, last: str, has_reference: bool) -> None:
        self._last, self._has_reference = last, has_reference
        self._began: dict[str, float] = {}  # seconds at which a stage was first seen, in order
        self._expected: dict[str, float] = {}  # seconds that a kind of work took, or will take

    def left(self, stage: Stage, seconds: float) -> float | None:
        """Seconds that are left, `seconds` after the beginning; None where nobody can tell."""
        side, _, kind = stage.text.partition(": ")
        if not kind:
            return None
        self._note(stage.text, seconds)
        spent = seconds - self._began[stage.text]
        rest = self._rest(kind, stage, spent)
        if rest is None:
            return None
        if side == CANDIDATE:
            is_known = self._has_reference or kind == self._last
            return rest + self._later() if is_known else None
        self._expected[kind] = spent + rest
        return rest + sum(self._expected.values()) if kind == self._last else None

    def _later(self) -> float:
        """Of the kinds of work that come after all that the candidate has begun."""
        kinds = list(self._expected)
        begun = [i for i, kind in enumerate(kinds) if f"{CANDIDATE}: {kind}" in self._began]
        return sum(self._expected[kind] for kind in kinds[max(begun, default=-1) + 1 :])

    def _note(self, text: str, seconds: float) -> None:
        """A stage that is seen for the first time ends the one before."""
        if text in self._began:
            return
        if self._began:
            before = next(reversed(self._began))
            side, _, kind = before.partition(": ")
            if side != CANDIDATE:
                self._expected[kind] = seconds - self._began[before]
        self._began[text] = seconds

    def _rest(self, kind: str, stage: Stage, spent: float) -> float | None:
        """Of this stage: by what is done of it, else by how long the other side took."""
        if stage.total and 0 < stage.done <= stage.total:
            return spent / stage.done * (stage.total - stage.done)
        expected = self._expected.get(kind)
        return None if expected is None else max(0.0, expected - spent)

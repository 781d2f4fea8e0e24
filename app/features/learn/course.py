"""`Course`: the state machine of a lesson. No Qt.

    OFF --start--> BASELINE --enough samples--> MOVE --applied--> MEASURING --decided--> RESULT
                                                 | ^                  |                    ^
                                          chosen v | discarded        v                    |
                                                APPLY             EVALUATING --evaluated---+

Only a lesson that changes the precision evaluates: without load, since both would slow each other.
`leave` and `fail` end it anywhere: the load stops, and the settings from before are put back, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from app.features.learn.lessons import LESSONS, Lesson, Step
from app.features.tune.verdict import LEAST, LONGEST_S, State, Verdict, reach_text


class Stage(Enum):
    OFF = auto()
    BASELINE = auto()
    MOVE = auto()
    APPLY = auto()  # the value is chosen and waits for Apply
    MEASURING = auto()
    EVALUATING = auto()  # the quality
    RESULT = auto()
    FAILED = auto()


class Do(Enum):
    """What the owner of a course has to do."""

    SET_UP = auto()  # remember the settings, apply the step's `setup`
    START_LOAD = auto()
    STOP_LOAD = auto()
    EVALUATE = auto()  # then call `evaluated`
    STOP_EVALUATION = auto()
    PUT_BACK = auto()  # the settings from before SET_UP


class Course:
    """Every method returns what to do now, in order."""

    def __init__(self) -> None:
        self.stage = Stage.OFF
        self.lesson: Lesson = LESSONS[0]
        self.step: Step = LESSONS[0].steps[0]
        self.result = ""
        self.quality = ""
        self.progress = ""

    @property
    def is_on(self) -> bool:
        return self.stage is not Stage.OFF

    @property
    def needs_load(self) -> bool:
        return self.stage in (Stage.BASELINE, Stage.MOVE, Stage.APPLY, Stage.MEASURING)

    @property
    def number(self) -> int:
        """1 to 3."""
        return LESSONS.index(self.lesson) + 1

    @property
    def following(self) -> Lesson | None:
        return LESSONS[self.number] if self.number < len(LESSONS) else None

    def start(self, lesson: Lesson, step: Step) -> list[Do]:
        done = self._end(Stage.BASELINE)
        self.lesson, self.step = lesson, step
        self.result = self.quality = self.progress = ""
        return [*done, Do.SET_UP, Do.START_LOAD]

    def baseline(self, verdicts: Sequence[Verdict]) -> list[Do]:
        """The samples so far, as the range before a change."""
        if self.stage is Stage.BASELINE:
            count = self._count({v.key: v.before.count for v in verdicts})
            if count >= LEAST:
                self.stage, self.progress = Stage.MOVE, ""
        return []

    def chosen(self, is_pending: bool) -> list[Do]:
        """Whether the step's setting waits for Apply."""
        if self.stage in (Stage.MOVE, Stage.APPLY):
            self.stage = Stage.APPLY if is_pending else Stage.MOVE
        return []

    def applied(self) -> list[Do]:
        """The step's setting took effect with the step's value."""
        if self.stage in (Stage.MOVE, Stage.APPLY):
            self.stage = Stage.MEASURING
        return []

    def measured(
        self, verdicts: Sequence[Verdict], seconds: float, beside: str = "", is_over: bool = False
    ) -> list[Do]:
        """Before and after the change, `seconds` of the headline's range after it. Ends with that
        range, decided or not; or when it `is_over`, which a pause or another mark may have made
        shorter. beside: as for `tell`."""
        if self.stage is not Stage.MEASURING:
            return []
        wanted = [v for v in verdicts if v.key in self.lesson.wanted]
        count = self._count({v.key: v.after.count for v in verdicts})
        if count >= LEAST:
            self.progress = reach_text(seconds)
        is_decided = bool(wanted) and all(
            v.state in (State.CHANGED, State.NO_CHANGE) for v in wanted
        )
        if not is_decided and seconds < LONGEST_S and not is_over:
            return []
        evaluates = self.lesson.evaluates
        self.stage = Stage.EVALUATING if evaluates else Stage.RESULT
        self.tell(verdicts, beside)
        return [Do.STOP_LOAD, *([Do.EVALUATE] if evaluates else [])]

    def evaluated(self, quality: str) -> list[Do]:
        """quality: the measured loss in a sentence, or why it is not measured."""
        if self.stage is Stage.EVALUATING:
            self.stage, self.quality = Stage.RESULT, quality
        return []

    def tell(self, verdicts: Sequence[Verdict], beside: str = "") -> None:
        """The result in a sentence, the lesson's metrics first. beside: another result."""
        if self.stage in (Stage.EVALUATING, Stage.RESULT):
            wanted = self.lesson.wanted
            ordered = sorted(verdicts, key=lambda verdict: verdict.key not in wanted)
            claims = [v.words for v in ordered if v.state is State.CHANGED]
            same = [v.name for v in ordered if v.key in wanted and v.state is State.NO_CHANGE]
            if same:
                claims.append(f"no clear change in {' and '.join(same)}")
            claims += [v.words for v in ordered if v.key in wanted and v.state is State.UNCERTAIN]
            words = ", ".join(filter(None, [*(claims or ["not enough data"]), beside]))
            self.result = f"{words[:1].upper()}{words[1:]}."

    def fail(self, why: str) -> list[Do]:
        if self.stage in (Stage.OFF, Stage.FAILED):
            return []
        done = self._end(Stage.FAILED)
        self.result = why
        return done

    def leave(self) -> list[Do]:
        return self._end(Stage.OFF)

    def _count(self, counts: Mapping[str, int]) -> int:
        """Observations of the lesson's metric with the fewest; shows them."""
        key = min(self.lesson.wanted, key=lambda key: counts.get(key, 0))
        count = counts.get(key, 0)
        # one that waits through the change ends after it, and is a sample of neither side
        requests = "new requests" if self.stage is Stage.MEASURING else "requests"
        unit = requests if key == "ttft" else "seconds"
        self.progress = f"{min(count, LEAST)} of {LEAST} {unit}"
        return count

    def _end(self, stage: Stage) -> list[Do]:
        done = [Do.STOP_LOAD] if self.needs_load else []
        done += [Do.STOP_EVALUATION] if self.stage is Stage.EVALUATING else []
        done += [Do.PUT_BACK] if self.stage not in (Stage.OFF, Stage.FAILED) else []
        self.stage = stage
        return done

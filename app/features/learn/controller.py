"""`Lessons`: runs a lesson on the window's load and settings; commands and the offer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QWidget

from app.features.learn.callout import DONE, Callout
from app.features.learn.cards import LessonOffer, LessonPlace, Words
from app.features.learn.course import Course, Do, Stage
from app.features.learn.lessons import LESSONS, Lesson, Step
from app.features.learn.quality import plan_of, quality_text
from app.features.quantize.run import Run
from app.features.quantize.work import Outcome
from app.features.runs.jobs import Jobs
from app.features.tune.comparison import REACH_S
from app.features.tune.engine_settings import EngineSettingsPanel
from app.features.tune.page import TunePage
from app.link.bridge import EngineBridge, EngineState
from app.window.commands import Command
from app.window.progress import WorkArea
from app.window.settings_store import SettingsStore
from engine import messages
from engine.units import bytes_text
from widgets.controls.text import with_keys

LOOK_MS = 500
OFFERED = "lessons-offered"
"""Flag of the settings store: the offer was answered."""


class Lessons(QObject):
    def __init__(
        self,
        bridge: EngineBridge,
        tune: TunePage,
        panel: EngineSettingsPanel,
        settings: SettingsStore,
        window: QWidget,
        show_tune: Callable[[], object],
        remember: Callable[[dict[str, Any]], object],
        jobs: Jobs,
        area: WorkArea,
        clear: Sequence[QWidget] = (),
    ) -> None:
        """`show_tune`: brings the Tune page and the settings to the front. `remember`: stores the
        model's settings for the next start. `jobs`: evaluate. `area`: above every page.
        `clear`: outside the page; the callout covers none of them."""
        super().__init__(window)
        self._bridge, self._tune, self._panel = bridge, tune, panel
        self._settings, self._show_tune, self._remember = settings, show_tune, remember
        self._jobs = jobs
        self._evaluation: Run | None = None
        self.course = Course()
        clear = *clear, tune.load_bar, tune.result, tune.charts, panel.pending
        self.callout = Callout(window, self.go_on, self.leave, clear)
        self._place = LessonPlace(self.callout, tune, area, self.go_back, self.leave)
        self.offer = LessonOffer(self.start_first, self.dismiss_offer)
        if settings.flag(OFFERED, False):
            self.offer.hide()
        self._refused: Lesson | None = None  # starts when settings can be changed
        self._load_waits = False  # for the step's setup
        self._chosen_before: dict[str, Any] = {}
        self._sizes_before = (0, 0)
        self._over_at = 0.0  # the measurement after the change
        self._owes = False  # the settings from before the lesson
        self._look = QTimer(self, interval=LOOK_MS)
        self._look.timeout.connect(self._on_look)
        panel.commands.changed.connect(self._on_changed)
        panel.commands.refreshed.connect(self._start_load)
        bridge.reconfigure_failed.connect(self._on_refused)
        panel.actions_changed.connect(self._on_choice)
        bridge.state_changed.connect(self._on_state)
        bridge.lock_changed.connect(self._put_back)
        jobs.ended.connect(self._on_evaluated)

    def commands(self) -> list[Command]:
        return [
            Command(
                f"learn.{lesson.key}", f"Lesson {number}: {lesson.title}",
                partial(self.start, lesson), "Help", section="help", submenu="Lessons",
                why_not=lambda: self._bridge.locked or self._panel.commands.unreported,
            )
            for number, lesson in enumerate(LESSONS, 1)
        ]  # fmt: skip

    def dismiss_offer(self) -> None:
        self._settings.set_flag(OFFERED, True)
        self.offer.hide()

    # What the user does -------------------------------------------------------------------------

    def start_first(self) -> None:
        self.start(LESSONS[0])

    def start(self, lesson: Lesson) -> None:
        self.dismiss_offer()
        self._show_tune()
        if not self._panel.commands.may_change:
            reason = self._bridge.locked or (
                f"{self._panel.commands.why_not} The lesson starts then."
            )
            self._refused = None if self._bridge.locked else lesson
            self.callout.point_at(None)
            self._do(self.course.leave())
            self._place.say(Words("Lessons", lesson.title, reason))
            return
        self._refused = None
        self._do(self.course.start(lesson, self._step_of(lesson)))
        self._look.start()
        self._show()

    def _step_of(self, lesson: Lesson) -> Step:
        """The first step that the model supports and that changes something."""
        commands, applied = self._panel.commands, self._panel.model.applied
        for step in lesson.steps:
            begins_with = step.setup.get(step.setting, getattr(applied, step.setting))
            is_new = begins_with != step.value
            if is_new and not commands.refusal_of(step.setting, step.value):
                return step
        return lesson.steps[-1]

    def go_on(self) -> None:
        """The main button: do the step, skip the evaluation, the next lesson, or the end."""
        course = self.course
        if course.stage in (Stage.MOVE, Stage.APPLY):
            self._panel.commands.change({course.step.setting: course.step.value})
        elif course.stage is Stage.EVALUATING:
            self._stop_evaluation()
        elif course.stage is Stage.RESULT and course.following is not None:
            self.start(course.following)
        else:
            self.leave()

    def leave(self) -> None:
        self._refused = None
        self._do(self.course.leave())
        self._look.stop()
        self._place.clear()
        if self._place.is_here:
            self._tune.setFocus()

    def go_back(self) -> None:
        """To the lesson, from another page."""
        self._show_tune()
        if self.course.is_on:
            self._point()

    def close(self) -> None:
        """The window closes: the next start has the user's settings, not the lesson's."""
        if self.course.is_on:
            before = dict(self._chosen_before)
            self.leave()
            self._remember(before)

    # What the course asks for -------------------------------------------------------------------

    def _do(self, asked: list[Do]) -> None:
        commands, load = self._panel.commands, self._tune.load
        for one in asked:
            match one:
                case Do.SET_UP:
                    load.stop()  # one that the user started
                    commands.discard()
                    if Do.PUT_BACK not in asked:  # else these are being put back
                        self._chosen_before = dict(self._panel.model.chosen)
                    self._tune.result.begin_lesson()
                    commands.restore({**self._chosen_before, **self._setup})
                case Do.START_LOAD:
                    self._load_waits = True
                    self._start_load()
                case Do.STOP_LOAD:
                    self._load_waits = False
                    load.stop()
                case Do.EVALUATE:
                    self._evaluate()
                case Do.STOP_EVALUATION:
                    self._stop_evaluation()
                case Do.PUT_BACK:
                    self._tune.result.end_lesson(self._chosen_before)
                    self._owes = True
                    self._put_back()
                    if self._owes:
                        self._remember(dict(self._chosen_before))  # for the next start

    def _put_back(self) -> None:
        """The user's settings, as soon as none of a benchmark's are measured."""
        if self._owes and not self._bridge.locked:
            self._owes = False
            self._panel.commands.restore(self._chosen_before)

    def _start_load(self) -> None:
        """Once the setup took effect: a request from before is no sample of it."""
        if self._load_waits and not self._panel.model.sent:
            self._load_waits = False
            self._tune.load.start(self.course.lesson.plan)

    @property
    def _setup(self) -> dict[str, Any]:
        """Of the step. A lesson changes one thing: at Apply, an automatic KV cache would grow by
        what the weights give back, and automatic limits be measured anew."""
        plan, applied = self._bridge.plan, self._panel.model.applied
        setup = dict(self.course.step.setup)
        if self.course.lesson.evaluates and plan is not None and applied is not None:
            setup["kv_cache_memory_bytes"] = plan.cache_bytes_in_all
            setup["max_num_batched_tokens"] = applied.max_num_batched_tokens
        return setup

    def _evaluate(self) -> None:
        config = self._panel.model.applied
        if self._jobs.run is not None or config is None:
            self._do(self.course.evaluated("Quality not measured: another job is running."))
            return
        self._jobs.evaluate(plan_of(config, self._chosen_before))
        self._evaluation = self._jobs.run

    def _stop_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluation.cancel()

    # What happens -------------------------------------------------------------------------------

    def _on_look(self) -> None:
        course, load = self.course, self._tune.load
        before = course.stage
        if course.needs_load and not load.is_on and not self._load_waits:
            problem = load.problem
            why = f"{problem.cause} {problem.remedy}" if problem else "The load was stopped."
            self._do(course.fail(why))
        if course.stage is Stage.BASELINE:
            course.baseline(self._tune.result.so_far())
            self._sizes_before = self._sizes
        elif course.stage is Stage.MEASURING:
            result = self._tune.result
            result.refresh()
            resized, is_over = self._resized(), time.monotonic() > self._over_at
            self._do(course.measured(result.verdicts, result.seconds, resized, is_over))
        elif course.stage in (Stage.EVALUATING, Stage.RESULT):
            # the last samples: as the page shows it
            course.tell(self._tune.result.verdicts, self._resized())
        self._tune.result.is_setup = course.stage is Stage.BASELINE
        self._show(is_new=course.stage is not before)

    @property
    def _applied_value(self) -> Any:
        """Of the step's setting; None without a model."""
        return getattr(self._panel.model.applied, self.course.step.setting, None)

    @property
    def _sizes(self) -> tuple[int, int]:
        """Bytes of the weights and of the KV cache."""
        model, plan = self._bridge.model, self._bridge.plan
        return (model.weights_bytes if model else 0), (plan.cache_bytes_in_all if plan else 0)

    def _resized(self) -> str:
        """What the change gave another size: of a KV cache, more than the rest of a block."""
        looks = self._sizes_before, self._sizes
        texts = ([bytes_text(size) for size in sizes] for sizes in looks)
        return ", ".join(
            f"{name} {before} → {after}"
            for name, before, after in zip(("weights", "KV cache"), *texts, strict=True)
            if before != after
        )

    def _on_changed(self, text: str, details: object, chosen: object) -> None:
        """A slider passes other values on its way."""
        course = self.course
        if course.stage in (Stage.MOVE, Stage.APPLY) and self._applied_value == course.step.value:
            self._do(course.applied())
            self._over_at = time.monotonic() + REACH_S + LOOK_MS / 1e3
            self._show()

    def _on_refused(self, event: messages.ReconfigureFailed) -> None:
        if self.course.stage is Stage.BASELINE:  # the setup
            self._do(self.course.fail(f"{event.error.cause} {event.error.remedy}".rstrip()))
            self._show()

    def _on_evaluated(self, run: Run, outcome: Outcome) -> None:
        if run is self._evaluation:
            self._evaluation = None
            self._do(self.course.evaluated(quality_text(outcome)))
            self._show()

    def _on_choice(self) -> None:
        if self._refused is not None and self._panel.commands.may_change:
            self.start(self._refused)
        before = self.course.stage
        self.course.chosen(self._panel.model.is_pending(self.course.step.setting))
        if self.course.stage is not before:
            self._show()

    def _on_state(self, state: EngineState) -> None:
        self._owes = self._owes and state is EngineState.READY
        if self.course.is_on and state is not EngineState.READY:
            self._do(self.course.fail("The model was closed."))
            self._show()

    # Showing ------------------------------------------------------------------------------------

    def _show(self, is_new: bool = True) -> None:
        """`is_new`: the stage changed, so the control may be another."""
        course, lesson = self.course, self.course.lesson
        if not course.is_on:
            return
        why, next_text, progress = "", "", course.progress or "starting"
        is_sent = any(course.step.setting in sent.changes for sent in self._panel.model.sent)
        match course.stage:
            case Stage.BASELINE:
                text = f"{lesson.intro} Measuring before the change: {progress}."
            case Stage.MOVE | Stage.APPLY if is_sent:
                text = "Applying the change. Requests pause and resume."
            case Stage.MOVE:
                text, next_text = course.step.ask, "&Do it for me"
            case Stage.APPLY:
                text, next_text = f"{with_keys('Press Apply', 'tune.apply')}.", "&Do it for me"
            case Stage.MEASURING:
                text = f"Measuring after the change: {progress}."
            case Stage.EVALUATING:
                stage = self._evaluation.figures().stage if self._evaluation is not None else ""
                text = f"{course.result} Now the cost: measuring the quality."
                why, next_text = stage, "&Skip"
            case Stage.RESULT:
                text, why = f"{course.result} {course.quality}".rstrip(), lesson.why
                next_text = "&Next lesson" if course.following is not None else DONE
            case _:
                text, next_text = course.result, DONE
        head = f"Lesson {course.number} of {len(LESSONS)}"
        self._place.say(Words(head, lesson.title, text, why, next_text))
        if is_new and self._place.is_here:
            self._point()

    def _point(self) -> None:
        stage, row = self.course.stage, self._panel.rows[self.course.step.setting]
        if stage is Stage.APPLY:
            self.callout.point_at(self._panel.pending.apply, row)
            return
        is_result = stage in (Stage.MEASURING, Stage.EVALUATING, Stage.RESULT)
        self.callout.point_at(self._tune.result if is_result else row, row)
        if stage in (Stage.BASELINE, Stage.MOVE):
            self._panel.show_row(self.course.step.setting)
        elif stage in (Stage.RESULT, Stage.FAILED):
            self.callout.next.setFocus()

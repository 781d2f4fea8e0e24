"""The lessons in the real window, over a scripted engine thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.learn.controller import OFFERED, Lessons
from app.features.learn.course import Stage
from app.features.quantize.evaluation import EvaluationPlan
from app.features.quantize.work import Progress
from app.features.tune.result_bar import HINT as RESULT_HINT
from app.main.application import Application
from engine.errors import ErrorInfo, InferdeckError
from engine.evaluate.report import EvaluationReport
from engine.evaluate.task import EvaluationCancelled
from engine.messages import ReconfigureFailed
from tests.app.fakes import FakeEngineThread, Script
from tests.app.features.learn.test_course import verdicts
from tests.app.window_fixtures import next_run
from tests.engine.evaluate.reports import make_report
from tests.figures import numbers
from tests.tiers import first_fast


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script(step_s=0.002)))
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=5000):
        made.session.open("/models/tiny")
    yield made
    made.shutdown()


@pytest.fixture
def lessons(application: Application) -> Lessons:
    return application.lessons


def begin(qtbot: QtBot, application: Application, key: str = "queue") -> None:
    """Start a lesson and skip to its task."""
    application.window.commands.run(f"learn.{key}")
    course, load = application.lessons.course, application.pages.tune.load
    setup = course.step.setup
    qtbot.waitUntil(
        lambda: load.is_on
        and all(getattr(application.bridge.config, n) == v for n, v in setup.items())
    )
    application.lessons._on_look()
    course.baseline(verdicts(20, 0))
    application.lessons._on_look()
    assert course.stage is Stage.MOVE


def test_a_lesson_points_at_its_row_and_puts_all_back(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    row = application.engine_settings.rows["max_num_seqs"]
    begin(qtbot, application)
    assert application.window.page.name == "Tune" and lessons.callout.isVisible()
    bar = application.pages.tune.load_bar
    assert numbers(bar.lesson.text())[0] == lessons.course.lesson.in_flight
    assert bar.lesson.isVisible() and bar.concurrency.isHidden() and bar.workload.isHidden()
    assert lessons.callout._target is row and row.isAncestorOf(QApplication.focusWidget())
    assert not lessons.callout.geometry().intersects(
        row.rect().translated(row.mapTo(application.window, row.rect().topLeft()))
    )
    assert lessons.callout.ring.isVisible()
    assert lessons.callout.ring.geometry().contains(row.mapTo(application.window, QPoint()))
    for value, stage in ((4, Stage.MOVE), (2, Stage.MEASURING)):  # passes 4 on its way
        with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
            row.control.field.setValue(value)
        qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == value)  # noqa: B023
        assert lessons.course.stage is stage
    assert lessons.callout._target is application.pages.tune.result
    lessons._do(lessons.course.measured(verdicts(20, 20, 5.0), 1.0))
    lessons._show()
    assert not application.pages.tune.load.is_on and lessons.callout.next.hasFocus()
    assert bar.lesson.isHidden() and bar.concurrency.isVisible() and bar.workload.isVisible()
    change = numbers(application.pages.tune.result.text)[:2]
    lessons.callout.leave.click()
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 16)
    assert not lessons.callout.isVisible() and not lessons.course.is_on
    assert not lessons.callout.ring.isVisible()
    assert numbers(application.pages.tune.result.text)[:2] == change and change[1] == 2


@pytest.mark.slow
def test_enter_goes_on_to_the_next_lesson(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    begin(qtbot, application)
    lessons.callout.next.click()
    qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
    lessons._do(lessons.course.measured(verdicts(20, 20, 5.0), 1.0))
    lessons._show()
    qtbot.keyClick(lessons.callout.next, Qt.Key.Key_Return)
    assert lessons.course.number == 2
    lessons.leave()


def test_tab_leads_from_the_control_to_the_card(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    """Not to a control that the card covers."""
    begin(qtbot, application)
    callout, field = lessons.callout, application.engine_settings.rows["max_num_seqs"].control.field
    assert field.hasFocus()
    for expected in (callout.leave, callout.next):
        qtbot.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
        assert expected.hasFocus()
    callout.leave.setFocus()
    qtbot.keyClick(callout.leave, Qt.Key.Key_Return)
    assert not lessons.course.is_on


@pytest.mark.slow
def test_the_history_tells_a_lessons_changes_from_the_users(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    result, row = application.pages.tune.result, application.engine_settings.rows
    row["max_num_seqs"].control.field.setValue(12)
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 12)
    begin(qtbot, application)
    assert result.text == RESULT_HINT  # the setup measures nothing
    assert [one.is_lesson for one in result.changes.entries] == [False, False, True]
    lessons.callout.next.click()
    qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
    latest = result.changes.latest
    assert latest is not None and latest.is_lesson and result.text.startswith(latest.title)
    lessons.leave()
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 12)
    assert [one.is_lesson for one in result.changes.entries][-3:] == [True, True, True]
    row["max_num_seqs"].control.field.setValue(9)
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 9)
    assert not result.changes.entries[-1].is_lesson


@pytest.mark.slow
def test_an_earlier_result_is_not_shown_as_that_of_a_lesson(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    page, row = application.pages.tune, application.engine_settings.rows["max_num_seqs"]
    result, view = page.result, page.comparison
    result.figures.setChecked(True)
    row.control.field.setValue(12)
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 12)
    earlier = result.text
    assert earlier != RESULT_HINT and view.ranges is not None

    def is_clear() -> bool:
        hidden = view.table.isHidden() and view.brief.isHidden()
        return result.text == RESULT_HINT and not result.verdicts and not result.detail.text() and (
            view.ranges is None and hidden and not result.keep.isEnabled()
        )  # fmt: skip

    application.window.commands.run("learn.queue")
    assert lessons.course.stage is Stage.BASELINE and is_clear()
    lessons.leave()
    assert result.text == earlier and view.ranges is not None
    for _ in range(2):  # the second time, the earlier result is a lesson's
        begin(qtbot, application)
        assert is_clear()
        lessons.callout.next.click()
        qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
        assert result.text != RESULT_HINT and view.ranges is not None
    lessons.leave()
    assert result.text != RESULT_HINT


@pytest.mark.slow
def test_the_callout_can_be_dragged_and_stays_in_the_window(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    begin(qtbot, application)
    callout, middle = lessons.callout, application.window.rect().center()
    qtbot.mousePress(callout, Qt.MouseButton.LeftButton, pos=QPoint(40, 8))
    qtbot.mouseMove(callout, callout.mapFrom(application.window, middle))
    callout._place()
    assert callout.pos() == middle - QPoint(40, 8)
    qtbot.mouseMove(callout, QPoint(5000, 5000))
    assert application.window.rect().contains(callout.geometry())
    lessons.leave()


@pytest.mark.parametrize("is_in_callout", first_fast(1, (True, False)))
def test_escape_leaves_in_the_middle(
    qtbot: QtBot, application: Application, lessons: Lessons, is_in_callout: bool
) -> None:
    begin(qtbot, application)
    with qtbot.waitActive(application.window):
        application.window.activateWindow()
    lessons.callout.next.click()
    qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
    slider = application.engine_settings.rows["max_num_seqs"].control
    focused = lessons.callout.leave if is_in_callout else slider
    qtbot.keyClick(focused, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not lessons.course.is_on)
    assert not application.pages.tune.load.is_on
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 16)


@pytest.mark.slow
def test_a_setting_that_needs_apply_leads_on_to_apply(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    begin(qtbot, application, "bits")
    panel, step = application.engine_settings, lessons.course.step
    panel.choose(step.setting, step.value)
    assert lessons.course.stage is Stage.APPLY
    assert lessons.callout._target is panel.pending.apply
    panel.pending.discard.click()
    assert lessons.course.stage is Stage.MOVE
    lessons.callout.next.click()  # does it
    qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
    application.pages.tune.load.stop()  # by the user: nothing is left to measure
    lessons._on_look()
    assert lessons.course.stage is Stage.FAILED
    lessons.leave()


@pytest.mark.parametrize(
    "way", first_fast(1, ("report", "skip", "cancel on the Runs page", "leave", "error"))
)
def test_the_lesson_on_precision_evaluates_it(
    qtbot: QtBot,
    application: Application,
    lessons: Lessons,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    jobs, plans, may_end = application.pages.runs.jobs, list[EvaluationPlan](), Event()
    made = make_report()

    def evaluating(plan: EvaluationPlan) -> Callable[[Progress], EvaluationReport]:
        plans.append(plan)

        def work(progress: Progress) -> EvaluationReport:
            while not may_end.wait(0.005):
                if progress.is_cancelled():
                    raise EvaluationCancelled("cancelled")
            if way == "error":
                raise InferdeckError("No memory.", "Close a program.")
            return made

        return work

    monkeypatch.setattr("app.features.quantize.run.evaluating", evaluating)
    begin(qtbot, application, "bits")
    lessons.callout.next.click()
    qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
    lessons._do(lessons.course.measured(verdicts(20, 20, 0.5), 1.0))
    lessons._show()
    assert lessons.course.stage is Stage.EVALUATING and not application.pages.tune.load.is_on
    (plan,) = plans
    candidate, reference = plan.configs()
    assert reference is not None
    assert (candidate.quantization, reference.quantization) == ("int4", "auto")
    match way:
        case "skip":
            lessons.callout.next.click()
        case "cancel on the Runs page":
            jobs.cancel()
        case "leave":
            lessons.callout.leave.click()
        case _:
            may_end.set()
    qtbot.waitUntil(lambda: jobs.run is None)
    if way == "leave":
        assert not lessons.course.is_on
        qtbot.waitUntil(lambda: application.bridge.config.quantization == "auto")
        return
    assert lessons.course.stage is Stage.RESULT
    shown = numbers(lessons.callout.text)
    assert made.divergence is not None
    is_shown = round(100 * made.divergence.top1_agreement, 1) in shown
    assert is_shown == (way == "report")
    assert ("No memory." in lessons.callout.text) == (way == "error")
    assert lessons.callout.leave.isHidden()  # Done does the same
    lessons.callout.next.click()
    assert not lessons.course.is_on


@pytest.mark.slow
def test_a_kv_cache_of_another_size_is_told_beside_the_weights(
    application: Application, lessons: Lessons, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(18 * 2**20, 270 * 2**20), (7 * 2**20, 281 * 2**20)]
    lessons._sizes_before = sizes[0]
    monkeypatch.setattr(Lessons, "_sizes", property(lambda self: sizes[-1]))
    assert numbers(lessons._resized())[:4] == [18, 7, 270, 281]
    sizes.append((sizes[0][0], sizes[0][1] - 2**10))  # the rest of a block
    assert lessons._resized() == ""


@pytest.mark.slow
def test_the_lesson_on_precision_changes_nothing_else(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    plan, kept = application.bridge.plan, lambda: application.bridge.config.kv_cache_memory_bytes
    assert plan is not None and kept() is None
    chosen = lambda: application.engine_settings.model.chosen.get("max_num_batched_tokens")
    before = application.bridge.config.max_num_batched_tokens
    assert before and chosen() is None
    begin(qtbot, application, "bits")
    qtbot.waitUntil(lambda: kept() == plan.kv_cache)
    lessons.callout.next.click()
    qtbot.waitUntil(lambda: lessons.course.stage is Stage.MEASURING)
    assert application.bridge.config.quantization == "int4" and kept() == plan.kv_cache
    assert chosen() == before  # not measured anew
    lessons.leave()
    qtbot.waitUntil(lambda: kept() is None and chosen() is None)


def test_the_offer_is_shown_until_it_is_answered(
    qtbot: QtBot, qapp: QApplication, application: Application, lessons: Lessons
) -> None:
    application.window.show_page_named("Chat")
    assert lessons.offer.isVisible()
    lessons.offer.dismiss.click()
    assert not lessons.offer.isVisible() and application.settings.flag(OFFERED, False)
    application.shutdown()
    with next_run(qapp) as again:
        assert again.lessons.offer.isHidden()


def test_a_window_that_closes_in_a_lesson_remembers_the_settings_from_before(
    qtbot: QtBot, application: Application
) -> None:
    begin(qtbot, application)
    assert application.settings.recent[0].settings == {"max_num_seqs": 8}
    application.window.close()
    assert application.settings.recent[0].settings == {}


@pytest.mark.slow
def test_a_lesson_on_another_page_is_a_row_that_leads_back(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    begin(qtbot, application)
    window, callout, work = application.window, lessons.callout, application.work
    for page in ("Chat", "Runs"):
        window.show_page_named(page)
        assert not callout.isVisible() and not callout.ring.isVisible()
        (row,) = work.works
        assert callout.text == row.stage and lessons.course.is_on
    window.show_page_named("Tune")
    assert callout.isVisible() and not work.works
    window.show_page_named("Chat")
    lessons._on_look()
    assert not callout.isVisible()
    work.row("lesson").buttons[0].click()
    row_of = application.engine_settings.rows[lessons.course.step.setting]
    assert window.page.name == "Tune" and callout.isVisible() and not work.works
    assert row_of.isAncestorOf(QApplication.focusWidget())
    window.show_page_named("Models")
    work.row("lesson").buttons[1].click()
    assert not work.works and not lessons.course.is_on and window.page.name == "Models"
    qtbot.waitUntil(lambda: application.bridge.config.max_num_seqs == 16)


@pytest.mark.slow
def test_the_load_starts_once_the_setup_took_effect(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    """Requests from before would be completed, and samples of no side."""
    seen = list[tuple[int, bool]]()
    load = application.pages.tune.load
    load.changed.connect(lambda: seen.append((application.bridge.config.max_num_seqs, load.is_on)))
    application.window.commands.run("learn.queue")
    assert not load.is_on
    lessons._on_look()  # a load that is still to start is no failure
    assert lessons.course.stage is Stage.BASELINE
    qtbot.waitUntil(lambda: load.is_on)
    assert next(limit for limit, is_on in seen if is_on) == 8
    lessons.leave()


def test_a_refused_setup_ends_the_lesson_with_the_reason(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    application.window.commands.run("learn.queue")
    error = ErrorInfo("Batch of 8 refused.", "Choose 4.")
    refused = ReconfigureFailed(application.bridge.config, error)
    application.bridge.reconfigure_failed.emit(refused)
    assert lessons.course.stage is Stage.FAILED and not application.pages.tune.load.is_on
    assert numbers(lessons.callout.text) == [8, 4]


def test_every_lesson_is_in_the_help_menu(application: Application) -> None:
    commands = application.window.commands
    ids = [c.id for c in application.lessons.commands()]
    assert len(ids) == 3 and all(commands.action(one).isEnabled() for one in ids)


@pytest.mark.slow
def test_a_lesson_asked_for_during_a_load_starts_when_the_model_is_ready(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    application.session.open("/models/other")
    application.window.commands.run("learn.queue")
    assert lessons.callout.isVisible() and not lessons.course.is_on
    assert "The lesson starts then." in lessons.callout.text
    qtbot.waitUntil(lambda: lessons.course.is_on, timeout=5000)
    assert lessons.course.number == 1


@pytest.mark.slow
def test_a_lesson_that_was_left_during_a_load_does_not_start(
    qtbot: QtBot, application: Application, lessons: Lessons
) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open("/models/other")
        lessons.start_first()
        lessons.leave()
    qtbot.wait(50)
    assert not lessons.course.is_on and not lessons.callout.isVisible()

"""The Quantize page in the real window: a model is made, measured, and its report kept."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QMessageBox, QRadioButton, QScrollArea
from pytestqt.qtbot import QtBot

from app.cli.main import main
from app.features.quantize.evaluate_form import AGAINST, SAME
from app.features.quantize.evaluation import EvaluationPlan, ModelChoice
from app.features.quantize.texts import TextChoice
from app.features.quantize.work import Progress
from app.features.runs.page import RunsPage
from app.features.runs.table import EMPTY
from app.main.application import Application
from app.paths import starter_model
from app.storage.run_records import Kind, State
from engine.evaluate import PROMPT_LINES
from tests.app.features.runs.conftest import choose_starter, wait_for_end
from tests.app.window_fixtures import next_run
from tests.tiers import first_fast, tiered

STARTER = str(starter_model())


def measure(qtbot: QtBot, page: RunsPage, text: Path, **settings: Any) -> None:
    """The starter model at another precision against itself."""
    plan = EvaluationPlan(ModelChoice(STARTER, settings), text=TextChoice("", str(text)),
                          max_tokens=150, measure_speed=False)  # fmt: skip
    page.show_form(Kind.EVALUATE)
    page.evaluating.form.show_plan(plan)
    assert page.evaluating.panel.start.isEnabled()
    page.evaluating.panel.start.click()
    wait_for_end(qtbot, page)
    assert page.evaluating.panel.error.text() == ""


def models_dir(tmp_path: Path) -> Path:
    return tmp_path / "data" / "models"


# A whole run -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_whole_run_with_a_text_ends_in_a_report(
    qtbot: QtBot, page: RunsPage, tmp_path: Path, short_text: Path
) -> None:
    choose_starter(qtbot, page, "awq", short_text)
    recipe = page.quantizing.form
    assert recipe.text_size is not None and recipe.text_size.num_tokens == 4 * 64
    assert recipe.measured.note
    output = Path(recipe.plan.output)
    assert output == models_dir(tmp_path) / "starter-AWQ-4bit-g128"
    rows: list[int] = []
    page.run_moved.connect(lambda: rows.append(len(page.detail.run_view.layers.rows)))
    page.quantizing.panel.start.click()
    assert page.run is not None and page.detail.run_view.isVisible()
    assert not page.quantizing.panel.start.isEnabled()
    wait_for_end(qtbot, page)
    assert page.quantizing.panel.error.text() == ""
    assert len(set(rows)) > 2  # layer by layer
    config = json.loads((output / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq"
    assert page.detail.report.isVisible() and page.detail.report.verdict.text()
    assert [run.kind for run in page.table.runs] == [Kind.EVALUATE, Kind.QUANTIZE]
    assert page.detail.report.stored is not None
    report = page.detail.report.stored.report
    assert report.divergence is not None and report.divergence.similarity is not None
    shown = page.detail.report.layers.rows
    assert len(shown) == 8 and all(row.rounding is not None for row in shown)
    worst = page.detail.report.worst.labels
    assert worst and "background-color" in worst[0].text()


def test_what_was_made_is_known_afterwards(
    qtbot: QtBot, application: Application, page: RunsPage, short_text: Path
) -> None:
    choose_starter(qtbot, page, "int8", short_text)
    page.quantizing.form.measure.setChecked(False)
    output = page.quantizing.form.plan.output
    page.quantizing.panel.start.click()
    wait_for_end(qtbot, page)
    assert page.detail.made.isVisible() and len(page.detail.made.layers.rows) == 8
    assert application.settings.quantize_rates.keys() == {"int8"}
    assert page.quantizing.form.plan.output != output  # the next one gets another name
    qtbot.waitUntil(lambda: page.quantizing.form.fields.source.findData(output) > 0, timeout=5000)
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000) as loaded:
        page.detail.made.open.click()
    assert loaded.args is not None and loaded.args[0].config.model == output
    assert application.window.page_index == 0
    # it is quantized now: not to be quantized again
    application.window.show_widget(page)
    page.quantizing.form.fields.source.choose(output)
    qtbot.waitUntil(lambda: bool(page.quantizing.form.problems), timeout=30_000)
    assert page.quantizing.form.fields.by_name["source"].has_problem
    assert not page.quantizing.panel.start.isEnabled()


@pytest.mark.slow
def test_no_form_is_cut_at_its_side(
    qtbot: QtBot, application: Application, page: RunsPage
) -> None:
    for width in (1600, 1000, 760):
        application.window.resize(width, 640)
        for kind, panel in (
            (Kind.QUANTIZE, page.quantizing.panel), (Kind.EVALUATE, page.evaluating.panel),
        ):  # fmt: skip
            page.show_form(kind)
            area = panel.findChild(QScrollArea)
            fits = lambda a=area: a.widget().width() <= a.viewport().width()
            qtbot.waitUntil(fits, timeout=5000)


# Ways out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", first_fast(1, [
    "Reading the model", "Rounding", "Writing", "Reference: reading the text",
]))  # fmt: skip
def test_cancel_leaves_nothing_half_made(
    qtbot: QtBot, page: RunsPage, tmp_path: Path, short_text: Path, stage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tell = Progress.at

    def cancel_at(progress: Progress, text: str, done: int, total: int) -> None:
        tell(progress, text, done, total)
        if text.startswith(stage):
            progress.cancel()

    monkeypatch.setattr(Progress, "at", cancel_at)
    choose_starter(qtbot, page, "int8", short_text)
    page.quantizing.panel.start.click()
    wait_for_end(qtbot, page)
    assert page.toast.text()
    there = [entry.name for entry in models_dir(tmp_path).glob("*")]
    assert there == (["starter-int8"] if stage.startswith("Reference") else [])
    assert [run.kind for run in page.table.runs] == ([Kind.QUANTIZE] if there else [])
    assert page.quantizing.panel.error.text() == ""
    assert page.quantizing.panel.start.isEnabled()


@pytest.mark.slow
def test_escape_cancels_a_calibration(
    qtbot: QtBot, page: RunsPage, tmp_path: Path, short_text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    add = Progress.add_layer

    def add_and_wait(progress: Progress, layer: Any) -> None:
        add(progress, layer)
        progress._stop.wait(120)  # it does not end before Escape comes

    monkeypatch.setattr(Progress, "add_layer", add_and_wait)
    choose_starter(qtbot, page, "gptq", short_text)
    page.quantizing.panel.start.click()
    qtbot.waitUntil(lambda: page.run is None or len(page.run.layers) > 0, timeout=60_000)
    assert page.window().focusWidget() is page.detail.run_view.cancel
    qtbot.keyClick(page.detail.run_view.cancel, Qt.Key.Key_Escape)
    wait_for_end(qtbot, page)
    assert list(models_dir(tmp_path).glob("*")) == []
    assert page.toast.text()


def test_a_disk_that_is_full_is_said_where_it_began(
    qtbot: QtBot, page: RunsPage, tmp_path: Path, short_text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def full(run: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("engine.quantize.layer_by_layer.LayerByLayer.copy_rest", full)
    choose_starter(qtbot, page, "int8", short_text)
    page.quantizing.panel.start.click()
    wait_for_end(qtbot, page)
    assert "disk is full" in page.quantizing.panel.error.text()
    assert list(models_dir(tmp_path).glob("*")) == []
    (failed,) = page.table.selection
    assert failed.state is State.FAILED and "disk is full" in failed.cause
    assert failed.cause in page.detail.stored.verdict.text() and page.detail.stored.isVisible()
    page.detail.stored.again.click()
    assert page.quantizing.panel.error.isVisible()


@pytest.mark.slow
def test_a_source_that_went_away_is_said(
    qtbot: QtBot, page: RunsPage, tmp_path: Path, short_text: Path
) -> None:
    choose_starter(qtbot, page, "int8", short_text)
    copied = tmp_path / "a model with a rather long name that somebody chose one day"
    shutil.copytree(starter_model(), copied)
    page.quantizing.form.fields.source.choose(str(copied))
    qtbot.waitUntil(lambda: page.quantizing.form.can_start, timeout=60_000)
    shutil.rmtree(copied)
    page.quantizing.panel.start.click()
    wait_for_end(qtbot, page)
    assert "does not exist" in page.quantizing.panel.error.text()
    page.quantizing.form.fields.source.choose("")
    page.quantizing.form.fields.source.choose(str(copied))
    qtbot.waitUntil(lambda: bool(page.quantizing.form.problems), timeout=30_000)
    source = page.quantizing.form.fields.by_name["source"]
    assert "does not exist" in source.note.replace("\u200b", "")


@pytest.mark.slow
@pytest.mark.parametrize(("content", "words"), tiered([
    (b"", "is empty"), (b"a\0b", "is not a text"), (b"Too short.", "256"),
], [(b"a\0b", "is not a text")]))  # fmt: skip
def test_a_text_that_will_not_do_is_said_at_once(
    qtbot: QtBot, page: RunsPage, short_text: Path, content: bytes, words: str
) -> None:
    choose_starter(qtbot, page, "awq", short_text)
    short_text.write_bytes(content)
    page.quantizing.form.fields.text.choose(TextChoice("", str(short_text)))
    field = page.quantizing.form.fields.by_name["text"]
    qtbot.waitUntil(lambda: field.has_problem, timeout=30_000)
    assert words in field.note and not page.quantizing.panel.start.isEnabled()
    page.quantizing.form.findChild(QRadioButton, "rtn").click()  # reads no text
    page.show_form(Kind.QUANTIZE)
    assert page.quantizing.panel.start.isEnabled() and not field.isVisible()


def test_closing_the_window_in_mid_run_asks(
    qtbot: QtBot, application: Application, page: RunsPage, short_text: Path
) -> None:
    choose_starter(qtbot, page, "awq", short_text)
    page.quantizing.start()
    assert not application.window.close() and application.window.isVisible()
    asked = page.leaving.dialog
    assert asked is not None and asked.isVisible()
    asked.defaultButton().click()
    assert page.run is not None and not page.run.is_cancelling and page.leaving.dialog is None
    assert not application.window.close()
    assert page.leaving.dialog is not None
    leave = QMessageBox.ButtonRole.AcceptRole
    dialog = page.leaving.dialog
    next(b for b in dialog.buttons() if dialog.buttonRole(b) is leave).click()
    assert not application.window.isVisible()
    wait_for_end(qtbot, page)


@pytest.mark.slow
def test_other_pages_see_how_far_it_is(
    qtbot: QtBot, application: Application, page: RunsPage, short_text: Path
) -> None:
    choose_starter(qtbot, page, "awq", short_text)
    page.quantizing.start()
    work = application.work
    assert work.works == []  # the page itself shows it
    application.window.show_page(0)
    qtbot.waitUntil(lambda: len(work.works) == 1, timeout=5000)
    assert work.works[0].key == "quantize"
    assert "Demo model" in work.works[0].title and "AWQ" in work.works[0].title
    work.row("quantize").buttons[1].click()
    wait_for_end(qtbot, page)
    assert work.works == []


# Reports ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report_is_the_command_lines_to_the_digit(
    qtbot: QtBot, page: RunsPage, short_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(qtbot, page, short_text, quantization="int8")
    stored = page.detail.report.stored
    assert stored is not None
    page.detail.report.copy.click()
    command = QGuiApplication.clipboard().text()
    assert page.detail.report.made.commands == (command,)
    capsys.readouterr()
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    from engine.evaluate import to_json

    shown = json.loads(json.dumps(to_json(stored.report)))
    for changing in ("created", "duration_s", "machine"):
        del shown[changing], printed[changing]
    assert shown == printed


@pytest.mark.slow
def test_reports_are_there_after_a_restart_compared_exported_deleted(
    qapp: QApplication, qtbot: QtBot, application: Application, page: RunsPage,
    short_text: Path, tmp_path: Path,
) -> None:  # fmt: skip
    measure(qtbot, page, short_text, quantization="int8")
    measure(qtbot, page, short_text, kv_cache_dtype="int8")
    application.shutdown()
    with next_run(qapp) as again:
        again.show()
        page = again.pages.runs
        again.window.show_widget(page)
        page.show_table()
        qtbot.waitUntil(lambda: len(page.table.runs) == 2, timeout=5000)
        newest, oldest = page.table.runs
        assert newest.title == "Demo model, FP32, KV INT8"
        page.table.choose(oldest.id)
        shown, difference = page.detail.report, page.detail.difference
        qtbot.waitUntil(shown.isVisible)
        assert shown.stored == page.book.report(oldest)
        assert shown.figures.cells[0][0] == "Perplexity"
        # side by side: the oldest is the baseline
        page.table.choose(newest.id, oldest.id)
        qtbot.waitUntil(difference.isVisible)
        assert difference.found is not None
        assert difference.found.titles == (oldest.title, newest.title)
        assert difference.table.cells[0][0] == "Perplexity" and difference.verdict.text()
        # exported
        reports = [page.book.report(run) for run in (newest, oldest)]
        for suffix in ("json", "csv", "md"):
            file = tmp_path / f"both.{suffix}"
            page.book.export_reports(reports, file)
            qtbot.waitUntil(lambda file=file: str(file) in page.toast.text())
            assert file.stat().st_size > 100
        page.book.export_reports(reports[:1], tmp_path / "no" / "x.json")
        qtbot.waitUntil(lambda: "x.json" in page.toast.text())
        # renamed, deleted, and back
        page.table.choose(oldest.id)
        page.table.renamed.emit(oldest, "The old one")
        qtbot.waitUntil(lambda: shown.title.text() == "The old one")
        page.table.view.setFocus()
        qtbot.keyClick(page.table.view, Qt.Key.Key_Delete)
        assert [run.id for run in page.table.runs] == [newest.id]
        page.toast.act()
        assert len(page.table.runs) == 2
        page.book.delete([newest, oldest])
        (page.book._reports.folder / newest.id).mkdir()
        page.toast.act()  # one has no place to go back to: the other comes back all the same
        assert [run.id for run in page.table.runs] == [oldest.id]
        page.book.delete([oldest])
        page.toast.dismiss()
        assert not page.table.runs


def test_the_same_against_itself_says_what_is_measured(qtbot: QtBot, page: RunsPage) -> None:
    page.show_form(Kind.EVALUATE)
    assert not page.evaluating.panel.start.isEnabled()
    page.evaluating.form.candidate.model.choose(STARTER)
    assert page.evaluating.form.reference.line.note == SAME
    page.evaluating.form.layout().activate()
    place = page.evaluating.form.prompts_field.y()
    page.evaluating.form.candidate.settings["quantization"].setCurrentIndex(2)
    assert page.evaluating.form.reference.line.note == AGAINST
    page.evaluating.form.layout().activate()
    assert page.evaluating.form.prompts_field.y() == place
    for asked in (page.evaluating.form.prompts, page.evaluating.form.browse):
        assert asked.toolTip() == PROMPT_LINES
    page.evaluating.form.prompts.setText("/nowhere/prompts.jsonl")
    page.evaluating.form.prompts.editingFinished.emit()
    assert page.evaluating.form.prompts_field.has_problem
    assert not page.evaluating.panel.start.isEnabled()


@pytest.mark.slow
def test_every_control_has_a_name_and_the_keyboard_reaches_it(
    qtbot: QtBot, application: Application, page: RunsPage
) -> None:
    from PySide6.QtWidgets import QAbstractButton, QAbstractSpinBox, QComboBox, QLineEdit

    kinds = (QAbstractButton, QComboBox, QAbstractSpinBox, QLineEdit)
    for kind in kinds:
        for control in page.findChildren(kind):
            if page.toast.isAncestorOf(control):  # has no text until it says something
                continue
            inner = control.objectName().startswith("qt_")
            named = control.accessibleName() or getattr(control, "text", str)() or inner
            assert named, control
            assert (
                inner
                or control.focusPolicy() != Qt.FocusPolicy.NoFocus
                or (isinstance(control, QAbstractButton))
            ), control
    assert application.window.commands.action("page.runs").shortcut().toString() == "Ctrl+6"
    application.window.show_page(0)
    application.window.commands.run("quantize.reports")
    assert page.table.isVisible()
    assert page.table.hint.text() == EMPTY
    application.window.commands.run("quantize.make")
    assert page.quantizing.panel.isVisible()


@pytest.mark.slow
def test_a_form_has_the_whole_page(
    qtbot: QtBot, application: Application, page: RunsPage
) -> None:
    window = application.window
    window.resize(900, 620)
    qtbot.waitUntil(lambda: window.width() == 900)
    page.show_form(Kind.QUANTIZE)
    panel = page.quantizing.panel
    qtbot.waitUntil(lambda: panel.height() > 0.7 * page.height())
    qtbot.keyClick(panel, Qt.Key.Key_Escape)
    assert page.table.isVisible()

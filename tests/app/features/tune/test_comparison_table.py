"""No figure of the comparison is cut: it would be read as another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.features.tune import comparison_table
from app.features.tune.comparison_table import CompareTable
from app.main.application import Application
from tests.app.fakes import Script
from tests.app.window_fixtures import application, set_text, usual_text  # noqa: F401
from tests.tiers import first_fast
from widgets.theme.fonts import text_scale
from widgets.theme.restyling import restyling
from widgets.theme.theme import apply_text_size

OPENS = "/models/tiny"
LONG = ("1,474", "12,734", "+1,055 %", "12,600", "15,734", "+25 %", "1,234,567", "909,096")
SHORT = ("4", "7", "–", "–", "–", "–", "0", "1")


@pytest.fixture
def script() -> Script:
    return Script(step_s=0.002)


@pytest.fixture
def table(qtbot: QtBot) -> Iterator[CompareTable]:
    holder = QWidget()
    qtbot.addWidget(holder)
    holder.resize(1440, 400)
    made = CompareTable(holder)
    holder.show()
    yield made


def fill(table: CompareTable, texts: tuple[str, ...]) -> None:
    for cells in table.cells.values():
        for cell, text in zip(cells, texts, strict=True):
            cell.setText(text)


def labels(table: CompareTable) -> list[QLabel]:
    return [one for one in table.findChildren(QLabel) if not one.isHidden()]


def cut(table: CompareTable) -> list[str]:
    """The texts that are not wholly seen."""
    return [
        one.text()
        for one in labels(table)
        if one.contentsRect().width() < one.fontMetrics().horizontalAdvance(one.text())
        or one.contentsRect().height() < one.fontMetrics().height()
        or not table.rect().contains(one.geometry())
    ]


@pytest.mark.parametrize("percent", (90, 100, 140, 160))
@pytest.mark.parametrize("texts", (LONG, SHORT))
def test_groups_that_do_not_fit_are_hidden_and_no_text_is_cut(
    qtbot: QtBot, qapp: QApplication, table: CompareTable, texts: tuple[str, ...], percent: int
) -> None:
    apply_text_size(qapp, percent)
    qtbot.waitUntil(lambda: text_scale() == percent / 100 and not restyling().is_busy)
    fill(table, texts)
    shown = []
    for width in range(160, 1440, 40):
        fits = table.fit(width)
        table.resize(width, table.sizeHint().height())
        QApplication.sendPostedEvents()
        shown.append(table.num_shown)
        assert fits == (table.num_shown > 0)
        assert not fits or not cut(table)
    assert shown == sorted(shown) and {0, 1, 2, 3} == set(shown)


def test_a_longer_figure_needs_more_room(table: CompareTable) -> None:
    fill(table, SHORT)
    width = next(w for w in range(1000) if table.fit(w) and table.num_shown == 3)
    fill(table, LONG)
    assert table.fit(width) and table.num_shown < 3
    fill(table, SHORT)
    assert table.fit(width) and table.num_shown == 3


@pytest.mark.parametrize(
    ("size", "percent"),
    first_fast(1, [((1000, 640), 160), ((1000, 640), 140), ((1280, 800), 130)]),
)
def test_large_text_in_a_small_window_cuts_no_figure(
    qtbot: QtBot,
    application: Application,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    percent: int,
) -> None:
    monkeypatch.setattr(comparison_table, "values_of", lambda row: LONG)
    application.window.show_page(1)
    application.window.resize(*size)
    set_text(qtbot, application, percent)
    page = application.pages.tune
    view = page.comparison
    page.result.figures.setChecked(True)
    row = application.engine_settings.rows["max_num_seqs"]
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        row.control.field.setValue(4)
    view.refresh()
    qtbot.waitUntil(lambda: not (view.table.isHidden() and view.brief.isHidden()))
    QApplication.sendPostedEvents()
    assert page.rect().contains(view.geometry())
    assert view.table.isHidden() != view.brief.isHidden()
    if view.brief.isHidden():
        assert view.table.num_shown and not cut(view.table)
    else:
        assert view.brief.height() >= view.brief.heightForWidth(view.brief.width())

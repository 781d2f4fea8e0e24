"""A Tune page that is too low for its parts: their texts are whole, the charts give way."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from app.features.tune.comparison import TimeRange
from app.features.tune.page import LEAST_CHARTS
from app.features.tune.result_bar import ResultBar
from app.main.application import Application
from tests.app.cuts import expect_whole
from tests.app.window_fixtures import application, script, set_text, usual_text
from widgets.theme.fonts import scaled

__all__ = ["application", "script", "usual_text"]  # fixtures

OPENS = "/models/tiny"
HEADLINE = (
    "<b>Max running requests 16 → 4: TTFT p50 0.113 → 9.19 s (81× longer), mean throughput "
    "631 → 321 tok/s (−49 %), ITL about −35 %, not certain</b>"
)
DETAIL = "99 % confidence · 24 → 38 requests completed in 12.3 s → 14.2 s"


def is_whole(result: ResultBar) -> bool:
    lines = (result._line, result.detail)
    return all(line.height() >= line.heightForWidth(line.width()) for line in lines)


def test_the_headline_is_whole_beside_the_figures(
    qtbot: QtBot, application: Application
) -> None:
    window, page = application.window, application.pages.tune
    window.resize(1000, 640)
    set_text(qtbot, application, 160)
    window.show_widget(page)
    page.result.figures.setChecked(True)
    page.result._line.setText(HEADLINE)
    page.result.detail.setText(DETAIL)
    page.result.detail.show()
    page.comparison.ranges = (TimeRange(0, 1), TimeRange(1, 2))
    page.comparison.brief.setText(DETAIL * 2)
    page.comparison.fit()
    qtbot.waitUntil(lambda: is_whole(page.result) and page.charts.isHidden())
    page.result.figures.setChecked(False)
    qtbot.waitUntil(lambda: is_whole(page.result) and page.charts.isVisible())
    page.result.figures.setChecked(True)
    window.resize(1600, 1000)
    set_text(qtbot, application, 100)
    qtbot.waitUntil(page.charts.isVisible)


def test_a_long_result_is_whole_in_the_smallest_window(
    qtbot: QtBot, application: Application
) -> None:
    """The page scrolls; the charts are not a sliver at its end."""
    window, page = application.window, application.pages.tune
    window.resize(1000, 640)
    set_text(qtbot, application, 160)
    window.show_widget(page)
    page.result._line.setText(HEADLINE)
    page.result.detail.setText(DETAIL * 4)
    page.result.detail.show()
    expect_whole(qtbot, page)
    assert page.charts.height() > 0.9 * scaled(LEAST_CHARTS)
    page.result.detail.hide()
    window.resize(1600, 1000)
    set_text(qtbot, application, 100)
    bottom = lambda: page.charts.mapTo(page, page.charts.rect().bottomLeft()).y()
    qtbot.waitUntil(lambda: bottom() == page.height() - 1)  # no scrolling in a large window

"""The fraction of a job, known or not."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from widgets.controls.progress_bar import ProgressBar


def test_an_unknown_fraction_moves_only_while_visible(qtbot: QtBot) -> None:
    bar = ProgressBar()
    qtbot.addWidget(bar)
    bar.show_fraction(None)
    is_moving = lambda: bar.maximum() == 0
    assert not is_moving() and not bar.property("busy")
    bar.show()
    assert is_moving() and bar.property("busy")
    bar.hide()
    assert not is_moving()
    bar.show()
    bar.show_fraction(0.25)
    assert not is_moving() and not bar.property("busy")
    assert bar.value() == bar.maximum() / 4

"""Legends: in one line as far as they fit, or all in several lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from widgets.controls.layouts import STRETCH, label, vbox
from widgets.controls.swatches import Swatch, Swatches, of

TEXTS = st.lists(st.text("abc", min_size=1, max_size=20), min_size=1, max_size=8)


@given(TEXTS, st.integers(1, 400))
def test_a_legend_that_wraps_drops_nothing(
    qapp: QApplication, texts: list[str], width: int
) -> None:
    swatches = [Swatch(text, of("decode")) for text in texts]
    wrapped, single = Swatches(swatches, wraps=True), Swatches(swatches)
    assert [one for line in wrapped._lines(width) for one in line] == swatches
    assert wrapped.heightForWidth(width) >= wrapped.sizeHint().height()
    assert wrapped.heightForWidth(wrapped.sizeHint().width()) == wrapped.sizeHint().height()
    (line,) = single._lines(width)
    assert line == swatches[: len(line)] and (not line or line[-1].width <= width)


def test_a_layout_gives_a_legend_that_wraps_all_of_its_lines(qtbot: QtBot) -> None:
    legend, column = Swatches((), wraps=True), QWidget()
    vbox(label("above"), legend, label("below"), STRETCH, of=column)
    qtbot.addWidget(column)
    column.resize(200, 300)
    column.show()
    for names in (("queued, continued, no step", "decode", "slow step"), ("decode",)):
        legend.set_swatches([Swatch(name, of("decode")) for name in names])
        qtbot.waitUntil(lambda: legend.height() == legend.heightForWidth(legend.width()))
    assert len(legend._lines(legend.width())) == 1

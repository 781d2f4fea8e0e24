"""A whole as a bar of its parts."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from widgets.plot.parts_bar import BAR_HEIGHT, Part, PartsBar
from widgets.theme.theme import apply_theme, load_theme

PARTS = (
    Part("Weights", "weights", 0.5, ("1.19 GiB", "50 %"), "read in every step"),
    Part("A part with a name that is far too long for its row", "kv_used", 0.25, ("9", "25 %")),
    Part("Nothing", "other", 0.0, ("0", "0 %")),
    Part("Sum", "", 0.75, ("2", "75 %")),
)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_parts_have_their_share_of_the_bar(qapp: QApplication, qtbot: QtBot, mode: str) -> None:
    apply_theme(qapp, mode)  # type: ignore[arg-type]
    bar = PartsBar("Time", ("ms", "share"))
    qtbot.addWidget(bar)
    bar.resize(400, bar.sizeHint().height())
    bar.show()
    bar.show_parts(PARTS)
    image, table = bar.grab().toImage(), load_theme(mode)  # type: ignore[arg-type]
    colors = [image.pixelColor(x, BAR_HEIGHT // 2).name() for x in (5, 190, 210, 290, 310, 395)]
    weights, kv = table.value("weights"), table.value("kv_used")
    assert colors == [weights, weights, kv, kv, table.pressed, table.pressed]


def test_everything_is_said_in_words(qtbot: QtBot) -> None:
    bar = PartsBar("Time", ("ms", "share"))
    qtbot.addWidget(bar)
    bar.show_parts(PARTS[:1])
    assert bar.accessibleDescription() == "Weights ms 1.19 GiB share 50 %"
    assert bar.toolTip() == "Weights: read in every step"
    bar.show_parts([])
    bar.grab()
    assert bar.accessibleDescription() == ""


def test_more_rows_take_more_room_and_keep_it(qtbot: QtBot) -> None:
    bar = PartsBar("Time")
    qtbot.addWidget(bar)
    bar.show_parts(PARTS[:2])
    small = bar.sizeHint().height()
    bar.show_parts(PARTS)
    large = bar.sizeHint().height()
    assert large > small
    bar.show_parts(PARTS[:2])
    assert bar.sizeHint().height() == large  # what stands below does not jump

"""A label that wraps keeps a number and its unit on one line."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from widgets.controls.layouts import Label, centered, label, wrapped


@pytest.mark.parametrize("make", [label, lambda text: wrapped("", text), centered])
def test_a_label_says_what_was_set_and_shows_it_unbroken(qtbot: QtBot, make: type[Label]) -> None:
    shown = make("weights 412 MiB")
    qtbot.addWidget(shown)
    for text in ("weights 412 MiB", "in 81 s", ""):
        shown.setText(text)
        assert shown.text() == text
        assert QLabel.text(shown) == text.replace("2 M", "2\u00a0M").replace("1 s", "1\u00a0s")

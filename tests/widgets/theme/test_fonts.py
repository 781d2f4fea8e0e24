"""The fonts that ship with the program."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QFont, QFontInfo
from PySide6.QtWidgets import QApplication

from widgets.theme.fonts import figure_font, has_tabular_digits, mono_font, ui_font


@pytest.mark.parametrize("weight", [QFont.Weight.Normal, QFont.Weight.DemiBold, QFont.Weight.Bold])
def test_the_interface_is_set_in_inter(qapp: QApplication, weight: QFont.Weight) -> None:
    font = ui_font("body", weight)
    assert QFontInfo(font).family() == "Inter"
    assert QFontInfo(font).weight() == weight


def test_code_is_set_in_jetbrains_mono(qapp: QApplication) -> None:
    info = QFontInfo(mono_font())
    assert info.family() == "JetBrains Mono" and info.fixedPitch()


@pytest.mark.parametrize("role", ["small", "body", "large"])
def test_changing_numbers_have_equally_wide_digits(qapp: QApplication, role: str) -> None:
    font = figure_font(role)  # type: ignore[arg-type]
    assert has_tabular_digits(font)
    assert QFontInfo(font).family() == "Inter"

"""Boxes of choices that take little room: named above, and as narrow as their column."""

from __future__ import annotations

from PySide6.QtWidgets import QComboBox, QLabel, QVBoxLayout

from widgets.elided_combo import ElidedCombo

_LETTERS = 8


def named_box(name: str, tip: str) -> QComboBox:
    """`name`: for those who cannot see where it stands."""
    box = ElidedCombo()
    box.setAccessibleName(name)
    box.setToolTip(tip)
    box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    box.setMinimumContentsLength(_LETTERS)
    return box


def under_its_name(name: str, box: QComboBox) -> QVBoxLayout:
    """The box below what it chooses."""
    label = QLabel(name)
    label.setProperty("role", "small")
    label.setBuddy(box)
    column = QVBoxLayout()
    column.setSpacing(1)
    column.addWidget(label)
    column.addWidget(box)
    return column

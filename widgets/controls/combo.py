"""`ElidedCombo`, and disabled entries with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPaintEvent, QStandardItemModel
from PySide6.QtWidgets import QComboBox, QStyle, QStyleOptionComboBox, QStylePainter

from widgets.controls.text import wrapped_tip

_REFUSAL = Qt.ItemDataRole.UserRole + 1


def describe_items(box: QComboBox, choices: Sequence[tuple[Any, str, str]]) -> None:
    """Describe entries of `box`: (data, text, why it cannot be chosen or ""). Refused entries are
    disabled and have the reason as tooltip. Other entries stay as they are."""
    model = box.model()
    assert isinstance(model, QStandardItemModel)
    for value, text, refusal in choices:
        index = box.findData(value)
        if index >= 0:
            box.setItemText(index, text)
            box.setItemData(index, refusal, _REFUSAL)
            box.setItemData(index, wrapped_tip(refusal or text), Qt.ItemDataRole.ToolTipRole)
            model.item(index).setEnabled(not refusal)


def described_items(box: QComboBox) -> list[tuple[Any, str, str]]:
    """The current (data, text, reason) of every entry."""
    return [
        (box.itemData(index), box.itemText(index), box.itemData(index, _REFUSAL) or "")
        for index in range(box.count())
    ]


_PADDING = 2
"""Horizontal space of the style around the text. The style's size hint does not include it: with
some fonts even the widest entry would be cut."""


class ElidedCombo(QComboBox):
    """A combo box with an ellipsis: the stylesheet's style clips long text in the middle of a
    letter."""

    def sizeHint(self) -> QSize:
        return super().sizeHint() + QSize(_PADDING, 0)

    def minimumSizeHint(self) -> QSize:
        return super().minimumSizeHint() + QSize(_PADDING, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, option = QStylePainter(self), self._option()
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def _option(self) -> QStyleOptionComboBox:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        field = self.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox, option,
            QStyle.SubControl.SC_ComboBoxEditField, self,
        )  # fmt: skip
        room = field.width() - _PADDING
        if not option.currentIcon.isNull():
            room -= option.iconSize.width() + _PADDING
        option.currentText = self.fontMetrics().elidedText(
            option.currentText, Qt.TextElideMode.ElideRight, room
        )
        return option

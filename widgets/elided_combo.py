"""`ElidedCombo`: a choice that says with an ellipsis that it has more to say than has room."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QComboBox, QStyle, QStyleOptionComboBox, QStylePainter

_BEFORE_TEXT = 1
"""Pixels that a style keeps of the field before the text. (The one it keeps behind is not drawn on
by the last letter; at a choice's own width some fonts need it, and the text is whole.)"""

_AFTER_ICON = 4
"""Pixels that a style, and the width a choice asks for, add to an icon."""


class ElidedCombo(QComboBox):
    """The style sheet's style cuts a text that is too long in the middle of a letter."""

    def shown_text(self) -> str:
        """What of the text can be read."""
        return self._option().currentText

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
        room = field.width() - _BEFORE_TEXT
        if not option.currentIcon.isNull():
            room -= option.iconSize.width() + _AFTER_ICON
        option.currentText = self.fontMetrics().elidedText(
            option.currentText, Qt.TextElideMode.ElideRight, room
        )
        return option

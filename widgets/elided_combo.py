"""`ElidedCombo`: a choice that says with an ellipsis that it has more to say than has room."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QComboBox, QStyle, QStyleOptionComboBox, QStylePainter

_PADDING = 2
"""What a style keeps of the field around the text, both sides together. The width that a choice
asks for has no room for it: with some fonts its own text would be too long for it."""


class ElidedCombo(QComboBox):
    """The style sheet's style cuts a text that is too long in the middle of a letter."""

    def shown_text(self) -> str:
        """What of the text can be read."""
        return self._option().currentText

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

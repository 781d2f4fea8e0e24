"""`ChatPanes`: the list of chats beside the conversation, or in its place where it is narrow."""

from __future__ import annotations

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QSplitter, QWidget

from widgets.controls.buttons import IconButton
from widgets.controls.layouts import STRETCH, dressed, hbox, vbox
from widgets.controls.text import set_key_tip
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, theme_notifier

LIST_WIDTH = 216
CONVERSATION_WIDTH = 320
"""Least width of the conversation beside the list, at the default text size."""


class ChatPanes(QWidget):
    """The list beside the conversation; in a narrow window one of them at a time. `list_wanted` is
    the user's choice for a wide window; `changed`: another pane is shown, or the choice changed."""

    changed = Signal()
    new_wanted = Signal()

    def __init__(self, conversations: QWidget, conversation: QWidget) -> None:
        super().__init__()
        self.list_wanted = True
        self.is_list_shown = True
        self.is_narrow = False
        """Whether list and conversation do not fit side by side."""
        self._is_list_in_front = False
        self._list_width = LIST_WIDTH
        self._list, self._conversation = _panel(conversations), _panel(conversation)
        self._splitter = QSplitter(handleWidth=SPACE_2, childrenCollapsible=False)
        self._splitter.addWidget(self._list)
        self._splitter.addWidget(self._conversation)
        self._splitter.setStretchFactor(1, 1)
        self._splitter.setSizes([LIST_WIDTH, 4 * LIST_WIDTH])
        self._splitter.splitterMoved.connect(self._keep_width)
        self.strip = self._make_strip()
        hbox(self.strip, (self._splitter, 1), of=self)
        theme_notifier().changed.connect(self._fit)
        self._show_panes()

    def _make_strip(self) -> QFrame:
        self.list_button = IconButton("sidebar", "Chat list", self.toggle)
        set_key_tip(self.list_button, "Chat list", "chat.list")
        new = IconButton("plus", "New chat", self.new_wanted.emit)
        set_key_tip(new, "New chat", "chat.new")
        strip = dressed(QFrame(), panel=True)
        margins = (SPACE_1, SPACE_2, SPACE_1, SPACE_2)
        vbox(self.list_button, new, STRETCH, of=strip, spacing=SPACE_1, margins=margins)
        return strip

    def toggle(self) -> None:
        """Show or hide the list. In a narrow window that is temporary, not a choice."""
        if self.is_narrow:
            self._is_list_in_front = not self._is_list_in_front
        else:
            self.list_wanted = not self.list_wanted
        self._show_panes()

    def show_list(self) -> None:
        if not self.is_list_shown:
            self.toggle()

    def show_conversation(self) -> None:
        """Hide the list where it covers the conversation."""
        if self._is_list_in_front:
            self._is_list_in_front = False
            self._show_panes()

    def minimumSizeHint(self) -> QSize:
        """Of the conversation alone: the list can be hidden."""
        least = self._conversation.minimumSizeHint()
        return QSize(self.strip.sizeHint().width() + SPACE_2 + least.width(), least.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        beside = scaled(CONVERSATION_WIDTH)
        least = self._list.minimumSizeHint().width() + SPACE_2 + beside
        if (self.width() < least) is not self.is_narrow:
            self.is_narrow, self._is_list_in_front = self.width() < least, False
            self._show_panes()

    def _show_panes(self) -> None:
        self.is_list_shown = self._is_list_in_front if self.is_narrow else self.list_wanted
        self.strip.setVisible(self.is_narrow)
        self._list.setVisible(self.is_list_shown)
        self._conversation.setVisible(not self._is_list_in_front)
        if not self.is_narrow:
            rest = max(1, self.width() - self._list_width - SPACE_2)
            self._splitter.setSizes([self._list_width, rest])
        self.changed.emit()

    def _keep_width(self, position: int) -> None:
        self._list_width = position


def _panel(inside: QWidget) -> QFrame:
    frame = dressed(QFrame(), panel=True)
    vbox(inside, of=frame)
    return frame

"""`ChatPanes`: the list of chats, the conversation and the inspector; the outer two fold by
themselves.

window   1280 and more      1000 to 1280         less
         list | chat | insp    list | chat          strip | chat
         a folded pane that is opened for a moment lies beside the conversation, else in its place
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QSplitter, QWidget

from widgets.controls.buttons import IconButton
from widgets.controls.layouts import STRETCH, dressed, hbox, vbox
from widgets.controls.text import set_key_tip
from widgets.theme.fonts import scaled, text_scale
from widgets.theme.restyling import restyling
from widgets.theme.theme import SPACE_1, SPACE_2

LIST_WIDTH, INSPECTOR_WIDTH = 216, 312
AROUND = 96
"""Pixels of the window beside the panes: the rail and the margins."""
ALL_FROM, LIST_FROM = 1280 - AROUND, 1000 - AROUND
"""Least widths for all panes, and for list and conversation, at the default text size."""
CONVERSATION_WIDTH = 320
"""Least width of the conversation beside an opened pane, at the default text size."""

Front = Literal["", "list", "inspector"]
"""A folded pane that is open for a moment."""


class Shown(NamedTuple):
    list: bool
    conversation: bool
    inspector: bool


class Folding(NamedTuple):
    """Which panes fit. `width`: in pixels at the default text size; `*_wanted`: the user's choice
    where there is room."""

    width: float
    list_wanted: bool = True
    inspector_wanted: bool = True
    front: Front = ""

    @property
    def folds_list(self) -> bool:
        return self.width < LIST_FROM

    @property
    def folds_inspector(self) -> bool:
        return self.width < ALL_FROM

    @property
    def shown(self) -> Shown:
        inspector = self.inspector_wanted and not self.folds_inspector
        if self.front == "inspector" and self.folds_inspector:
            has_room = self.width >= CONVERSATION_WIDTH + SPACE_2 + INSPECTOR_WIDTH
            return Shown(False, has_room, True)
        if self.front == "list" and self.folds_list:
            return Shown(True, self.width >= CONVERSATION_WIDTH + SPACE_2 + LIST_WIDTH, inspector)
        return Shown(self.list_wanted and not self.folds_list, True, inspector)


class ChatPanes(QWidget):
    """`changed`: another pane is shown, or the user's choice has changed."""

    changed = Signal()
    new_wanted = Signal()

    def __init__(self, conversations: QWidget, conversation: QWidget, inspector: QWidget) -> None:
        super().__init__()
        self.list_wanted = self.inspector_wanted = True
        self._front: Front = ""
        self._widths = [LIST_WIDTH, INSPECTOR_WIDTH]  # at the default text size
        self._list, self._conversation = _panel(conversations), _panel(conversation)
        self._inspector = _panel(inspector)
        self._splitter = QSplitter(handleWidth=SPACE_2, childrenCollapsible=False)
        for pane in (self._list, self._conversation, self._inspector):
            self._splitter.addWidget(pane)
        self._splitter.setStretchFactor(1, 1)
        self._splitter.splitterMoved.connect(self._keep_widths)
        self.strip = self._make_strip()
        hbox(self.strip, (self._splitter, 1), of=self)
        restyling().arranged.connect(self._show_panes)
        self._before = self.shown
        self._show_panes()

    def _make_strip(self) -> QFrame:
        self.list_button = IconButton("sidebar", "Chat list", self.toggle_list)
        set_key_tip(self.list_button, "Chat list", "chat.list")
        new = IconButton("plus", "New chat", self.new_wanted.emit)
        set_key_tip(new, "New chat", "chat.new")
        strip = dressed(QFrame(), panel=True)
        margins = (SPACE_1, SPACE_2, SPACE_1, SPACE_2)
        vbox(self.list_button, new, STRETCH, of=strip, spacing=SPACE_1, margins=margins)
        return strip

    # What is shown -----------------------------------------------------------------------------

    @property
    def folding(self) -> Folding:
        width = self.width() / max(1.0, text_scale())
        return Folding(width, self.list_wanted, self.inspector_wanted, self._front)

    @property
    def shown(self) -> Shown:
        return self.folding.shown

    def want(self, list_wanted: bool, inspector_wanted: bool) -> None:
        """The user's choice for a wide window."""
        self.list_wanted, self.inspector_wanted = list_wanted, inspector_wanted
        self._show_panes()

    def toggle_list(self) -> None:
        """Show or hide the list. Where it is folded that is for a moment, not a choice."""
        if self.folding.folds_list:
            self._front = "" if self._front == "list" else "list"
        else:
            self.list_wanted = not self.shown.list
            self._front = ""
        self._show_panes()

    def toggle_inspector(self) -> None:
        if self.folding.folds_inspector:
            self._front = "" if self._front == "inspector" else "inspector"
        else:
            self.inspector_wanted = not self.inspector_wanted
        self._show_panes()

    def show_list(self) -> None:
        if not self.shown.list:
            self.toggle_list()

    def show_inspector(self) -> None:
        if not self.shown.inspector:
            self.toggle_inspector()

    def show_conversation(self) -> None:
        """Fold the list again, and what covers the conversation."""
        if self._front == "list" or not self.shown.conversation:
            self._front = ""
            self._show_panes()

    def minimumSizeHint(self) -> QSize:
        """Of the conversation alone: the other panes fold."""
        least = self._conversation.minimumSizeHint()
        return QSize(self.strip.sizeHint().width() + SPACE_2 + least.width(), least.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.shown != self._before:
            self._show_panes()

    def _show_panes(self) -> None:
        folding = self.folding
        if (self._front == "list" and not folding.folds_list) or (
            self._front == "inspector" and not folding.folds_inspector
        ):  # there is room for it now
            self._front = ""
        shown = self._before = self.shown
        self.strip.setVisible((not shown.list and folding.folds_list) or not shown.conversation)
        self._list.setVisible(shown.list)
        self._conversation.setVisible(shown.conversation)
        self._inspector.setVisible(shown.inspector)
        left, right = (scaled(width) for width in self._widths)
        rest = self.width() - (left + SPACE_2) * shown.list - (right + SPACE_2) * shown.inspector
        self._splitter.setSizes([left, max(1, rest), right])
        self.changed.emit()

    def _keep_widths(self) -> None:
        left, _, right = (round(size / max(1.0, text_scale())) for size in self._splitter.sizes())
        self._widths = [left or self._widths[0], right or self._widths[1]]  # 0: folded


def _panel(inside: QWidget) -> QFrame:
    frame = dressed(QFrame(), panel=True)
    vbox(inside, of=frame)
    return frame

"""What one can do on the chat page, for the menus and shortcuts of the window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSplitter, QVBoxLayout, QWidget

from app.window.commands import Command
from widgets.controls.buttons import IconButton
from widgets.controls.key_names import set_key_tip
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, theme_notifier

if TYPE_CHECKING:
    from app.features.chat.page import ChatPage


FROM_ANYWHERE = ("chat.stop", "chat.regenerate", "chat.copy")
"""Without leaving another page: a reply is stopped or written again while charts are watched."""


def chat_commands(page: ChatPage) -> list[Command]:
    """Most show the page: what is typed next, or deleted, is not to be out of sight."""
    return [
        command if command.id in FROM_ANYWHERE else replace(command, shows_page=True)
        for command in _commands(page)
    ]


def _commands(page: ChatPage) -> list[Command]:
    controller = page.controller
    return [
        Command("chat.new", "New chat", page.new_chat, "Chat", "Ctrl+N", "plus"),
        Command("chat.search", "Search chats", page.search, "Chat", "Ctrl+K", "search"),
        Command(
            "chat.list", "List of chats", page.toggle_list, "Chat", "Ctrl+B", "sidebar",
            is_checked=lambda: page.panes.is_list_shown,
        ),
        Command(
            "chat.stop", "Stop the reply", controller.stop, "Chat", "Esc", "stop",
            section="reply", is_enabled=lambda: controller.is_busy,
        ),
        Command(
            "chat.regenerate", "Send, or write the reply again", page.send_or_regenerate,
            "Chat", "Ctrl+Return", "regenerate", section="reply",
        ),
        Command(
            "chat.edit", "Edit the last message", page.edit_last, "Chat", "Ctrl+E", "edit",
            section="reply",
        ),
        Command(
            "chat.copy", "Copy the last reply", page.copy_last, "Chat", "Ctrl+Shift+C", "copy",
            section="reply",
        ),
        Command(
            "chat.latency", "Where the time of the last reply went", page.latency.show_last,
            "Chat", "Ctrl+Shift+L", "benchmark", section="reply",
        ),
        Command(
            "chat.attach", "Attach text files…", page.draft.choose_files, "Chat", "Ctrl+Shift+A",
            "attach", section="reply",
        ),
        Command(
            "chat.tokens", "Tokens of the last reply", page.tokens.show_last, "Chat",
            "Ctrl+T", "tokens", section="reply",
        ),
        Command(
            "chat.branches", "Branches of this chat", page.open_branches, "Chat",
            "Ctrl+Shift+G", "branch", section="branch",
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.version_before", "Version before", lambda: page.step_version(-1), "Chat",
            "Alt+Left", section="branch", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.version_after", "Version after", lambda: page.step_version(1), "Chat",
            "Alt+Right", section="branch", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.sampling", "Sampling settings…", page.open_sampling, "Chat", "", "tune",
            section="settings",
        ),
        Command(
            "chat.system_prompt", "System prompt…", page.open_system_prompt, "Chat",
            section="settings",
        ),
        Command(
            "chat.rename", "Rename chat", page.rename_current, "Chat", "F2", "edit",
            section="this", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.pin", "Pin chat on top", page.toggle_pinned, "Chat", "Ctrl+D", "pin",
            section="this", is_checked=lambda: controller.current.is_pinned,
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.archive", "Archive chat", page.toggle_archived, "Chat", "", "archive",
            section="this", is_checked=lambda: controller.current.is_archived,
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.export", "Export chat…", lambda: page.transfer.export_one(controller.current.id),
            "Chat", "Ctrl+S", "download", section="file",
            is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.export_all", "Export all chats…", page.transfer.export_all, "Chat",
            section="file",
            is_enabled=lambda: controller.has_any,
        ),
        Command("chat.import", "Import chats…", page.transfer.import_some, "Chat", section="file"),
        Command(
            "chat.delete", "Delete chat", page.delete_current, "Chat", "", "delete",
            section="this", is_enabled=lambda: controller.current.is_stored,
        ),
        Command(
            "chat.previous", "Previous chat", lambda: page.step(-1), "Chat", "Ctrl+PgUp",
            section="go",
        ),
        Command(
            "chat.next", "Next chat", lambda: page.step(1), "Chat", "Ctrl+PgDown",
            section="go",
        ),
    ]  # fmt: skip


LIST_WIDTH = 216
CONVERSATION_WIDTH = 320
"""Least that stays for the conversation beside the list, at the usual size of text."""


class ChatPanes(QWidget):
    """`list_wanted` is the user's choice for where there is room; `changed` when another pane is
    seen than before, or the choice is another."""

    changed = Signal()
    new_wanted = Signal()

    def __init__(self, conversations: QWidget, conversation: QWidget) -> None:
        super().__init__()
        self.list_wanted = True
        self._is_narrow = self._is_list_in_front = False
        self._list_width = LIST_WIDTH
        self._list, self._conversation = _panel(conversations), _panel(conversation)
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._splitter.setHandleWidth(SPACE_2)
        self._splitter.setChildrenCollapsible(False)
        self._splitter.addWidget(self._list)
        self._splitter.addWidget(self._conversation)
        self._splitter.setStretchFactor(1, 1)
        self._splitter.setSizes([LIST_WIDTH, 4 * LIST_WIDTH])
        self._splitter.splitterMoved.connect(self._on_moved)
        self.strip = self._make_strip()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        row.addWidget(self.strip)
        row.addWidget(self._splitter, 1)
        theme_notifier().changed.connect(self._fit)
        self._show_panes()

    def _make_strip(self) -> QFrame:
        self.list_button = IconButton("sidebar", "List of chats", self.toggle)
        set_key_tip(self.list_button, "List of chats", "chat.list")
        new = IconButton("plus", "New chat", self.new_wanted.emit)
        set_key_tip(new, "New chat", "chat.new")
        strip = QFrame()
        strip.setProperty("panel", True)
        column = QVBoxLayout(strip)
        column.setContentsMargins(SPACE_1, SPACE_2, SPACE_1, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addWidget(self.list_button)
        column.addWidget(new)
        column.addStretch(1)
        return strip

    @property
    def is_narrow(self) -> bool:
        """Whether there is no room for both."""
        return self._is_narrow

    @property
    def is_list_shown(self) -> bool:
        return self._is_list_in_front if self._is_narrow else self.list_wanted

    def toggle(self) -> None:
        """Show or hide the list. Where it is narrow that is for the moment, not a choice."""
        if self._is_narrow:
            self._is_list_in_front = not self._is_list_in_front
        else:
            self.list_wanted = not self.list_wanted
        self._show_panes()

    def show_list(self) -> None:
        if not self.is_list_shown:
            self.toggle()

    def show_conversation(self) -> None:
        """The list gives its place back where it has taken it."""
        if self._is_list_in_front:
            self._is_list_in_front = False
            self._show_panes()

    def minimumSizeHint(self) -> QSize:
        """Of the conversation alone: the list gives way."""
        least = self._conversation.minimumSizeHint()
        return QSize(self.strip.sizeHint().width() + SPACE_2 + least.width(), least.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        beside = scaled(CONVERSATION_WIDTH)
        least = self._list.minimumSizeHint().width() + SPACE_2 + beside
        if (self.width() < least) is not self._is_narrow:
            self._is_narrow, self._is_list_in_front = self.width() < least, False
            self._show_panes()

    def _show_panes(self) -> None:
        self.strip.setVisible(self._is_narrow)
        self._list.setVisible(self.is_list_shown)
        self._conversation.setVisible(not self._is_list_in_front)
        if not self._is_narrow:
            rest = max(1, self.width() - self._list_width - SPACE_2)
            self._splitter.setSizes([self._list_width, rest])
        self.changed.emit()

    def _on_moved(self, position: int) -> None:
        self._list_width = position


def _panel(inside: QWidget) -> QFrame:
    frame = QFrame()
    frame.setProperty("panel", True)
    column = QVBoxLayout(frame)
    column.setContentsMargins(0, 0, 0, 0)
    column.addWidget(inside)
    return frame

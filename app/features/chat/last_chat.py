"""`LastChatKeeper`: the chat that was open last is open again on return, scrolled where it was."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer

from app.features.chat.page import ChatPage
from app.window.settings_store import LastChat, SettingsStore


class LastChatKeeper(QObject):
    """Keeps the open chat in the settings at once, and the place in it when the window closes. A
    new chat is kept as none."""

    def __init__(self, page: ChatPage, settings: SettingsStore) -> None:
        super().__init__(page)
        self._page, self._settings = page, settings
        self._controller = page.controller
        self._wanted = ""  # while it is being recovered
        self._controller.current_changed.connect(self._keep)
        self._controller.messages_changed.connect(lambda conversation_id: self._keep())
        self._controller.list_changed.connect(self._open_recovered)

    def reopen(self) -> None:
        last = self._settings.last_chat
        if not last.chat or self._controller.current.messages:
            return
        self._wanted = last.chat
        self._open_recovered()
        if self._controller.current.id == last.chat and last.message:
            go = lambda: self._page.transcript.go_to_place(last.message, last.character)
            QTimer.singleShot(0, self, go)

    def _open_recovered(self) -> None:
        """Open it now, or once its messages are read from a damaged file."""
        if not self._wanted:
            return
        self._controller.open(self._wanted)
        if self._controller.current.id == self._wanted or not self._controller.recovery:
            self._wanted = ""

    def _keep(self) -> None:
        current = self._controller.current
        kept = current.id if current.messages else ""
        if kept != self._settings.last_chat.chat and not self._wanted:
            self._settings.last_chat = LastChat(kept)

    def close(self) -> None:
        """Keep the place, too."""
        current = self._controller.current
        place = self._page.transcript.reading_place() if current.messages else None
        if current.messages and not self._wanted:
            message, character = place or ("", 0)
            self._settings.last_chat = LastChat(current.id, message, character)

"""The pages of the window, and what they stand on."""

from __future__ import annotations

from app.chat.controller import ChatController
from app.chat.page import ChatPage
from app.commands import Command
from app.engine_bridge import EngineBridge
from app.main_window import Page
from app.storage import open_store
from engine.errors import ErrorInfo


class Pages:
    """Makes the pages, and takes them apart in the right order."""

    def __init__(self, bridge: EngineBridge) -> None:
        self.store = open_store()
        self.chat = ChatController(bridge, self.store)
        self.chat_page = ChatPage(self.chat)
        self.pages = [Page("Chat", "chat", self.chat_page, tuple(self._chat_commands()))]

    @property
    def problem(self) -> ErrorInfo | None:
        """Why what is written now does not reach the user's file, or None."""
        return self.store.problem

    def close(self) -> None:
        """Write what is left to write. Call it when the engine has said its last."""
        self.chat.close()
        self.store.close()

    def _chat_commands(self) -> list[Command]:
        return [Command(**action) for action in self.chat_page.actions()]

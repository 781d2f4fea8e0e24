"""The Models page behind the first-run page: one place in the rail for both."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import QStackedWidget

from app.commands import Command
from app.models.page import ModelsPage
from app.models.welcome import WelcomePage


class ModelsPlace(QStackedWidget):
    """`wants_front` when one of its commands was used from elsewhere; `chat_wanted` when the user
    begins with the starter model."""

    wants_front = Signal()
    chat_wanted = Signal()

    def __init__(self, page: ModelsPage, welcome: WelcomePage) -> None:
        super().__init__()
        self.page, self.welcome = page, welcome
        self.addWidget(page)
        self.addWidget(welcome)
        page.wants_front.connect(self._show_page)
        welcome.left.connect(self._show_page)
        welcome.hub.connect(page.show_hub)
        welcome.folder.connect(page.add_folder)
        welcome.shapes.connect(page.show_shapes)
        welcome.chat.connect(self.chat_wanted)

    def commands(self) -> list[Command]:
        welcome = Command(
            "help.welcome", "Welcome, and this machine", self.show_welcome, "Help", section="help"
        )
        return [*self.page.commands(), welcome]

    @property
    def is_welcoming(self) -> bool:
        return self.currentWidget() is self.welcome

    def show_welcome(self) -> None:
        self.setCurrentWidget(self.welcome)
        self.wants_front.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not event.spontaneous():  # another page, and not a minimized window
            self.setCurrentWidget(self.page)

    def _show_page(self) -> None:
        self.setCurrentWidget(self.page)
        self.wants_front.emit()

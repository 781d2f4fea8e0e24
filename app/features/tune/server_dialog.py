"""`ServerDialog`: the settings as command lines of other servers."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPlainTextEdit, QTabBar, QWidget

from app.features.tune.server_commands import Facts, ServerCommand
from app.features.tune.servers import SERVERS
from engine.config import EngineConfig
from widgets.controls.layouts import button, dressed, vbox, wrapped
from widgets.controls.windows import FittingSize
from widgets.theme.theme import SPACE_2, SPACE_4, mono_font

SIZE = (640, 420)


class ServerDialog(QDialog):
    """A tab per server."""

    def __init__(self, config: EngineConfig, facts: Facts, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Server command line")
        self.commands: list[ServerCommand] = [make(config, facts) for make in SERVERS]
        self.tabs = dressed(QTabBar(), "Server")
        for command in self.commands:
            self.tabs.addTab(command.server)
        self.text = dressed(QPlainTextEdit(), "Command line")
        self.text.setReadOnly(True)
        self.text.setFont(mono_font())
        self.comments = wrapped("muted")
        self.copy_button = button(
            "Copy", self.copy, "Copy the command line, with notes as comments", "primary"
        )
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.addButton(self.copy_button, QDialogButtonBox.ButtonRole.ActionRole)
        buttons.rejected.connect(self.reject)
        margins = SPACE_4, SPACE_2, SPACE_4, SPACE_4
        vbox(self.tabs, (self.text, 1), self.comments, buttons, of=self, margins=margins)
        self.tabs.currentChanged.connect(self._show)
        FittingSize(self, SIZE)
        self._show()

    @property
    def command(self) -> ServerCommand:
        return self.commands[self.tabs.currentIndex()]

    def choose(self, server: str) -> None:
        self.tabs.setCurrentIndex([c.server for c in self.commands].index(server))

    def copy(self) -> None:
        QGuiApplication.clipboard().setText(self.command.as_script)
        self.copy_button.setText("Copied")

    def _show(self) -> None:
        self.text.setPlainText(self.command.text)
        self.comments.setText(self.command.comments)
        self.copy_button.setText("Copy")

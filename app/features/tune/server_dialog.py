"""`ServerDialog`: the settings as command lines of other servers."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QTabBar,
    QVBoxLayout,
    QWidget,
)

from app.features.tune.servers import SERVERS, Facts, ServerCommand
from engine.config import EngineConfig
from widgets.theme.theme import SPACE_2, SPACE_4, mono_font

SIZE = (640, 420)


class ServerDialog(QDialog):
    """A tab per server."""

    def __init__(self, config: EngineConfig, facts: Facts, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Server command line")
        self.commands: list[ServerCommand] = [make(config, facts) for make in SERVERS]
        self.tabs = QTabBar()
        self.tabs.setAccessibleName("Server")
        for command in self.commands:
            self.tabs.addTab(command.server)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setFont(mono_font())
        self.text.setAccessibleName("Command line")
        self.comments = QLabel()
        self.comments.setWordWrap(True)
        self.comments.setProperty("role", "muted")
        self.copy_button = QPushButton("Copy")
        self.copy_button.setProperty("kind", "primary")
        self.copy_button.setToolTip("Copy the command line, with notes as comments")
        self.copy_button.clicked.connect(self.copy)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.addButton(self.copy_button, QDialogButtonBox.ButtonRole.ActionRole)
        buttons.rejected.connect(self.reject)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_2, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_2)
        column.addWidget(self.tabs)
        column.addWidget(self.text, 1)
        column.addWidget(self.comments)
        column.addWidget(buttons)
        self.tabs.currentChanged.connect(self._show)
        self.resize(*SIZE)
        self._show()

    @property
    def command(self) -> ServerCommand:
        return self.commands[self.tabs.currentIndex()]

    def choose(self, server: str) -> None:
        """Show the command of `server`."""
        self.tabs.setCurrentIndex([c.server for c in self.commands].index(server))

    def copy(self) -> None:
        QGuiApplication.clipboard().setText(self.command.as_script)
        self.copy_button.setText("Copied")

    def _show(self) -> None:
        self.text.setPlainText(self.command.text)
        self.comments.setText(self.command.comments)
        self.copy_button.setText("Copy")

"""Model search on the Hugging Face Hub: field, results, messages."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLineEdit, QStackedWidget, QWidget

from app.features.models.hub import MAX_HITS, Hit, Hub
from app.features.models.source_list import SourceList
from app.link.tasks import LatestTask
from app.storage.model_sources import ModelSource, SourceKind
from app.units import format_count
from engine.errors import ErrorInfo
from widgets.controls.layouts import button, hbox, vbox, wrapped
from widgets.theme.theme import SPACE_2, SPACE_4, restyle

BEFORE = (
    "Enter part of a name, or a model id such as Qwen/Qwen3-0.6B, and press Enter.\n\n"
    "Results are text models with safetensors weights, most downloaded first."
)


class HubSearch(QWidget):
    """`source_chosen` and `source_opened` as of a SourceList. `is_here(repo_id)`: whether a model
    is downloaded."""

    source_chosen = Signal(object)
    source_opened = Signal(object)

    def __init__(self, hub: Hub, is_here: Callable[[str], bool]) -> None:
        super().__init__()
        self._hub, self._is_here = hub, is_here
        self._task = LatestTask(self)
        self._hits: list[Hit] = []
        self._asked = ""
        self.field = QLineEdit()
        self.field.setPlaceholderText("Search the hub")
        self.field.setAccessibleName("Search models on the hub")
        self.field.setClearButtonEnabled(True)
        self.field.returnPressed.connect(self.search)
        self.button = button("Search", self.search)
        self._status = wrapped("small")
        self.list = SourceList()
        self.list.setAccessibleName("Search results")
        self.list.source_chosen.connect(self.source_chosen)
        self.list.source_opened.connect(self.source_opened)
        self._message = wrapped()
        self._message.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._message.setContentsMargins(SPACE_2, SPACE_4, SPACE_2, SPACE_2)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._message)
        self._stack.addWidget(self.list)
        vbox(hbox((self.field, 1), self.button), self._status, (self._stack, 1), of=self)
        self._say(BEFORE)

    @property
    def message(self) -> str:
        """The text shown instead of the list; empty while the list is shown."""
        return self._message.text() if self._stack.currentWidget() is self._message else ""

    @property
    def status(self) -> str:
        return self._status.text()

    def search(self) -> None:
        """Search for the text in the field."""
        text = self.field.text().strip()
        if not text:
            self._say(BEFORE)
            return
        self._asked = text
        asking = f"Searching for “{text}”"
        if self.message:
            self._say(asking)
        else:
            self._set_status(asking)
        self._task.run(lambda: self._hub.search(text), self._on_hits, self._on_error)

    def refresh(self) -> None:
        """Update which results are downloaded."""
        if self._hits:
            self._show_hits()

    def _on_hits(self, hits: list[Hit]) -> None:
        self._hits = hits
        if not hits:
            self._say(
                f"No text model with safetensors weights matches “{self._asked}”.\n\n"
                "Try a shorter name. For other kinds of model enter the full id, owner/name."
            )
            return
        count = f"{len(hits):,} model{'s' if len(hits) > 1 else ''}"
        most = " (most downloaded only; narrow the search)" if len(hits) >= MAX_HITS else ""
        self._set_status(f"{count} for “{self._asked}”{most}")
        self._show_hits()
        self._stack.setCurrentWidget(self.list)

    def _show_hits(self) -> None:
        self.list.show_sources(
            ModelSource(SourceKind.HUB, hit.repo_id, hit.repo_id, self._subtitle(hit))
            for hit in self._hits
        )

    def _subtitle(self, hit: Hit) -> str:
        parts = ["downloaded" if self._is_here(hit.repo_id) else ""]
        if hit.num_parameters:
            parts.append(f"{format_count(hit.num_parameters)} parameters")
        parts.append(f"{format_count(hit.downloads)} downloads")
        parts.append("gated" if hit.gated else "")
        return " · ".join(part for part in parts if part)

    def _on_error(self, error: ErrorInfo) -> None:
        self._hits = []
        self._say(f"{error.cause}\n\n{error.remedy}", "error")

    def _say(self, text: str, role: str = "muted") -> None:
        self._message.setText(text)
        restyle(self._message, role=role)
        self._stack.setCurrentWidget(self._message)
        self._set_status("")

    def _set_status(self, text: str) -> None:
        self._status.setText(text)
        self._status.setVisible(bool(text))

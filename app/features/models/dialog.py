"""The dialog that opens a model, with its facts and memory estimate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QPushButton,
    QWidget,
)

from app.features.models.estimate import NOTHING, Held, estimate
from app.features.models.inspector import Estimator, Inspector
from app.features.models.model_card import ModelCard
from app.features.models.source_list import SourceList
from app.link.tasks import run_task
from app.storage.model_sources import (
    ModelSource,
    folder_source,
    folder_sources,
    hugging_face_sources,
    recent_sources,
    shape_sources,
    starter_source,
)
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo
from widgets.controls.layouts import STRETCH, button, hbox, vbox
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_3, SPACE_4


class OpenModelDialog(QDialog):
    """`model_chosen`: path, load_format, and the chosen settings."""

    model_chosen = Signal(str, str, object)

    def __init__(
        self,
        store: SettingsStore,
        in_use: Callable[[], Held] = lambda: NOTHING,
        estimator: Estimator = estimate,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Open a model")
        self.setAcceptDrops(True)
        self.resize(880, 600)
        self._store = store
        self._folders: list[ModelSource] = []
        self._cached: list[ModelSource] = []
        self.list = SourceList()
        self.list.source_opened.connect(lambda source: self._open())
        self.card = ModelCard()
        self._inspector = Inspector(self.card, store, in_use, estimator, self)
        self._inspector.looked.connect(lambda _: self._button.setEnabled(self._inspector.can_open))
        self.list.source_chosen.connect(self._inspector.show)
        self._build()
        self._show_sources()
        folders = store.folders
        run_task(
            self,
            lambda: [*folder_sources(folders), *hugging_face_sources()],
            self._on_cache,
            self._on_cache_failed,
        )

    def _build(self) -> None:
        folder = QPushButton("Add folder…")
        set_icon(folder, "folder")
        folder.clicked.connect(self.choose_folder)
        left = vbox((self.list, 1), folder)
        columns = hbox((left, 2), (self.card, 3), spacing=SPACE_3)
        cancel = button("Cancel", self.reject)
        cancel.setAutoDefault(False)
        self._button = button("Open", self._open, kind="primary")
        self._button.setDefault(True)
        self._button.setEnabled(False)
        buttons = hbox(STRETCH, cancel, self._button)
        vbox(
            (columns, 1),
            buttons,
            of=self,
            spacing=SPACE_3,
            margins=(SPACE_4, SPACE_4, SPACE_4, SPACE_4),
        )

    # What the user does ------------------------------------------------------------------------

    def choose_folder(self) -> None:
        start = str(Path(self._store.recent[0].path).parent) if self._store.recent else ""
        path = QFileDialog.getExistingDirectory(self, "Model folder", start)
        if path:
            self.choose_path(path)

    def choose_path(self, path: str) -> None:
        """Add a folder to the list and select it."""
        source = folder_source(path)
        if source.key not in {known.key for known in self.list.sources}:
            self._folders.append(source)
            self._show_sources()
        self.list.choose(source)

    def choose(self, source: ModelSource) -> None:
        self.list.choose(source)

    @property
    def can_open(self) -> bool:
        return self._button.isEnabled()

    def _open(self) -> None:
        source = self.list.source
        if source is None or not self.can_open:
            return
        self.model_chosen.emit(source.path, source.load_format, self._inspector.settings())
        self.accept()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped_path(event):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        path = dropped_path(event)
        if path:
            event.acceptProposedAction()
            self.choose_path(path)

    # The list ----------------------------------------------------------------------------------

    def _show_sources(self) -> None:
        recent = [(m.path, m.load_format, m.title) for m in self._store.recent]
        self.list.show_sources(
            [
                starter_source(),
                *recent_sources(recent),
                *self._folders,
                *self._cached,
                *shape_sources(),
            ]
        )

    def _on_cache(self, found: list[ModelSource]) -> None:
        self._cached = found
        self._show_sources()

    def _on_cache_failed(self, error: ErrorInfo) -> None:
        self.list.setToolTip(f"Cannot read the Hugging Face cache. {error.cause}")


def dropped_path(event: QDropEvent) -> str:
    """The dragged local folder or file; empty unless there is exactly one."""
    urls = event.mimeData().urls()
    return urls[0].toLocalFile() if len(urls) == 1 and urls[0].isLocalFile() else ""


def show_dialog(dialog: OpenModelDialog) -> None:
    """Window-modal without a nested event loop: generation continues."""
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()

"""The left side of the Models page: models on this machine, and search on the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QLineEdit, QStackedWidget, QWidget

from app.features.models.downloads import DownloadQueue, State, subtitle
from app.features.models.hub import MAX_HITS, Hit, Hub
from app.features.models.source_list import SourceList
from app.link.tasks import LatestTask
from app.storage.model_sources import (
    ModelSource,
    SourceKind,
    folder_source,
    folder_sources,
    hugging_face_sources,
    recent_sources,
    shape_sources,
    starter_source,
)
from app.window.settings_store import SettingsStore
from engine.errors import ErrorInfo
from engine.units import scaled_count
from widgets.controls.layouts import button, hbox, vbox, wrapped
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_2, SPACE_4, restyle

NOTHING_YET = "To add models, search the hub or add a folder."
Found = tuple[list[ModelSource], list[ModelSource]]


class Library(QWidget):
    """`source_chosen` and `source_opened` as of a SourceList; `loaded` after reading the disk."""

    source_chosen = Signal(object)
    source_opened = Signal(object)
    loaded = Signal()

    def __init__(self, hub: Hub, store: SettingsStore, queue: DownloadQueue) -> None:
        super().__init__()
        self._hub, self._store, self._queue = hub, store, queue
        self._task = LatestTask(self)
        self._folders: list[ModelSource] = []
        self._cached: list[ModelSource] = []
        self._chosen: list[ModelSource] = []  # by their path
        self.filter = QLineEdit()
        self.filter.setPlaceholderText("Filter by name, or enter a path")
        self.filter.setAccessibleName("Filter models by name, or enter a path")
        self.filter.setClearButtonEnabled(True)
        self.filter.textChanged.connect(self.show_sources)
        self.filter.returnPressed.connect(self._on_return)
        self.list = SourceList()
        self.list.setAccessibleName("Models on this machine")
        self.list.source_chosen.connect(self.source_chosen)
        self.list.source_opened.connect(self.source_opened)
        self._hint = wrapped()
        self._say("")
        add = button("Add folder…", self.choose_folder, "Add a folder to the model list")
        set_icon(add, "folder")
        again = button("Refresh", self.reload, "Rescan model folders and cache (F5)")
        set_icon(again, "refresh")
        vbox(self.filter, (self.list, 1), self._hint, hbox((add, 1), again), of=self)
        queue.changed.connect(lambda _: self.show_sources())
        queue.gone.connect(lambda _: self.show_sources())
        queue.finished.connect(lambda *_: self.reload())
        self.show_sources()

    # For the page ------------------------------------------------------------------------------

    @property
    def hint(self) -> str:
        return self._hint.text()

    @property
    def known(self) -> list[ModelSource]:
        """All models, regardless of the filter."""
        return list(self._sources())

    def snapshot_of(self, repo_id: str) -> ModelSource | None:
        """The model `repo_id` in the cache, or None."""
        return next((s for s in self._cached if s.title == repo_id), None)

    def choose_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, "Choose model folder")
        if path:
            self.add_folder(path)

    def add_folder(self, path: str) -> None:
        """Show the models in a folder, and remember it."""
        if path not in self._store.folders:
            self._store.folders = [*self._store.folders, path]
        self.reload()

    def choose_path(self, path: str) -> None:
        """Select the model in a folder, or of one of its files; an unknown one is listed."""
        source = folder_source(path)
        found = next((known for known in self._sources() if known.path == source.path), None)
        if found is None:
            self._chosen.append(source)
        self.filter.clear()
        self.show_sources()
        self.list.choose(found or source)
        self.list.setFocus()

    def drop_folder(self, source: ModelSource) -> None:
        """Stop listing the folder of `source`; no file is deleted."""
        path = Path(source.path)
        self._store.folders = [
            known
            for known in self._store.folders
            if Path(known) != path and Path(known) not in path.parents
        ]
        self.reload()

    def reload(self) -> None:
        """Read folders and cache again."""
        folders, hub = self._store.folders, self._hub

        def read() -> Found:
            return folder_sources(folders), hugging_face_sources(hub.cache_dir)

        self._task.run(read, self._on_found, self._on_failed)

    def show_sources(self) -> None:
        """Refresh the filtered list."""
        wanted = self.filter.text().strip().lower()
        self.list.show_sources(s for s in self._sources() if wanted in s.title.lower())
        own = self._folders or self._cached or any(True for _ in self._queue)
        if not self._task.is_running:
            self._say("" if own else NOTHING_YET)

    def _sources(self) -> Iterable[ModelSource]:
        for download in self._queue:
            if download.state is not State.DONE:
                name = download.repo_id
                yield ModelSource(SourceKind.DOWNLOAD, name, name, subtitle(download), "hub")
        yield starter_source()
        yield from self._folders
        yield from self._cached
        known = {source.key for source in (*self._folders, *self._cached)}
        recent = [(m.path, m.load_format, m.title) for m in self._store.recent]
        for source in (*recent_sources(recent), *self._chosen):
            if source.key not in known:
                known.add(source.key)
                yield source
        yield from shape_sources()

    def _on_return(self) -> None:
        """Select what the field names: a path, or the first match."""
        path = os.path.expanduser(self.filter.text().strip())
        if os.path.isabs(path):
            self.choose_path(path)
        elif self.list.sources:
            self.list.choose(self.list.sources[0])
            self.list.setFocus()

    def _on_found(self, found: Found) -> None:
        self._folders, self._cached = found
        self.show_sources()
        self.loaded.emit()

    def _on_failed(self, error: ErrorInfo) -> None:
        self._say(f"Cannot read model folders or the cache. {error.cause} {error.remedy}", "error")

    def _say(self, text: str, role: str = "small") -> None:
        self._hint.setText(text)
        self._hint.setVisible(bool(text))
        restyle(self._hint, role=role)


BEFORE = (
    "Enter part of a model name, or a model id such as Qwen/Qwen3-0.6B.\n\n"
    "Finds text-generation models with safetensors weights, sorted by downloads."
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
                f"No text-generation model with safetensors weights matches “{self._asked}”.\n\n"
                "Try a shorter name. For other model types, enter the full id (owner/name)."
            )
            return
        count = f"{len(hits):,} model{'s' if len(hits) > 1 else ''}"
        most = " (showing the most downloaded; refine your search)" if len(hits) >= MAX_HITS else ""
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
            parts.append(f"{scaled_count(hit.num_parameters)} parameters")
        parts.append(f"{scaled_count(hit.downloads)} downloads")
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

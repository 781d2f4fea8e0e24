"""Deletes models and reports, with undo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.features.models.hub import DESCRIPTIONS, LICENSES
from app.link.tasks import run_task
from app.storage.model_sources import ModelSource, SourceKind, cache_folder, folder_size
from app.storage.trash import Trash, Trashed, TrashError
from engine.errors import ErrorInfo
from engine.units import bytes_text
from widgets.controls.notice import Toast

OTHERS_ALLOWED = (".md", ".gitattributes", ".gitignore", ".safetensors")


class Deletion(QObject):
    """Moves folders to the trash and offers Undo for some seconds. `changed` after a deletion or
    its undo; `failed(ErrorInfo)` where one failed."""

    changed = Signal()
    failed = Signal(object)

    def __init__(self, trash: Trash, toast: Toast, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._trash, self._toast = trash, toast
        self._closing = False
        self.gone: set[Path] = set()
        """Folders that were moved to the trash and not restored."""

    def purge_leftovers(self) -> None:
        """Remove, in a thread, what an earlier run could not remove."""
        if self._trash.entries:
            run_task(self, self._trash.purge_all, lambda _: None, self.failed.emit)
        elif self._trash.problem:
            self.failed.emit(ErrorInfo(self._trash.problem))

    def delete_model(self, source: ModelSource) -> None:
        folder = folder_of(source)
        assert folder is not None, "the page offers deletion only where `folder_of` finds a folder"
        try:
            _check_is_only_a_model(source, folder)
            size = folder_size(folder)
        except TrashError as error:
            self.failed.emit(error.info())
        else:
            self.delete([folder], lambda _: f"{source.title} ({bytes_text(size)})")

    def delete(self, folders: Sequence[Path], title: Callable[[int], str]) -> None:
        """Move folders to the trash. `title(n)`: "2 models", for the message."""
        entries: list[Trashed] = []
        try:
            entries.extend(self._trash.put(folder) for folder in folders)
        except TrashError as error:
            self.failed.emit(error.info())
        self.gone.update(entry.original for entry in entries)
        self.changed.emit()
        if entries:
            self._toast.show_message(
                f"Deleted {title(len(entries))}.",
                "Undo",
                lambda: self._restore(entries),
                lambda: self._purge(entries),
            )

    def close(self) -> None:
        """Remove all deleted folders permanently."""
        self._closing = True
        self._toast.dismiss()
        self._trash.purge_all()

    def _restore(self, entries: Sequence[Trashed]) -> None:
        for entry in entries:
            try:
                self._trash.restore(entry)
                self.gone.discard(entry.original)
            except TrashError as error:
                self.failed.emit(error.info())
        self.changed.emit()

    def _purge(self, entries: Sequence[Trashed]) -> None:
        for entry in () if self._closing else entries:
            run_task(self, partial(self._trash.purge, entry), lambda _: None, self.failed.emit)


def folder_of(source: ModelSource) -> Path | None:
    """The folder that deleting `source` removes; None where it cannot be deleted."""
    if source.load_format == "dummy" or not Path(source.path).is_dir():
        return None
    if source.kind in (SourceKind.CACHE, SourceKind.RECENT):
        cached = cache_folder(source.path)
        if cached is not None or source.kind is SourceKind.CACHE:
            return cached
    if source.kind in (SourceKind.LOCAL, SourceKind.RECENT):
        folder = Path(source.path)
        return folder if (folder / "config.json").is_file() else None
    return None


def _check_is_only_a_model(source: ModelSource, folder: Path) -> None:
    """Raise TrashError for a user's folder that has other files."""
    if cache_folder(source.path) is not None:
        return
    known = {*DESCRIPTIONS, *LICENSES, "training.json"}
    others = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() or (entry.name not in known and not entry.name.endswith(OTHERS_ALLOWED))
    )
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise TrashError(
            f"{folder} also contains {', '.join(others[:3])}{more}.",
            "Delete the folder in your file manager.",
        )

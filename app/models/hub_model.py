"""A model of the hub for the card: its files first, then, from its config, what it would need."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from PySide6.QtCore import QObject

from app.hub.hub import Hub, RepoDetails
from app.models.estimate import Estimate
from app.models.inspector import Inspector
from app.tasks import Task, run_task
from app.units import format_bytes
from engine.errors import ErrorInfo


class HubModel(QObject):
    """Calls `changed` when `details` or `error` of the model that is looked at came."""

    def __init__(
        self, hub: Hub, inspector: Inspector, changed: Callable[[], None], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._hub, self._inspector, self._changed = hub, inspector, changed
        self._task: Task | None = None
        self._configs: TemporaryDirectory[str] | None = None
        self._known: dict[str, RepoDetails] = {}
        self.details: RepoDetails | None = None
        self.error: ErrorInfo | None = None

    def look(self, repo_id: str) -> None:
        """Ask the hub about a model; at once where it was asked before."""
        self.forget()
        if repo_id in self._known:
            self._on_details(self._known[repo_id])
        else:
            self._task = run_task(
                self, lambda: self._hub.details(repo_id), self._on_details, self._on_error
            )

    def forget(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task, self.details, self.error = None, None, None

    def close(self) -> None:
        self.forget()
        if self._configs is not None:
            self._configs.cleanup()

    def _on_details(self, details: RepoDetails) -> None:
        self._known[details.repo_id] = self.details = details
        self._changed()
        if self._configs is None:
            self._configs = TemporaryDirectory(prefix="inferdeck-hub-")
        folder = Path(self._configs.name) / details.commit / details.repo_id.split("/")[-1]
        self._task = run_task(
            self,
            lambda: self._hub.read_config(details, folder),
            lambda found: self._inspector.look_at(str(found), "dummy", self._complete),
            self._on_error,
        )

    def _complete(self, found: Estimate) -> Estimate:
        """What the description alone does not tell: the size of the files."""
        if self.details is None:
            return found
        size = self.details.files.weights
        return dataclasses.replace(found, report=dataclasses.replace(found.report, disk_bytes=size))

    def _on_error(self, error: ErrorInfo) -> None:
        self.error = error
        self._changed()


def download_text(details: RepoDetails, cache_dir: Path) -> str:
    """What a download would bring, and where to."""
    files = details.files
    count = len(files.wanted)
    place = next(p for p in (cache_dir, *cache_dir.parents) if p.exists())
    free = format_bytes(shutil.disk_usage(place).free)
    parts = [f"{count} files, {format_bytes(files.size)}, to {cache_dir} ({free} free)."]
    if files.skipped_text:
        parts.append(f"Left out: {files.skipped_text}.")
    if details.license:
        parts.append(f"License: {details.license}.")
    if details.gated:
        parts.append("Gated: its owners give access to those who ask for it.")
    return " ".join(parts)

"""Estimates the model of a card in a thread, with the chosen options."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.features.models.estimate import Estimate, Estimator, Held
from app.features.models.hub import Hub, RepoDetails
from app.features.models.model_card import ModelCard
from app.link.tasks import LatestTask
from app.storage.model_sources import ModelSource
from app.window.settings_store import SettingsStore
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.units import bytes_text


class Inspector(QObject):
    """`looked(estimate)`: None while it is computed and where it failed."""

    looked = Signal(object)

    def __init__(
        self,
        card: ModelCard,
        store: SettingsStore,
        in_use: Callable[[], Held],
        estimator: Estimator,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._card, self._store = card, store
        self._in_use, self._estimator = in_use, estimator
        self._task = LatestTask(self)
        self._where = ("", "auto")  # what is read: path and load format
        self._disk_bytes: int | None = None
        self.source: ModelSource | None = None
        self.estimate: Estimate | None = None
        card.options_changed.connect(self.ask)

    @property
    def can_open(self) -> bool:
        return self.estimate is not None and self.estimate.can_open

    def show(self, source: ModelSource) -> None:
        """Show `source` with its stored settings, and estimate it."""
        self.show_only(source)
        self.look_at(source.path, source.load_format)

    def show_only(self, source: ModelSource) -> None:
        """Show `source`; `look_at` follows when its description is known."""
        self.forget()
        self.source = source
        chosen = dict(self._store.settings_of(source.path, source.load_format))
        self._card.show_source(source, chosen)

    def look_at(self, path: str, load_format: str, disk_bytes: int | None = None) -> None:
        """Estimate from the description at `path`. disk_bytes: of files that are not there yet."""
        self._where, self._disk_bytes = (path, load_format), disk_bytes
        self.ask()

    def forget(self) -> None:
        """Drop a pending estimate."""
        self._task.cancel()
        self.source, self._where = None, ("", "auto")
        self._set(None)

    def ask(self) -> None:
        """Estimate again with the current options."""
        if self.source is None or not self._where[0]:
            return
        self._set(None)
        self._card.show_busy()
        config, in_use, estimator = self.config(), self._in_use(), self._estimator
        self._task.run(
            lambda: estimator(config, in_use), self._on_estimate,
            lambda error: self._card.show_error(str(error)),
        )  # fmt: skip

    def config(self) -> EngineConfig:
        """The configuration that Open would load."""
        path, load_format = self._where
        return EngineConfig(model=path, load_format=load_format).replace(**self.settings())

    def settings(self) -> Mapping[str, Any]:
        """Stored settings of this model with the options of the card."""
        assert self.source is not None
        stored = dict(self._store.settings_of(self.source.path, self.source.load_format))
        return {**stored, **self._card.chosen()}

    def _on_estimate(self, found: Estimate) -> None:
        if self._disk_bytes is not None:
            report = dataclasses.replace(found.report, disk_bytes=self._disk_bytes)
            found = dataclasses.replace(found, report=report)
        chosen = self._card.chosen()["max_model_len"]
        self._card.show_estimate(found)
        if chosen is None and (shorter := _shorter(found)):
            self._card.choose_context(shorter)
            self.ask()
            return
        self._set(found)

    def _set(self, found: Estimate | None) -> None:
        self.estimate = found
        self.looked.emit(found)


def _shorter(found: Estimate) -> int | None:
    """The context to propose where the full one does not fit, or needs more layers on the CPU."""
    need = found.need
    if need is None or (need.fits and need.in_ram is None):
        return None
    return found.proposed_len if need.fits else found.fitting_len


class HubModel(QObject):
    """Details of a hub model; calls `changed` when `details` or `error` arrive."""

    def __init__(
        self, hub: Hub, inspector: Inspector, changed: Callable[[], None], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._hub, self._inspector, self._changed = hub, inspector, changed
        self._task = LatestTask(self)
        self._configs: TemporaryDirectory[str] | None = None
        self._known: dict[str, RepoDetails] = {}
        self.details: RepoDetails | None = None
        self.error: ErrorInfo | None = None

    def look(self, repo_id: str) -> None:
        """Request the details; cached ones arrive at once."""
        self.forget()
        if repo_id in self._known:
            self._on_details(self._known[repo_id])
        else:
            self._task.run(lambda: self._hub.details(repo_id), self._on_details, self._on_error)

    def forget(self) -> None:
        self._task.cancel()
        self.details = self.error = None

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
        self._task.run(
            lambda: self._hub.read_config(details, folder),
            lambda found: self._inspector.look_at(str(found), "dummy", details.files.weights),
            self._on_error,
        )

    def _on_error(self, error: ErrorInfo) -> None:
        self.error = error
        self._changed()


def download_text(details: RepoDetails, cache_dir: Path) -> str:
    """Size, destination, skipped files and license of a download."""
    files = details.files
    count = len(files.wanted)
    place = next(p for p in (cache_dir, *cache_dir.parents) if p.exists())
    free = bytes_text(shutil.disk_usage(place).free)
    parts = [f"{count} files, {bytes_text(files.size)}. Target: {cache_dir} ({free} free)."]
    if files.skipped_text:
        parts.append(f"Skipped: {files.skipped_text}.")
    if details.license:
        parts.append(f"License: {details.license}.")
    if details.gated:
        parts.append("Gated: requires access approval.")
    return " ".join(parts)

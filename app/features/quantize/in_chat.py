"""Opens the reference and the model of a report side by side in the chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QObject

from app.features.compare.commands import CompareManager
from app.features.models.session import ModelSession
from app.features.quantize.kept_reports import facts_name
from app.features.quantize.page import QuantizePage
from app.link.bridge import EngineBridge
from app.storage.report_store import StoredReport
from app.window.settings_store import RecentModel
from engine.evaluate.report import ModelFacts

Side = tuple[RecentModel, Mapping[str, Any]]


class CompareInChat(QObject):
    """Shows the comparison with the reference on the left and the model on the right; loads the
    model first where neither is open."""

    def __init__(
        self, page: QuantizePage, desk: CompareManager, session: ModelSession, bridge: EngineBridge
    ) -> None:
        super().__init__()
        self._desk, self._session, self._bridge = desk, session, bridge
        self._awaited: StoredReport | None = None  # its model is loading
        page.report.can_compare = True
        page.compare_in_chat.connect(self.compare)
        bridge.loaded.connect(lambda event: self._on_loaded(event.config.model))
        bridge.load_failed.connect(lambda event: self._forget())

    def compare(self, stored: StoredReport) -> None:
        current = self._session.current
        loaded = current.path if self._bridge.is_ready and current is not None else ""
        paths = {model.path for model, _ in sides_of(stored)}
        if loaded in paths or (loaded and len(paths) > 1):
            self._desk.show_sides(sides_of(stored))
        else:
            self._awaited = stored
            self._session.open(stored.report.candidate.path)

    def _on_loaded(self, path: str) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited.report.candidate.path == path:
            self._desk.show_sides(sides_of(awaited))

    def _forget(self) -> None:
        self._awaited = None


def sides_of(stored: StoredReport) -> list[Side]:
    """Reference and candidate of a report."""
    report = stored.report
    assert report.reference is not None
    return [_side(report.reference), _side(report.candidate)]


def _side(facts: ModelFacts) -> Side:
    load_format = str(facts.config.get("load_format") or "auto")
    return RecentModel(facts.path, load_format, facts_name(facts)), facts.config

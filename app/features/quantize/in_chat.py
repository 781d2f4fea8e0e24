"""From a report to the chat: the same prompt, answered by the reference and by the model."""

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

Stand = tuple[RecentModel, Mapping[str, Any]]


class CompareInChat(QObject):
    """Opens the comparison with the report's reference on the left and its model on the right. An
    engine has to be there: where none is, the model is loaded first, and where both sides are one
    model, that one."""

    def __init__(
        self, page: QuantizePage, desk: CompareManager, session: ModelSession, bridge: EngineBridge
    ) -> None:
        super().__init__()
        self._desk, self._session, self._bridge = desk, session, bridge
        self._awaited: StoredReport | None = None  # whose model is being loaded
        page.report.can_compare = True
        page.compare_in_chat.connect(self.compare)
        bridge.loaded.connect(lambda event: self._on_loaded(event.config.model))
        bridge.load_failed.connect(lambda event: self._forget())

    def compare(self, stored: StoredReport) -> None:
        current = self._session.current
        loaded = current.path if self._bridge.is_ready and current is not None else ""
        paths = {model.path for model, _ in stands_of(stored)}
        if loaded in paths or (loaded and len(paths) > 1):
            self._desk.show_sides(stands_of(stored))
        else:
            self._awaited = stored
            self._session.open(stored.report.candidate.path)

    def _on_loaded(self, path: str) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited.report.candidate.path == path:
            self._desk.show_sides(stands_of(awaited))

    def _forget(self) -> None:
        self._awaited = None


def stands_of(stored: StoredReport) -> list[Stand]:
    """Left and right of a report that has a reference."""
    report = stored.report
    assert report.reference is not None
    return [_stand(report.reference), _stand(report.candidate)]


def _stand(facts: ModelFacts) -> Stand:
    load_format = str(facts.config.get("load_format") or "auto")
    return RecentModel(facts.path, load_format, facts_name(facts)), facts.config

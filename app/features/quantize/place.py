"""Connects the Quantize page to models, folders, engine, work area and chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject

from app.features.compare.commands import CompareManager
from app.features.models.page import ModelsPage
from app.features.models.session import ModelSession
from app.features.quantize.page import QuantizePage
from app.features.quantize.reports import facts_name
from app.link.bridge import EngineBridge
from app.paths import evaluations_dir, models_dir
from app.storage.model_sources import SourceKind
from app.storage.report_store import ReportStore, StoredReport
from app.storage.trash import Trash
from app.window.progress import Work, WorkArea
from app.window.settings_store import RecentModel, SettingsStore
from engine.evaluate.report import ModelFacts

_LOCAL = (SourceKind.STARTER, SourceKind.LOCAL, SourceKind.CACHE, SourceKind.RECENT)


def make_quantize_page(
    bridge: EngineBridge,
    settings: SettingsStore,
    session: ModelSession,
    models: ModelsPage,
    trash: Trash,
) -> QuantizePage:
    """`trash`: for deleted reports."""

    def known() -> Sequence[tuple[str, str]]:
        """Models with weights on this machine, as (path, title)."""
        sources = models.library.known
        return [
            (source.path, source.title)
            for source in sources
            if source.kind in _LOCAL and source.load_format == "auto" and Path(source.path).exists()
        ]

    def folder() -> Path:
        """Default folder of new models."""
        own = [Path(path) for path in settings.folders]
        # a model folder has no others inside
        return next((p for p in own if p.is_dir() and not (p / "config.json").exists()),
                    models_dir())  # fmt: skip

    def threads() -> int | None:
        """One fewer than the default while a model is loaded, for the chat."""
        if not bridge.is_ready:
            return None
        from engine.hardware.machine import default_threads

        return max(1, default_threads() - 1)

    def list_made(path: str) -> None:
        """List a new model on the Models page."""
        made = Path(path)
        if not any(Path(known) in (made, *made.parents[:2]) for known in settings.folders):
            models.library.add_folder(str(made.parent if made.parent == models_dir() else made))
        else:
            models.library.reload()

    def current() -> str:
        opened = session.current
        return opened.path if opened is not None and opened.load_format == "auto" else ""

    store = ReportStore(evaluations_dir())
    rates = lambda: settings.quantize_rates
    asks_to_leave = lambda: settings.preferences.get("confirm_leave")
    page = QuantizePage(store, trash, known, folder, rates, threads, current, asks_to_leave)
    page.model_chosen.connect(session.open)
    page.model_made.connect(list_made)
    page.rate_measured.connect(settings.set_quantize_rate)
    models.library.loaded.connect(page.renew_models)
    return page


KEY = "quantize"


class QuantizeWork(QObject):
    """Shows progress and outcome in the work area while the page is hidden."""

    def __init__(self, page: QuantizePage, area: WorkArea, show_page: Callable[[], object]) -> None:
        super().__init__()
        self._page, self._area, self._show_page = page, area, show_page
        page.run_moved.connect(self._show)
        page.run_over.connect(self._show)
        page.seen.connect(self._show)

    def _show(self) -> None:
        work = self._work()
        if work is None or self._page.isVisible():
            self._area.end(KEY)
        else:
            self._area.show_work(work)

    def _work(self) -> Work | None:
        page = self._page
        if page.run is not None:
            shown = page.run.figures()
            return Work(KEY, shown.title, shown.stage, shown.time, shown.fraction,
                        actions=(("Show", self._show_page), ("Cancel", page.cancel)))  # fmt: skip
        if page.ending is None:
            return None
        text, is_error = page.ending
        tone = "error" if is_error else "muted"
        actions = (("Show", self._show_page), ("Close", self._close))
        return Work(KEY, "Quantize", text, moving=False, tone=tone, actions=actions)  # type: ignore[arg-type]

    def _close(self) -> None:
        self._page.ending = None
        self._area.end(KEY)


Side = tuple[RecentModel, Mapping[str, Any]]


class CompareInChat(QObject):
    """Shows the comparison with the reference on the left and the model on the right; loads the
    model first where neither is open."""

    def __init__(
        self,
        page: QuantizePage,
        comparison: CompareManager,
        session: ModelSession,
        bridge: EngineBridge,
    ) -> None:
        super().__init__()
        self._comparison, self._session, self._bridge = comparison, session, bridge
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
            self._comparison.show_sides(sides_of(stored))
        else:
            self._awaited = stored
            self._session.open(stored.report.candidate.path)

    def _on_loaded(self, path: str) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited.report.candidate.path == path:
            self._comparison.show_sides(sides_of(awaited))

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

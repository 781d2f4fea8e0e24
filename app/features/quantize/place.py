"""Connects the Quantize page to models, folders, engine and work area."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QObject

from app.features.models.page import ModelsPage
from app.features.models.session import ModelSession
from app.features.quantize.kept_reports import Keeper
from app.features.quantize.page import QuantizePage
from app.link.bridge import EngineBridge
from app.paths import evaluations_dir, models_dir
from app.storage.model_sources import SourceKind
from app.storage.report_store import ReportStore
from app.storage.trash import Trash
from app.window.progress import Work, WorkArea
from app.window.settings_store import SettingsStore

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

    keeper = Keeper(ReportStore(evaluations_dir()), trash)
    rates = lambda: settings.quantize_rates
    asks_to_leave = lambda: settings.preferences.get("confirm_leave")
    page = QuantizePage(keeper, known, folder, rates, threads, current, asks_to_leave)
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

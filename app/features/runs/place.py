"""Connects the Runs page to models, folders, engine, work area and chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject

from app.features.chat.controller import ChatController
from app.features.compare.broadcast_view import BroadcastView
from app.features.compare.placement import agrees
from app.features.compare.record import Comparison
from app.features.compare.record import Side as ComparedSide
from app.features.compare.replies import Reply, keep_as_chat
from app.features.compare.requests import Broadcast
from app.features.compare.runner import ComparisonRunner
from app.features.compare.stored import of_broadcast, of_comparison, run_sides, titles
from app.features.compare.view import CompareView
from app.features.models.page import ModelsPage
from app.features.models.precision import precision_text
from app.features.models.session import ModelSession
from app.features.quantize.reports import facts_name
from app.features.runs.job_forms import Offered
from app.features.runs.live_precision import LivePrecision
from app.features.runs.page import RunsPage
from app.features.runs.verdicts import between
from app.features.tune.engine_settings import EngineSettingsPanel
from app.link.bridge import EngineBridge
from app.paths import evaluations_dir, models_dir, runs_dir
from app.storage.model_sources import SourceKind
from app.storage.report_store import ReportStore, StoredReport
from app.storage.run_records import Kind, RunRecord
from app.storage.run_store import RunStore
from app.storage.trash import Trash
from app.window.progress import Work, WorkArea
from app.window.settings_store import RecentModel, SettingsStore
from engine.evaluate.report import ModelFacts

_LOCAL = (SourceKind.STARTER, SourceKind.LOCAL, SourceKind.CACHE, SourceKind.RECENT)


def make_runs_page(
    bridge: EngineBridge,
    settings: SettingsStore,
    session: ModelSession,
    models: ModelsPage,
    trash: Trash,
    panel: EngineSettingsPanel,
    continue_chat: Callable[[Reply, ComparedSide | None, str], None],
) -> RunsPage:
    """`trash`: for deleted runs. `continue_chat(reply, side, model)` continues a reply."""

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

    def speeds(comparison: Comparison) -> str:
        first, second = run_sides(comparison, is_together=runner.together)
        words = ", ".join(between(first, second))
        return f"{second.title}: {words}." if words else ""

    stores = ReportStore(evaluations_dir()), RunStore(runs_dir())
    rates = lambda: settings.quantize_rates
    asks_to_leave = lambda: settings.preferences.get("confirm_leave")
    runner = ComparisonRunner(bridge, panel.precision.times, session, panel)
    broadcast = Broadcast(bridge, panel)
    compare = partial(
        CompareView, bridge, panel.precision, runner, settings, continue_chat, speeds
    )
    keep = lambda reply, model: continue_chat(reply, None, model)
    precision = LivePrecision(bridge, panel.precision, panel.commands)
    page = RunsPage(
        stores, trash, compare, partial(BroadcastView, bridge, broadcast, keep), precision,
        continue_chat, Offered(known, current, folder, rates), threads, asks_to_leave,
    )  # fmt: skip
    prompts = PromptRuns(page, runner, broadcast, bridge)
    page.program_ends.connect(prompts.close)
    page.model_chosen.connect(session.open)
    page.model_made.connect(list_made)
    page.rate_measured.connect(settings.set_quantize_rate)
    models.library.loaded.connect(page.models_changed)
    return page


class PromptRuns(QObject):
    """Lists comparisons and broadcasts in the book: while they run, and when they have ended."""

    def __init__(
        self, page: RunsPage, runner: ComparisonRunner, broadcast: Broadcast, bridge: EngineBridge
    ) -> None:
        super().__init__(page)
        self._book, self._runner, self._broadcast = page.book, runner, broadcast
        self._bridge = bridge
        runner.changed.connect(self._on_comparison)
        runner.ended.connect(self._keep_comparison)
        broadcast.begun.connect(self._on_broadcast)
        broadcast.changed.connect(self._on_broadcast)
        broadcast.ended.connect(self._keep_broadcast)

    def close(self) -> None:
        """Stop both, and end second engines, as the program exits."""
        self._runner.stop()
        self._broadcast.stop()
        self._runner.close()

    def _on_comparison(self) -> None:
        runner = self._runner
        if runner.is_running and runner.comparison is not None:
            found = runner.comparison
            run = RunRecord(COMPARISON, Kind.COMPARE, found.model, titles(found), found.started)
            self._book.show_live(run, runner.status)

    def _keep_comparison(self) -> None:
        runner, found = self._runner, self._runner.comparison
        self._book.end_live(COMPARISON)
        if found is not None and any(any(pair.replies) for pair in found.pairs):
            self._book.keep(of_comparison(found, runner.problem, is_together=runner.together))

    def _on_broadcast(self) -> None:
        broadcast = self._broadcast
        if broadcast.is_running:
            done = sum(not reply.stage.is_open for reply in broadcast.replies)
            run = RunRecord(
                BROADCAST, Kind.BROADCAST, broadcast.model, self._precision, broadcast.started
            )
            progress = f"{done:,} of {len(broadcast.replies):,} replies finished"
            self._book.show_live(run, progress)

    def _keep_broadcast(self) -> None:
        broadcast = self._broadcast
        self._book.end_live(BROADCAST)
        self._book.keep(of_broadcast(
            broadcast.replies, broadcast.model, self._precision, broadcast.started
        ))  # fmt: skip

    @property
    def _precision(self) -> str:
        model, config = self._bridge.model, self._bridge.config
        return precision_text(model, config) if model is not None and config is not None else ""


COMPARISON, BROADCAST = "comparison", "broadcast"
"""Ids of the running ones."""


def continue_as_chat(
    chats: ChatController, session: ModelSession, bridge: EngineBridge,
    reply: Reply, side: ComparedSide | None, model: str,
) -> None:  # fmt: skip
    """Open a chat with a reply, and turn the engine to the side that wrote it."""
    name = reply.figures.model if reply.figures is not None and reply.figures.model else model
    keep_as_chat(chats, reply, name)
    config = bridge.config
    if side is None or config is None or bridge.locked:
        return
    if side.path and not session.is_open(side.path):
        session.load(RecentModel(side.path, side.load_format, settings=side.settings).config())
    elif not agrees(config, side.settings):
        bridge.reconfigure(**side.settings)


KEY, PAGE = "quantize", "Runs"
Action = tuple[str, Callable[[], object]]


class JobWork(QObject):
    """Shows progress and outcome in the work area while the page is hidden."""

    def __init__(self, page: RunsPage, area: WorkArea, show_page: Callable[[], object]) -> None:
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
            actions: tuple[Action, ...] = ("Show", self._show_page), ("Cancel", page.jobs.cancel)
            return Work(
                KEY, shown.title, shown.stage, shown.time, shown.fraction, actions=actions,
                page=PAGE,
            )  # fmt: skip
        if page.jobs.ending is None:
            return None
        text, is_error = page.jobs.ending
        actions = (("Show", self._show_page), ("Close", self._close))
        return Work(
            KEY, "Job", text, moving=False, tone="error" if is_error else "muted", actions=actions,
            page=PAGE, is_done=not is_error,
        )  # fmt: skip

    def _close(self) -> None:
        self._page.jobs.ending = None
        self._area.end(KEY)


Side = tuple[RecentModel, Mapping[str, Any]]


class CompareInChat(QObject):
    """Shows the comparison with the reference on the left and the model on the right; loads the
    model first where neither is open."""

    def __init__(
        self,
        page: RunsPage,
        session: ModelSession,
        bridge: EngineBridge,
    ) -> None:
        super().__init__()
        self._page, self._session, self._bridge = page, session, bridge
        self._awaited: StoredReport | None = None  # its model is loading
        page.compare_in_chat.connect(self.compare)
        bridge.loaded.connect(lambda event: self._on_loaded(event.config.model))
        bridge.load_failed.connect(lambda event: self._forget())

    def compare(self, stored: StoredReport) -> None:
        current = self._session.current
        loaded = current.path if self._bridge.is_ready and current is not None else ""
        paths = {model.path for model, _ in sides_of(stored)}
        if loaded in paths or (loaded and len(paths) > 1):
            self._show(stored)
        else:
            self._awaited = stored
            self._session.open(stored.report.candidate.path)

    def _on_loaded(self, path: str) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited.report.candidate.path == path:
            self._show(awaited)

    def _show(self, stored: StoredReport) -> None:
        self._page.show_form(Kind.COMPARE)
        self._page.compare.choose_sides(sides_of(stored))

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

"""Connections of signals between the parts of `Application`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QApplication

from app.features.chat.labels import suggestions_for
from app.features.inspect.measured_gains import MeasuredGains
from app.features.models.precision import QUANTIZE, precision_text
from app.features.models.session import ENGINE
from app.features.recording.crash_watch import open_file
from app.features.runs.records import of_change
from app.features.tune.draft_models import METHOD
from app.features.tune.forecaster import Forecaster
from app.features.tune.verdict import Verdict
from app.storage.run_records import Kind
from app.window.notices import Notice, error_notice
from app.window.program_settings import PREFERENCES
from engine.config import EngineConfig
from engine.snapshot import GpuFigures
from widgets.plot.series import MarkKind
from widgets.theme.theme import apply_text_size

if TYPE_CHECKING:
    from app.main.application import Application

CHAT_LIST, INSPECTOR, ADVANCED = "chat-list", "reply-inspector", "advanced-settings"


def connect(app: Application) -> None:
    """Connect every signal between parts, and apply the preferences that the parts follow."""
    _connect_notices(app)
    _connect_model(app)
    _connect_panels(app)
    _offer_other_engines(app)
    _connect_pages(app)
    _connect_window(app)
    _follow_preferences(app)
    _report_files(app)


def _connect_notices(app: Application) -> None:
    app.notices.shown.connect(app.history.add)
    for notice in (
        app.session.notice, app.engine_settings.notice, app.recordings.notice, app.layouts.notice,
        app.crash.notice,
    ):  # fmt: skip
        notice.connect(app.notices.show_notice)
    server = app.pages.server
    for part in (server.switch, server.engines.notices, server.cards.routed):
        part.notice.connect(app.notices.show_notice)
        part.notice_gone.connect(app.notices.dismiss)
    app.session.notice_gone.connect(app.notices.dismiss)
    app.session.notice_gone.connect(app.history.end)

    def link_report(path: Path) -> None:
        """Add a button for the report to an open crash notice."""
        notice = app.notices.notice(ENGINE)
        if notice is not None:
            look = ("Open report", lambda: open_file(path))
            app.notices.show_notice(replace(notice, actions=(*notice.actions, look)))

    app.crash.report_written.connect(link_report)


def _connect_model(app: Application) -> None:
    page = app.pages.chat_page

    def opened(config: EngineConfig, chosen: Mapping[str, object]) -> None:
        page.empty.set_suggestions(suggestions_for(config.model))
        current = app.session.current
        app.pages.tune.result.opened(current.title if current is not None else "model", chosen)
        show_open_model()

    def remarked(remark: Notice | None) -> None:
        if remark is None:
            page.model_notice.say("")
        else:
            action, do = remark.actions[0] if remark.actions else ("", None)
            page.model_notice.say(f"{remark.cause} {remark.remedy}".strip(), action, do)
        show_open_model()  # none is open any more, or another

    def show_open_model() -> None:
        current = app.session.current
        app.pages.models.show_open(current.path if current is not None else "")

    def show_already_open(title: str) -> None:
        app.window.show_widget(page)
        page.toast.show_message(f"{title} is already open.")

    app.session.opening.connect(app.engine_settings.show_opening)
    app.session.opened.connect(app.engine_settings.show_model)
    app.session.opened.connect(opened)
    app.session.remark.connect(remarked)
    app.session.wants_model.connect(app.pages.models.open_model)
    app.session.already_open.connect(show_already_open)
    app.window.model_dropped.connect(app.pages.models.open_model)
    app.pages.models.model_chosen.connect(app.session.open)
    app.pages.models.run_wanted.connect(app.pages.server.run_with)
    app.load_strip.cancelled.connect(app.bridge.cancel_load)


def _offer_other_engines(app: Application) -> None:
    def offer(source: str, flags: Mapping[str, str]) -> None:
        current = app.session.current
        run = partial(app.pages.server.run_with, current.path if current is not None else "", flags)
        sizes = " ".join(f"{flag} {size}" for flag, size in flags.items())
        app.notices.show_notice(
            Notice(
                "parallel",
                f"{source}: {sizes} has no effect. Inferdeck's engine runs a model on one device.",
                "vLLM runs it on several, with the same sizes.",
                kind="warning", actions=(("Run with vLLM…", run),),
            )
        )  # fmt: skip

    app.session.parallel_skipped.connect(offer)
    app.engine_settings.commands.parallel_skipped.connect(offer)


def _connect_panels(app: Application) -> None:
    panel, views = app.engine_settings, app.views

    def changed(text: str, details: tuple[str, ...], chosen: dict[str, object]) -> None:
        is_own = not app.bridge.lock  # else a benchmark's, or a comparison's
        app.charts.mark(text, MarkKind.SETTING if is_own else MarkKind.TRIAL, details)
        if is_own:
            app.pages.tune.result.changed(text, chosen)
            app.session.remember_settings(chosen)

    def show_setting(name: str) -> None:
        app.settings_dock.bring_to_front()
        panel.show_row(name)

    def get_precision(way: str) -> None:
        """Quantize a checkpoint, or open another model."""
        if way == QUANTIZE:
            app.pages.runs.show_form(Kind.QUANTIZE)
        else:
            app.pages.models.open_model()

    def keep_change(text: str, result: str, verdicts: list[Verdict]) -> None:
        model, config = app.bridge.model, app.bridge.config
        name = model.name if model is not None else ""
        precision = precision_text(model, config) if model is not None and config else ""
        run = of_change(text, result, verdicts, name, precision)
        app.pages.runs.book.keep(run, app.pages.tune.result.show_kept)

    panel.list.set_advanced(app.settings.flag(ADVANCED, False))
    panel.list.advanced_toggled.connect(lambda on: app.settings.set_flag(ADVANCED, on))
    panel.commands.changed.connect(changed)
    app.changes.applied.connect(lambda made: panel.commands.said.emit(made.sentence))
    app.pages.tune.result.list.restore_wanted.connect(panel.commands.restore)
    app.pages.tune.result.keep_wanted.connect(keep_change)
    panel.precision.way_out.connect(get_precision)
    app.bridge.snapshot.connect(panel.update_snapshot)
    gains = MeasuredGains()
    app.bridge.loaded.connect(gains.opened)
    app.bridge.reconfigured.connect(gains.changed)
    app.pages.tune.result.judged.connect(gains.judged)
    views.bottleneck.measured = gains.find
    views.bottleneck.estimated.connect(panel.show_ceilings)
    views.bottleneck.applied.connect(panel.commands.change)
    views.speculation.settings_wanted.connect(partial(show_setting, METHOD))
    app.preferences.engine_setting_wanted.connect(show_setting)

    def show_gpus(at: float, gpus: tuple[GpuFigures, ...], usable: tuple[GpuFigures, ...]) -> None:
        panel.offer_gpus(tuple(gpu.name for gpu in usable))
        views.memory.update_gpus(gpus)
        for charts in (app.charts, app.pages.tune.charts):
            charts.update_gpus(at, gpus)

    app.gpu.figures.connect(show_gpus)
    server = app.pages.server
    panel.commands.is_run_here = lambda: server.engines.is_running(server.switch.used_id)
    panel.edit_wanted.connect(lambda: server.edit(server.switch.used_id))
    _connect_forecasts(app)


def _connect_forecasts(app: Application) -> None:
    """Predictions of chosen settings: in the charts, beside Apply, and in the result."""
    panel, page = app.engine_settings, app.pages.tune
    forecaster = Forecaster(app.bridge, app.metrics, lambda: panel.commands.wanted, app.window)

    def show() -> None:
        forecast = forecaster.forecast
        for charts in (app.charts, page.charts):
            charts.show_prediction(forecast.curves if forecast is not None else {})
        panel.pending.show_forecast(forecaster.words)
        page.result.refresh()

    forecaster.changed.connect(show)
    panel.commands.chosen.connect(forecaster.refresh)
    panel.commands.refreshed.connect(forecaster.refresh)
    page.load.happened.connect(lambda text, words: forecaster.load_changed())
    page.result.forecast = lambda: forecaster.applied
    app.window.closing.connect(forecaster.close)


def _connect_pages(app: Application) -> None:
    pages, window = app.pages, app.window
    pages.chat_page.composer.compare_requested.connect(pages.runs.show_prompt)
    pages.runs.bench_wanted.connect(pages.bench.show_run)
    pages.chat_page.inspector.view.latency.step_wanted.connect(app.views.show_step)
    app.bridge.snapshot.connect(pages.chat_page.inspector.take)
    pages.server.requests_wanted.connect(app.views.show_requests)
    for page in (pages.inspect, pages.models_place, pages.runs, pages.server):
        page.wants_front.connect(partial(window.show_widget, page))
    for begins_chat in (pages.models_place.chat_wanted, pages.runs.model_chosen):
        begins_chat.connect(lambda *_: window.show_widget(pages.chat_page))
    settings, panes = app.settings, pages.chat_page.panes

    def keep_panes() -> None:
        settings.set_flag(CHAT_LIST, panes.list_wanted)
        settings.set_flag(INSPECTOR, panes.inspector_wanted)

    panes.want(settings.flag(CHAT_LIST, True), settings.flag(INSPECTOR, True))
    pages.chat_page.panes_changed.connect(keep_panes)


def _connect_window(app: Application) -> None:
    """Signals that enable or disable commands, and parts that close with the window."""
    refresh = app.window.commands.refresh
    app.engine_settings.actions_changed.connect(refresh)
    app.recorder.begun.connect(refresh)
    bridge = app.bridge
    for changed in (bridge.state_changed, bridge.link_changed, bridge.reconfiguring,
                    bridge.reconfigure_failed):  # fmt: skip
        changed.connect(lambda _: refresh())
    app.status.title_changed.connect(app.window.setWindowTitle)
    app.window.closing.connect(app.lessons.close)
    for part in (app.recordings, app.preferences, app.connection, app.last_chat):
        app.window.closing.connect(part.close)
    app.window.closing.connect(app.pages.runs.program_ends)


def _follow_preferences(app: Application) -> None:
    preferences, layouts = app.settings.preferences, app.layouts

    def show_failure(name: str) -> None:
        title = f"Could not fully apply “{PREFERENCES[name].label}”."
        app.notices.show_notice(
            error_notice(f"preference-{name}", title, preferences.failures[name])
        )

    for name in preferences.failures:  # of parts that were made before
        show_failure(name)
    preferences.failed.connect(show_failure)
    for charts in (app.charts, app.pages.tune.charts):
        preferences.bind("chart_span", charts.set_window)
        charts.window_changed.connect(lambda s: preferences.set("chart_span", round(s)))
    preferences.bind("notices_kept", app.history.set_limit)
    preferences.bind("notice_seconds", app.notices.set_info_seconds)
    preferences.follow("model_folders", lambda folders: app.pages.models.library.reload())
    preferences.follow("engine_place", app.process.follow)
    preferences.follow("text_size", lambda percent: layouts.leave_text_size())

    def apply_size() -> None:
        """Apply the layout's text size, else the one in the settings."""
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        apply_text_size(application, layouts.text_size or preferences.get("text_size"))

    layouts.text_size_changed.connect(apply_size)
    apply_size()


def _report_files(app: Application) -> None:
    """Show a notice for each unreadable user file."""
    settings = app.settings
    for key, file in (
        ("settings", settings), ("profile", settings.profiles), ("shortcuts", settings.keymap),
        ("layout", app.layout_store), ("downloads", app.pages.models.queue),
    ):  # fmt: skip
        if file.problem:
            app.notices.show_notice(Notice(key, file.problem, kind="warning"))

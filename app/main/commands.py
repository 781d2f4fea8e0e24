"""The main window's own commands. Menus, shortcuts and their overview are made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtWidgets import QDockWidget

from app.features.inspect.page import InspectPage
from app.features.models.session import ModelSession
from app.features.tune.engine_settings import EngineSettingsPanel
from app.features.tune.page import METRIC_WORDS
from app.link.bridge import EngineBridge
from app.main.main_window import NOTICES, PALETTE, Dialogs, MainWindow
from app.window.commands import Command
from app.window.help_dialogs import show_documentation
from app.window.program_settings import PREFERENCES, Preferences
from widgets.live.charts import LiveCharts

KEYWORDS = {
    "Tune": f"{METRIC_WORDS} charts load settings",
    "Server": "API OpenAI endpoint",
    "live-charts": f"{METRIC_WORDS} memory KV",
    "step-timeline": "ITL latency steps",
    "bottleneck": "profile roofline gain",
    "recordings": "flight recorder replay",
}
"""Further words of pages, docks and tabs for the palette."""


def file_commands(
    window: MainWindow,
    switch_model: Callable[[], object],
    session: ModelSession,
    bridge: EngineBridge,
) -> list[Command]:
    return [
        Command("model.open", "Open model…", switch_model, "File", "Ctrl+O", "folder", "model"),
        Command(
            "model.unload", "Unload model", session.unload, "File", section="unload",
            is_enabled=lambda: bridge.is_ready, why_not=lambda: bridge.look_only,
        ),
        Command("app.quit", "Quit", window.close, "File", "Ctrl+Q", section="quit"),
    ]  # fmt: skip


def view_commands(
    window: MainWindow, preferences: Preferences, charts: Sequence[LiveCharts]
) -> list[Command]:
    """`charts`: paused together."""

    def pause() -> None:
        is_paused = charts[0].is_paused
        for each in charts:
            each.set_paused(not is_paused)

    def set_theme(mode: str) -> None:
        preferences.set("theme", mode)
        window.commands.refresh()

    def is_theme(mode: str) -> bool:
        return bool(preferences.get("theme") == mode)

    def is_page(index: int) -> bool:
        return window.page_index == index

    pages = [
        Command(
            f"page.{page.name.lower()}", page.name, partial(window.show_page, index),
            "View", f"Ctrl+{index + 1}", page.icon, "pages", choice="page",
            is_checked=partial(is_page, index), keywords=KEYWORDS.get(page.name, ""),
        )
        for index, page in enumerate(window.pages)
    ]  # fmt: skip
    docks = [
        Command(
            f"dock.{dock.objectName()}", dock.windowTitle(), partial(_toggle, window, dock),
            "View", shortcut, section="docks", is_checked=partial(_is_open, dock),
            keywords=KEYWORDS.get(dock.objectName(), ""),
        )
        for dock, shortcut in window.dock_shortcuts
    ]  # fmt: skip
    themes = [
        Command(
            f"theme.{mode}", text, partial(set_theme, mode), "View", section="theme",
            choice="theme", is_checked=partial(is_theme, mode),
        )
        for mode, text in PREFERENCES["theme"].choices
    ]  # fmt: skip
    return [
        *pages,
        *docks,
        Command(
            NOTICES, "Notifications", window.show_notifications, "View", "Ctrl+Shift+N", "bell",
            "docks",
        ),
        Command("docks.reset", "Reset panels", window.docks.reset, "View", section="docks"),
        Command(
            "charts.pause", "Pause charts", pause, "View", "Ctrl+Shift+J", section="charts",
            is_checked=lambda: charts[0].is_paused,
        ),
        *themes,
    ]  # fmt: skip


def inspect_commands(page: InspectPage) -> list[Command]:
    return [
        Command(
            f"inspect.{name}", title, partial(page.open_view, name), "Inspect",
            f"Alt+{number}", keywords=KEYWORDS.get(name, ""),
        )
        for number, (name, title) in enumerate(page.titles.items(), 1)
    ]  # fmt: skip


def tune_commands(panel: EngineSettingsPanel, bridge: EngineBridge) -> list[Command]:
    def has_model() -> bool:
        return panel.model.applied is not None

    def why_not() -> str:
        return bridge.locked

    return [
        Command(
            "tune.apply", "Apply pending settings", panel.commands.apply, "Tune", "Ctrl+Alt+A",
            "check", "pending", is_enabled=lambda: bool(panel.model.pending), why_not=why_not,
        ),
        Command(
            "tune.discard", "Discard pending settings", panel.commands.discard, "Tune",
            "Ctrl+Alt+D", section="pending", is_enabled=lambda: bool(panel.model.pending),
        ),
        Command(
            "tune.undo", "Undo setting", panel.commands.undo, "Tune", "Ctrl+Alt+Z", "undo",
            "history",
            is_enabled=lambda: panel.model.can_undo, why_not=why_not,
        ),
        Command(
            "tune.redo", "Redo setting", panel.commands.redo, "Tune", "Ctrl+Alt+Shift+Z", "redo",
            "history",
            is_enabled=lambda: panel.model.can_redo, why_not=why_not,
        ),
        Command(
            "tune.defaults", "Reset engine settings", panel.commands.reset, "Tune",
            section="history",
            is_enabled=lambda: bool(panel.model.chosen), why_not=why_not,
        ),
        Command(
            "tune.save_profile", "Save settings as profile…", panel.profiles.ask_name, "Tune",
            section="profiles", is_enabled=has_model,
        ),
        Command(
            "tune.server_command", "Copy settings as server command…", panel.show_command, "Tune",
            "Ctrl+Alt+C", section="profiles", is_enabled=has_model,
        ),
    ]  # fmt: skip


def help_commands(window: MainWindow, dialogs: Dialogs) -> list[Command]:
    return [
        Command(
            "help.documentation", "Documentation", partial(show_documentation, window), "Help",
            "F1", "book", "help",
        ),
        Command(
            PALETTE, "Find command or setting", dialogs.show_palette, "Help", "Ctrl+Shift+P",
            "search", "help",
        ),
        Command(
            "help.shortcuts", "Keyboard shortcuts", dialogs.show_shortcuts, "Help", "Ctrl+/",
            "keyboard", "help",
        ),
        Command(
            "help.about", "About Inferdeck", dialogs.show_about, "Help", icon="info",
            section="about",
        ),
    ]  # fmt: skip


def _is_open(dock: QDockWidget) -> bool:
    return not dock.isHidden()


def _toggle(window: MainWindow, dock: QDockWidget) -> None:
    """Open a dock or bring it to the front; close it when it is already visible. A page with the
    same view shows that."""
    if window.page.shows(dock.objectName()):
        return
    is_seen = not dock.isHidden() and not dock.visibleRegion().isEmpty()
    dock.setVisible(not is_seen)
    if not is_seen:
        dock.raise_()

"""What the window can do, as data: menus, shortcuts and their overview are made from this."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QDockWidget

from app.window.commands import Command
from app.window.documentation import show_documentation
from app.window.settings_store import ThemeMode

if TYPE_CHECKING:
    from app.main.main_window import MainWindow


PALETTE = "help.palette"
THEMES: tuple[tuple[ThemeMode, str], ...] = (
    ("light", "Light"),
    ("dark", "Dark"),
    ("system", "As the system"),
)


def window_commands(window: MainWindow) -> list[Command]:
    """The commands of the window itself; pages add their own."""
    return [*_file(window), *_view(window), *_tune(window), *_help(window)]


def _file(window: MainWindow) -> list[Command]:
    def has_model() -> bool:
        return window.bridge.is_ready

    return [
        Command(
            "model.open", "Open model…", window.show_open_model, "File", "Ctrl+O",
            "folder", "model",
        ),
        Command(
            "model.unload", "Unload model", window.session.unload, "File", section="unload",
            is_enabled=has_model, why_not=lambda: window.bridge.look_only,
        ),
        Command("app.quit", "Quit", window.close, "File", "Ctrl+Q", section="quit"),
    ]  # fmt: skip


def _view(window: MainWindow) -> list[Command]:
    pages = [
        Command(
            f"page.{page.name.lower()}", page.name, partial(window.show_page, index),
            "View", f"Ctrl+{index + 1}", page.icon, "pages", choice="page",
            is_checked=partial(_is_page, window, index),
        )
        for index, page in enumerate(window.pages)
    ]  # fmt: skip
    docks = [
        Command(
            f"dock.{dock.objectName()}", dock.windowTitle(),
            partial(_toggle, dock), "View", shortcut, section="docks",
            is_checked=partial(_is_open, dock),
        )
        for dock, shortcut in window.dock_shortcuts()
    ]  # fmt: skip
    themes = [
        Command(
            f"theme.{mode}", text, partial(window.set_theme, mode), "View",
            section="theme", choice="theme", is_checked=partial(_is_theme, window, mode),
        )
        for mode, text in THEMES
    ]  # fmt: skip
    return [
        *pages,
        *docks,
        Command(
            "docks.reset", "Panels back to their places", window.docks.reset, "View",
            section="docks",
        ),
        Command(
            "charts.pause", "Hold the charts still", window.toggle_charts, "View", "Ctrl+Shift+J",
            section="charts", is_checked=lambda: window.charts_paused,
        ),
        *themes,
    ]  # fmt: skip


def _tune(window: MainWindow) -> list[Command]:
    panel = window.engine_settings

    def has_model() -> bool:
        return panel.model.applied is not None

    def why_not() -> str:
        return window.bridge.look_only

    return [
        Command(
            "tune.undo", "Undo setting", panel.undo, "Tune", "Ctrl+Alt+Z", "undo", "history",
            is_enabled=lambda: panel.model.can_undo, why_not=why_not,
        ),
        Command(
            "tune.redo", "Redo setting", panel.redo, "Tune", "Ctrl+Alt+Shift+Z", "redo", "history",
            is_enabled=lambda: panel.model.can_redo, why_not=why_not,
        ),
        Command(
            "tune.defaults", "Settings back to their defaults", panel.reset, "Tune",
            section="history", is_enabled=lambda: bool(panel.model.chosen), why_not=why_not,
        ),
        Command(
            "tune.save_profile", "Save settings as a profile…", panel.profiles.ask_name, "Tune",
            section="profiles", is_enabled=has_model,
        ),
        Command(
            "tune.server_command", "Settings as a server's command line…", panel.show_command,
            "Tune", "Ctrl+Alt+C", section="profiles", is_enabled=has_model,
        ),
    ]  # fmt: skip


def _help(window: MainWindow) -> list[Command]:
    return [
        Command(
            "help.documentation", "Documentation", partial(show_documentation, window), "Help",
            "F1", "book", "help",
        ),
        Command(
            PALETTE, "Find a command or setting", window.show_palette, "Help", "Ctrl+Shift+P",
            "search", "help",
        ),
        Command(
            "help.shortcuts", "Keyboard shortcuts", window.show_shortcuts, "Help", "Ctrl+/",
            "keyboard", "help",
        ),
        Command("help.about", "About Inferdeck", window.show_about, "Help", icon="info",
                section="about"),
    ]  # fmt: skip


def _is_page(window: MainWindow, index: int) -> bool:
    return window.page_index == index


def _is_theme(window: MainWindow, mode: ThemeMode) -> bool:
    return window.settings.theme == mode


def _is_open(dock: QDockWidget) -> bool:
    return not dock.isHidden()


def _toggle(dock: QDockWidget) -> None:
    """Open it, or bring it to the front of its tabs; close it where it is seen already."""
    is_seen = not dock.isHidden() and not dock.visibleRegion().isEmpty()
    dock.setVisible(not is_seen)
    if not is_seen:
        dock.raise_()

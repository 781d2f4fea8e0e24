"""What the window can do, as data: menus, shortcuts and their overview are made from this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.commands import Command

if TYPE_CHECKING:
    from app.main_window import MainWindow


def window_commands(window: MainWindow) -> list[Command]:
    """The commands of the window itself; pages add their own."""
    return [*_file(window), *_view(window), *_help(window)]


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
            is_enabled=has_model,
        ),
        Command("app.quit", "Quit", window.close, "File", "Ctrl+Q", section="quit"),
    ]  # fmt: skip


def _view(window: MainWindow) -> list[Command]:
    pages = [
        Command(
            f"page.{page.name.lower()}", page.name, lambda index=index: window.show_page(index),
            "View", f"Ctrl+{index + 1}", page.icon, "pages", choice="page",
            is_checked=lambda index=index: window.page_index == index,
        )
        for index, page in enumerate(window.pages)
    ]  # fmt: skip
    docks = [
        Command(
            f"dock.{dock.objectName()}", dock.windowTitle(),
            lambda dock=dock: dock.setVisible(dock.isHidden()), "View", shortcut, section="docks",
            is_checked=lambda dock=dock: not dock.isHidden(),
        )
        for dock, shortcut in window.dock_shortcuts()
    ]  # fmt: skip
    themes = [
        Command(
            f"theme.{mode}", text, lambda mode=mode: window.set_theme(mode), "View",
            section="theme", choice="theme",
            is_checked=lambda mode=mode: window.settings.theme == mode,
        )
        for mode, text in (("light", "Light"), ("dark", "Dark"), ("system", "As the system"))
    ]  # fmt: skip
    return [
        *pages,
        *docks,
        Command(
            "docks.reset", "Panels back to their places", window.reset_docks, "View",
            section="docks",
        ),
        Command(
            "charts.pause", "Hold the charts still", window.toggle_charts, "View", "Ctrl+Shift+J",
            section="charts", is_checked=lambda: window.charts_paused,
        ),
        *themes,
    ]  # fmt: skip


def _help(window: MainWindow) -> list[Command]:
    return [
        Command(
            "help.shortcuts", "Keyboard shortcuts", window.show_shortcuts, "Help", "Ctrl+/",
            "keyboard", "help",
        ),
        Command("help.about", "About Inferdeck", window.show_about, "Help", icon="info",
                section="about"),
    ]  # fmt: skip

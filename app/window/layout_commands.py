"""Layouts: choose, save, rename and delete them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QInputDialog, QWidget

from app.window.commands import Command, CommandRegistry
from app.window.dock_layouts import DockLayouts
from app.window.layouts import BUILT_IN, Layout, LayoutError, LayoutStore
from app.window.notices import Notice, error_notice
from app.window.settings_store import SettingsStore

NOTICE = "layout"
OWN_TEXT = "layout-text"
"""Flag: the layout's text size applies, not the preferences'."""


class LayoutController(QObject):
    """`text_size_changed`: see `text_size`. `page` is the name of the current page, and
    `show_page` shows another."""

    notice = Signal(object)  # Notice
    text_size_changed = Signal()

    def __init__(
        self,
        store: LayoutStore,
        settings: SettingsStore,
        docks: DockLayouts,
        commands: CommandRegistry,
        page: Callable[[], str],
        show_page: Callable[[str], object],
        window: QWidget,
    ) -> None:
        """Adds a command for each layout to `commands`."""
        super().__init__(window)
        self.store, self._settings, self._window = store, settings, window
        self._docks, self._registry = docks, commands
        self._page, self._show_page = page, show_page
        docks.unreadable.connect(self._on_unreadable)
        commands.add(*self._commands())
        for layout in store.own:
            commands.add(self._choice(layout))

    # What there is -----------------------------------------------------------------------------

    @property
    def current(self) -> Layout:
        return self.store.current(self._settings.layout)

    @property
    def text_size(self) -> int | None:
        """In percent; None if the preferences' applies."""
        return self.current.text_size if self._settings.flag(OWN_TEXT, False) else None

    def leave_text_size(self) -> None:
        """Use the preferences' size from now on."""
        self._settings.set_flag(OWN_TEXT, False)

    def _commands(self) -> list[Command]:
        def is_own() -> bool:
            return not self.current.is_built_in

        def command(verb: str, text: str, do: Callable[[], object], shortcut: str = "") -> Command:
            needs_own = verb in ("update", "rename", "delete")
            return Command(
                f"layout.{verb}", text, do, "View", shortcut, section="layout", submenu="Layout",
                is_enabled=is_own if needs_own else None,
            )  # fmt: skip

        choices = [
            self._choice(layout, f"Ctrl+Alt+{number}") for number, layout in enumerate(BUILT_IN, 1)
        ]
        return [
            *choices,
            command("save_as", "Save layout as…", self.ask_to_save),
            command("update", "Update layout", self.update),
            command("rename", "Rename layout…", self.ask_to_rename),
            command("delete", "Delete layout", self.delete),
            command("reset", "Reset layout", self.reset, "Ctrl+Alt+0"),
        ]

    def _choice(self, layout: Layout, shortcut: str = "") -> Command:
        name = layout.name
        text = f"{name} layout".replace("&", "&&")
        return Command(
            _id(layout), text, partial(self.choose, name), "View", shortcut, section="layout",
            choice="layout", submenu="Layout", is_checked=lambda: self.current.name == name,
        )  # fmt: skip

    # What the user does ------------------------------------------------------------------------

    def choose(self, name: str) -> None:
        """Apply a layout: page, panels and text size."""
        layout = self.store.find(name)
        if layout is None:
            return
        self._settings.layout = layout.name
        self._settings.set_flag(OWN_TEXT, layout.text_size is not None)
        self.text_size_changed.emit()
        self._docks.adopt(layout.states)
        if layout.page:
            self._show_page(layout.page)
        self._refresh()

    def reset(self) -> None:
        """Apply the current layout again."""
        self.choose(self.current.name)

    def save_as(self, name: str) -> None:
        """Save the current arrangement under `name`."""
        base = self.current.base
        layout = Layout(name, base, self._page(), self.text_size, self._docks.states())
        known = self.store.find(name)
        try:
            kept = self.store.save(layout)
        except LayoutError as error:
            self._say(error)
            return
        if known is None:
            self._registry.add(self._choice(kept))
        elif known.name != kept.name:
            self._take_name(known, kept)
        self._settings.layout = kept.name
        self._settings.set_flag(OWN_TEXT, kept.text_size is not None)
        self._refresh()

    def update(self) -> None:
        """Save the current arrangement in the current layout."""
        self.save_as(self.current.name)
        self.notice.emit(Notice(NOTICE, f"Layout “{self.current.name}” updated."))

    def rename(self, name: str) -> None:
        """Rename the current layout."""
        before = self.current
        try:
            after = self.store.rename(before.name, name)
        except LayoutError as error:
            self._say(error)
            return
        self._take_name(before, after)
        self._settings.layout = after.name
        self._refresh()

    def delete(self) -> None:
        """Delete the current layout; the arrangement stays."""
        gone, base = self.current, self.current.base
        try:
            self.store.delete(gone.name)
        except LayoutError as error:
            self._say(error)
            return
        self._registry.remove(_id(gone))
        self._settings.layout = base
        self._refresh()
        undo = ("Undo", partial(self._bring_back, gone))
        self.notice.emit(Notice(NOTICE, f"Layout “{gone.name}” deleted.", actions=(undo,)))

    def _bring_back(self, layout: Layout) -> None:
        try:
            self.store.save(layout)
        except LayoutError as error:
            self._say(error)
            return
        if _id(layout) not in self._registry:
            self._registry.add(self._choice(layout))
        self._settings.layout = layout.name
        self._refresh()

    def ask_to_save(self) -> None:
        own = self.current.name if not self.current.is_built_in else ""
        self._ask("Save layout as", "Name (replaces your layout of the same name):",
                  own, "Save", self.save_as)  # fmt: skip

    def ask_to_rename(self) -> None:
        self._ask("Rename layout", "New name:", self.current.name, "Rename", self.rename)

    def _ask(
        self, title: str, label: str, text: str, button: str, do: Callable[[str], object]
    ) -> None:
        dialog = QInputDialog(self._window)
        dialog.setWindowTitle(title)
        dialog.setLabelText(label)
        dialog.setTextValue(text)
        dialog.setOkButtonText(button)
        dialog.textValueSelected.connect(do)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    # -------------------------------------------------------------------------------------------

    def _take_name(self, before: Layout, after: Layout) -> None:
        """Rename its command; keep the keys."""
        keys = self._registry.keymap.keys(_id(before))
        self._registry.remove(_id(before))
        self._registry.add(self._choice(after))
        if keys:
            self._registry.keymap.bind(_id(after), keys)
            self._registry.take_keys()

    def _refresh(self) -> None:
        self._registry.refresh()

    def _say(self, error: LayoutError) -> None:
        self.notice.emit(error_notice(NOTICE, "", error.info()))

    def _on_unreadable(self, page: str) -> None:
        name, base = self.current.name, self.current.base
        self.notice.emit(
            Notice(
                NOTICE,
                f"The panel layout of the {page} page is of another version.",
                f"The page uses “{base}”. The saved layout “{name}” stays as it is until you "
                "update it.",
                "warning",
            )
        )


def _id(layout: Layout) -> str:
    return f"layout.{'' if layout.is_built_in else 'own.'}{layout.name.lower()}"

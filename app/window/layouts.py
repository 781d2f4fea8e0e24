"""Layouts: the built-in ones and the user's; commands to choose, save, rename and delete them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QInputDialog, QWidget

from app.storage.json_file import KeptFile
from app.storage.profiles import clean_name
from app.window.commands import Command, CommandRegistry
from app.window.dock_layouts import DockLayouts
from app.window.docks import ALL_DOCKS, CLOSED_DOCKS, DockPlan
from app.window.notices import Notice, error_notice
from app.window.program_settings import PREFERENCES
from app.window.settings_store import SettingsStore
from engine.errors import InferdeckError

CHAT, TUNING, PRESENTATION = "Chat", "Tuning", "Presentation"


@dataclass(frozen=True, slots=True)
class Layout:
    """`base`: the built-in layout for pages without a state; `page`: shown when chosen, ""
    for the current one; `text_size`: in percent, None for the preferences'; `states`: of the
    docks, by page."""

    name: str
    base: str = CHAT
    page: str = ""
    text_size: int | None = None
    states: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_built_in(self) -> bool:
        return self in BUILT_IN


BUILT_IN = (
    Layout(CHAT, CHAT, "Chat"),
    Layout(TUNING, TUNING, "Tune"),
    Layout(PRESENTATION, PRESENTATION, "", 130),
)
_PLANS: dict[str, dict[str, DockPlan]] = {
    CHAT: {},
    TUNING: {"Chat": ALL_DOCKS},
    PRESENTATION: {
        "Chat": DockPlan(below=(("live-charts",),), height=420),
        "Tune": CLOSED_DOCKS,
    },
}


def plan_of(base: str, page: str, first: DockPlan) -> DockPlan:
    """The docks of a page in a built-in layout; `first`: the page's own plan."""
    return _PLANS[base].get(page, first)


VERSION = 1


class LayoutError(InferdeckError):
    """A layout could not be saved."""


class LayoutStore:
    """Built-in layouts, then the user's by name. Every change is written at once; a failed write
    raises LayoutError and changes nothing."""

    def __init__(self, path: Path) -> None:
        self._file = KeptFile(path, VERSION, "Custom layouts", LayoutError)
        self.own: tuple[Layout, ...] = self._file.read(_Content, _parse, ())

    @property
    def problem(self) -> str:
        """Why the file could not be read; "" if it could."""
        return self._file.problem

    def find(self, name: str) -> Layout | None:
        wanted = clean_name(name).casefold()
        return next((x for x in (*BUILT_IN, *self.own) if x.name.casefold() == wanted), None)

    def current(self, name: str) -> Layout:
        """The layout of this name; the first one if it was deleted."""
        return self.find(name) or BUILT_IN[0]

    def save(self, layout: Layout) -> Layout:
        """Save it, replacing the user's layout of that name; returns it as saved."""
        named = replace(layout, name=_checked(layout.name))
        others = [x for x in self.own if x.name.casefold() != named.name.casefold()]
        self._write([*others, named])
        return named

    def rename(self, name: str, new: str) -> Layout:
        """The layout under its new name."""
        layout, taken = self.find(name), self.find(_checked(new))
        assert layout is not None and not layout.is_built_in
        if taken is not None and taken != layout:
            raise LayoutError(f"Layout “{taken.name}” already exists.", "Choose another name.")
        named = replace(layout, name=clean_name(new))
        self._write([named if x == layout else x for x in self.own])
        return named

    def delete(self, name: str) -> Layout:
        """Returns the layout that was deleted."""
        (gone,) = (x for x in self.own if x.name == name)
        self._write([x for x in self.own if x is not gone])
        return gone

    def _write(self, layouts: list[Layout]) -> None:
        kept = sorted(layouts, key=lambda x: x.name.casefold())
        self._file.write({"layouts": [_entry(x) for x in kept]})
        self.own = tuple(kept)


def _checked(name: str) -> str:
    cleaned = clean_name(name)
    if not cleaned:
        raise LayoutError("The layout has no name.", "Enter a name.")
    if any(cleaned.casefold() == layout.name.casefold() for layout in BUILT_IN):
        raise LayoutError(f"“{cleaned}” is a built-in layout.", "Choose another name.")
    return cleaned


def _entry(layout: Layout) -> dict[str, Any]:
    states = {page: base64.b64encode(state).decode() for page, state in layout.states.items()}
    return {"name": layout.name, "base": layout.base, "page": layout.page,
            "text_size": layout.text_size, "states": states}  # fmt: skip


class _Entry(msgspec.Struct):
    name: str
    base: str
    page: str
    text_size: int | None
    states: dict[str, bytes]  # base64 in JSON


class _Content(msgspec.Struct):
    layouts: list[_Entry]


def _parse(stored: _Content) -> tuple[Layout, ...]:
    return tuple(map(_layout, stored.layouts))


def _layout(entry: _Entry) -> Layout:
    if entry.text_size is not None:
        PREFERENCES["text_size"].check(entry.text_size)
    base = entry.base if entry.base in [layout.name for layout in BUILT_IN] else CHAT
    return Layout(_checked(entry.name), base, entry.page, entry.text_size, entry.states)


NOTICE = "layout"
OWN_TEXT = "layout-text"
"""Flag: the layout's text size applies instead of the preferences'."""


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
        self._registry.refresh()

    def reset(self) -> None:
        """Apply the current layout again."""
        self.choose(self.current.name)

    def save_as(self, name: str) -> None:
        """Save the current arrangement under `name`."""
        base = self.current.base
        layout = Layout(name, base, self._page(), self.text_size, self._docks.states())
        known = self.store.find(name)
        kept = self._tried(lambda: self.store.save(layout))
        if kept is None:
            return
        if known is None:
            self._registry.add(self._choice(kept))
        elif known.name != kept.name:
            self._take_name(known, kept)
        self._settings.set_flag(OWN_TEXT, kept.text_size is not None)
        self._become(kept.name)

    def update(self) -> None:
        self.save_as(self.current.name)
        self.notice.emit(Notice(NOTICE, f"Layout “{self.current.name}” updated."))

    def rename(self, name: str) -> None:
        before = self.current
        after = self._tried(lambda: self.store.rename(before.name, name))
        if after is not None:
            self._take_name(before, after)
            self._become(after.name)

    def delete(self) -> None:
        """Delete the current layout; the arrangement stays."""
        gone = self.current
        if self._tried(lambda: self.store.delete(gone.name)) is None:
            return
        self._registry.remove(_id(gone))
        self._become(gone.base)
        undo = ("Undo", partial(self._bring_back, gone))
        self.notice.emit(Notice(NOTICE, f"Layout “{gone.name}” deleted.", actions=(undo,)))

    def _bring_back(self, layout: Layout) -> None:
        if self._tried(lambda: self.store.save(layout)) is None:
            return
        if _id(layout) not in self._registry:
            self._registry.add(self._choice(layout))
        self._become(layout.name)

    def ask_to_save(self) -> None:
        own = self.current.name if not self.current.is_built_in else ""
        self._ask("Save layout as", "Name (replaces a custom layout with the same name):",
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

    def _become(self, name: str) -> None:
        self._settings.layout = name
        self._registry.refresh()

    def _tried(self, change: Callable[[], Layout]) -> Layout | None:
        """The result of `change` on the store; None, and a notice, if saving failed."""
        try:
            return change()
        except LayoutError as error:
            self.notice.emit(error_notice(NOTICE, "", error.info()))
            return None

    def _on_unreadable(self, page: str) -> None:
        if self.current.is_built_in or self._docks.restore_earlier():
            return
        name, base = self.current.name, self.current.base
        cause = f"The panel layout for the {page} page was saved by another version."
        stays = f"The saved layout “{name}” is unchanged until you update it."
        self.notice.emit(Notice(NOTICE, cause, f"Using “{base}” instead. {stays}", "warning"))


def _id(layout: Layout) -> str:
    return f"layout.{'' if layout.is_built_in else 'own.'}{layout.name.lower()}"

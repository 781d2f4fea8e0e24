"""Layouts: the built-in ones and the user's. No Qt widgets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.storage.json_file import KeptFile
from app.storage.profiles import clean_name
from app.window.docks import CLOSED_DOCKS, TUNE_DOCKS, DockPlan
from app.window.program_settings import PREFERENCES
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
    TUNING: {"Chat": TUNE_DOCKS},
    PRESENTATION: {
        "Chat": DockPlan("closed", (("live-charts",),), 420),
        "Tune": CLOSED_DOCKS,
        "Models": CLOSED_DOCKS,
    },
}


def plan_of(base: str, page: str, first: DockPlan) -> DockPlan:
    """The docks of a page in a built-in layout; `first`: the page's own plan."""
    return _PLANS[base].get(page, first)


VERSION = 1


class LayoutError(InferdeckError):
    """A layout was not saved."""


class LayoutStore:
    """Built-in layouts, then the user's by name. Every change is written at once; a failed write
    raises LayoutError and changes nothing."""

    def __init__(self, path: Path) -> None:
        self._file = KeptFile(path, VERSION, "The layouts", LayoutError)
        self._own: tuple[Layout, ...] = self._file.read(_parse, ())

    @property
    def problem(self) -> str:
        """Why the file could not be read; "" if it could."""
        return self._file.problem

    @property
    def own(self) -> tuple[Layout, ...]:
        return self._own

    def find(self, name: str) -> Layout | None:
        wanted = clean_name(name).casefold()
        return next((x for x in (*BUILT_IN, *self._own) if x.name.casefold() == wanted), None)

    def current(self, name: str) -> Layout:
        """The layout of this name; the first one if it was deleted."""
        return self.find(name) or BUILT_IN[0]

    def save(self, layout: Layout) -> Layout:
        """Save it, replacing the user's layout of that name; returns it as saved."""
        named = replace(layout, name=_checked(layout.name))
        others = [x for x in self._own if x.name.casefold() != named.name.casefold()]
        self._write([*others, named])
        return named

    def rename(self, name: str, new: str) -> Layout:
        """The layout under its new name."""
        layout, taken = self.find(name), self.find(_checked(new))
        assert layout is not None and not layout.is_built_in
        if taken is not None and taken != layout:
            raise LayoutError(f"A layout “{taken.name}” exists.", "Choose another name.")
        named = replace(layout, name=clean_name(new))
        self._write([named if x == layout else x for x in self._own])
        return named

    def delete(self, name: str) -> None:
        self._write([x for x in self._own if x.name != name])

    def _write(self, layouts: list[Layout]) -> None:
        kept = sorted(layouts, key=lambda x: x.name.casefold())
        self._file.write({"layouts": [_entry(x) for x in kept]})
        self._own = tuple(kept)


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


def _parse(stored: Mapping[str, Any]) -> tuple[Layout, ...]:
    return tuple(_layout(**entry) for entry in stored["layouts"])


def _layout(
    name: str, base: str, page: str, text_size: int | None, states: Mapping[str, str]
) -> Layout:
    if text_size is not None:
        PREFERENCES["text_size"].check(text_size)
    known = base if base in [layout.name for layout in BUILT_IN] else CHAT
    read = {str(p): base64.b64decode(state, validate=True) for p, state in states.items()}
    return Layout(_checked(name), known, str(page), text_size, read)

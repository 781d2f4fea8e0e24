"""What a page of the window is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import SignalInstance
from PySide6.QtWidgets import QWidget

from app.commands import Command
from app.panels.docks import DEFAULT_DOCKS, DockPlan


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the rail. `commands`: what it adds to the menus; `changed` fire when one of
    them may have become possible or impossible. `docks`: where they are at first; every page keeps
    its own arrangement. `may_close(window)` is asked before the window closes; a page that says no
    asks the user, and closes the window itself where that is wanted."""

    name: str
    icon: str
    widget: QWidget
    commands: tuple[Command, ...] = ()
    changed: tuple[SignalInstance, ...] = ()
    docks: DockPlan = DEFAULT_DOCKS
    may_close: Callable[[QWidget], bool] = lambda window: True

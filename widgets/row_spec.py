"""What a row of settings shows, and what all its controls have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QWidget


@dataclass(frozen=True, slots=True)
class RowSpec:
    """What a row shows. `choices`: (value, text) pairs make a choice; `is_path` a choice among
    folders; `is_folders` a list of folders; none of these and no bounds a switch; else a number.

    steps: the slider's positions, ascending, in the setting's own unit; none for no slider.
    scale: how many of the setting's units one shown unit is (2**30 for bytes shown in GiB).
    is_whole: whether the setting's own value is an integer, whatever is shown.
    auto: the text for None, where None is allowed.
    all: the text for the largest number; with it values are texts: those two, or a number's.
    """

    name: str
    label: str
    help: str
    badge: str
    choices: tuple[tuple[Any, str], ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    steps: tuple[float, ...] = ()
    unit: str = ""
    scale: float = 1.0
    decimals: int = 0
    is_whole: bool = True
    auto: str = ""
    all: str = ""
    is_path: bool = False
    is_folders: bool = False


def describe(control: QWidget, spec: RowSpec) -> None:
    """Name a control to those who cannot see it, and let the wheel pass over it."""
    control.setAccessibleName(spec.label)
    control.setAccessibleDescription(spec.help)
    control.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    control.installEventFilter(_no_wheel())


class _NoWheel(QObject):
    """Scrolling the panel must not turn the knob that the pointer happens to pass."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Wheel:
            event.ignore()
            return True
        return False


_filter: _NoWheel | None = None


def _no_wheel() -> _NoWheel:
    global _filter
    if _filter is None:
        _filter = _NoWheel()
    return _filter

"""`RowSpec`, and `NumberControl`: a slider with a field."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from PySide6.QtCore import QEvent, QLocale, QObject, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QValidator
from PySide6.QtWidgets import QDoubleSpinBox, QSlider, QWidget

from widgets.controls.layouts import hbox
from widgets.theme.fonts import scaled
from widgets.theme.theme import figure_font, theme_notifier


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Declares the control of a row: `choices`, (value, text) pairs, a combo box; `is_path` a
    choice of folder; `is_folders` a list of folders; `is_text` a text; none of these and no bounds
    a switch; else a number.

    steps: slider positions, ascending, in the setting's unit; none for no slider.
    scale: the setting's units per shown unit (2**30 for bytes shown in GiB).
    is_whole: whether the setting's value is an integer, whatever is shown.
    auto: the text for None, where None is allowed; the placeholder of an empty text.
    all: the text for the largest number; with it values are texts: auto, all, or a number.
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
    is_text: bool = False


def describe(control: QWidget, spec: RowSpec) -> None:
    """Set the accessible name; ignore the wheel."""
    control.setAccessibleName(spec.label)
    control.setAccessibleDescription(spec.help)
    control.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    control.installEventFilter(_no_wheel())


class _NoWheel(QObject):
    """Ignores the wheel: scrolling the panel must not change a value under the pointer."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Wheel:
            event.ignore()
            return True
        return False


_no_wheel = cache(_NoWheel)


WIDTH = 104


class NumberControl(QWidget):
    """A number: a slider over its usual values, and a field for any value.

    auto |----o---------| all    20 of 32
    """

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        self.spec = spec
        self.field = StepField(spec)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self._fit_slider()
        self.slider.setPageStep(1)
        for control in (self.field, self.slider):
            describe(control, spec)
        self.field.valueChanged.connect(self._field_changed)
        self.slider.valueChanged.connect(self._slider_moved)
        hbox((self.slider, 1), (self.field, 0 if spec.steps else 1), of=self)
        self.slider.setHidden(not spec.steps)

    def value(self) -> float | int | str | None:
        number = self._number()
        if not self.spec.all:
            return number
        if number is None:
            return self.spec.auto
        return self.spec.all if number == self.spec.maximum else f"{number}"

    def set_value(self, value: Any) -> None:
        number = self._number_of(value)
        with QSignalBlocker(self.field), QSignalBlocker(self.slider):
            self._show_number(number)
            self.slider.setValue(self._nearest(number))

    def set_highest(self, highest: int) -> None:
        """Offer every number from the lowest to `highest`; the shown value stays if still valid."""
        first = int(self.spec.minimum or 0)
        steps = tuple(float(n) for n in range(first, highest + 1))
        self.set_spec(replace(self.spec, maximum=highest, steps=steps, unit=f"of {highest}"))

    def set_spec(self, spec: RowSpec) -> None:
        """Other bounds; the shown value stays if still valid."""
        if spec == self.spec:
            return
        value = self.value()
        self.spec = spec
        with QSignalBlocker(self.field), QSignalBlocker(self.slider):
            self.field.set_spec(spec)
            self._fit_slider()
        self.set_value(value)

    def _fit_slider(self) -> None:
        self.slider.setRange(0, max(0, len(self._positions) - 1))

    def _number(self) -> float | int | None:
        shown = self.field.value()
        if self.spec.auto and shown == self.field.minimum():
            return None
        own = shown * self.spec.scale
        return round(own) if self.spec.is_whole else round(own, 6)

    def _number_of(self, value: Any) -> float | None:
        """The number of a value; None for auto."""
        if not isinstance(value, str):
            return value
        if value == self.spec.all:
            return self.spec.maximum
        return float(value) if value.isdigit() else None

    @property
    def _positions(self) -> tuple[float | None, ...]:
        return (None, *self.spec.steps) if self.spec.auto else self.spec.steps

    def _show_number(self, value: float | None) -> None:
        self.field.setValue(self.field.minimum() if value is None else value / self.spec.scale)

    def _nearest(self, value: float | None) -> int:
        """Index of the slider position closest to `value`, by ratio."""
        steps = self.spec.steps
        if value is None or not steps:
            return 0
        above = bisect.bisect_left(steps, value)
        if above == len(steps) or (above and value**2 < steps[above - 1] * steps[above]):
            above -= 1
        return above + bool(self.spec.auto)

    def _slider_moved(self, index: int) -> None:
        with QSignalBlocker(self.field):
            self._show_number(self._positions[index])
        self.changed.emit(self.value())

    def _field_changed(self) -> None:
        with QSignalBlocker(self.slider):
            self.slider.setValue(self._nearest(self._number()))
        self.changed.emit(self.value())


class StepField(QDoubleSpinBox):
    """The number as text. Up and down step through the usual values. A number out of range is not
    taken: the value before stays, and `refused` says why, until the next one is taken ("")."""

    refused = Signal(str)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        self._spec = spec
        self._refusal = self._told = ""
        self.editingFinished.connect(self._tell)
        self.setLocale(QLocale.c())
        self.setGroupSeparatorShown(True)
        self.set_spec(spec)
        self.setKeyboardTracking(False)
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setFont(figure_font())
        if spec.steps:
            self._fit()
            theme_notifier().changed.connect(self._fit)

    def set_spec(self, spec: RowSpec) -> None:
        """Change bounds or unit."""
        self._spec = spec
        lowest = spec.minimum if spec.minimum is not None else 0
        highest = spec.maximum if spec.maximum is not None else 2**53
        self.setDecimals(spec.decimals)
        self.setRange(0 if spec.auto else lowest / spec.scale, highest / spec.scale)
        self.setSpecialValueText(spec.auto)
        self.setSuffix(f" {spec.unit}" if spec.unit else "")

    def _fit(self) -> None:
        self.setFixedWidth(scaled(WIDTH))

    def textFromValue(self, value: float) -> str:
        if self._spec.all and value == self.maximum():
            return self._spec.all
        return super().textFromValue(value)

    def valueFromText(self, text: str) -> float:
        return self.maximum() if self._is_all(text) else super().valueFromText(text)

    def validate(self, text: str, position: int) -> tuple[QValidator.State, str, int]:
        if self._is_all(text):
            return QValidator.State.Acceptable, text, position
        state, text, position = super().validate(text, position)
        # a sign or exponent that is dropped as it is typed would make -5 to 5, and 1e3 to 13
        begins_a_number = self._number(self._bare(text) + "0") is not None
        may_become = begins_a_number or self._begins_a_word(text)
        if state is QValidator.State.Invalid and may_become:
            state = QValidator.State.Intermediate
        return state, text, position

    def fixup(self, text: str) -> str:
        number = self._number(text)
        if number is None:
            return super().fixup(text)
        if self._lowest <= number <= self.maximum() or number == self.minimum():
            return self.textFromValue(number) + self.suffix()
        unit = "" if self._spec.all else self.suffix()
        written, least, most = map(super().textFromValue, (number, self._lowest, self.maximum()))
        self._refusal = f"{written}{unit} is out of range: {least} to {most}{unit}."
        return self.textFromValue(self.value()) + self.suffix()

    @property
    def _lowest(self) -> float:
        """The lowest number that is not auto and can be shown."""
        least = (self._spec.minimum or 0) / self._spec.scale
        if least <= 0:
            return self.minimum()
        return round(max(least, 10**-self._spec.decimals), self._spec.decimals)

    def _bare(self, text: str) -> str:
        return text.removesuffix(self.suffix()).strip().lower()

    def _is_all(self, text: str) -> bool:
        return bool(self._spec.all) and self._bare(text) == self._spec.all

    def _begins_a_word(self, text: str) -> bool:
        """Whether it is a prefix of a word that stands for a number."""
        bare = self._bare(text)
        words = (self._spec.auto, self._spec.all) if self._spec.all else ()
        return any(word.startswith(bare) for word in words)

    def _number(self, text: str) -> float | None:
        bare = self._bare(text).replace(",", "")
        if self._spec.all and bare == self._spec.auto:
            return self.minimum()
        try:
            return float(bare)
        except ValueError:
            return None

    def _tell(self) -> None:
        before, self._told, self._refusal = self._told, self._refusal, ""
        if before or self._told:
            self.refused.emit(self._told)

    def stepBy(self, steps: int) -> None:
        usual = [step / self._spec.scale for step in self._spec.steps]
        if not usual:
            super().stepBy(steps)
            return
        if self._spec.auto:
            usual.insert(0, self.minimum())
        now = self.value()
        at = bisect.bisect_right(usual, now) if steps > 0 else bisect.bisect_left(usual, now) - 1
        self.setValue(usual[min(max(at, 0), len(usual) - 1)])

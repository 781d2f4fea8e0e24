"""Rows of a settings panel: label and badge, a control, and one line of consequence below it.

    Running requests            (live)
    ----o------------------         16
    3 running · 0 waiting

A row knows a plain `RowSpec` and a value; it never knows whose setting it is.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PySide6.QtCore import QEvent, QLocale, QObject, QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSlider,
    QVBoxLayout,
    QWidget,
)

from widgets.choice_items import describe_items
from widgets.path_control import PathControl
from widgets.theme import SPACE_1, SPACE_2, figure_font, restyle

HintTone = Literal["small", "warning", "error"]


@dataclass(frozen=True, slots=True)
class RowSpec:
    """What a row shows. `choices`: (value, text) pairs make a choice; `is_path` a choice among
    folders; none of these and no bounds a switch; else a number.

    steps: the slider's positions, ascending, in the setting's own unit; none for no slider.
    scale: how many of the setting's units one shown unit is (2**30 for bytes shown in GiB).
    is_whole: whether the setting's own value is an integer, whatever is shown.
    auto: the text for None, where None is allowed.
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
    is_path: bool = False


class SettingRow(QWidget):
    """A labelled control. `value_changed` is emitted for the user's changes only."""

    value_changed = Signal(str, object)  # name, value

    def __init__(self, spec: RowSpec, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.spec = spec
        self.setObjectName(spec.name)
        self.setToolTip(spec.help)
        control = _make_control(spec)
        self._control = control
        self._hint_tone: HintTone = "small"
        self._hint = QLabel()
        self._hint.setTextFormat(Qt.TextFormat.PlainText)
        self._hint.setProperty("role", "small")
        self._hint.setFont(figure_font("small"))
        badge = QLabel(spec.badge)
        badge.setProperty("badge", spec.badge)
        is_switch = isinstance(control, SwitchControl)
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(control if is_switch else QLabel(spec.label))
        head.addStretch(1)
        head.addWidget(badge)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1 // 2)
        layout.addLayout(head)
        if not is_switch:
            layout.addWidget(control)
        layout.addWidget(self._hint)
        self._is_wrapped = False
        self._action = QPushButton()
        self._action.setProperty("kind", "link")
        self._do: Callable[[], object] = lambda: None
        self._action.clicked.connect(lambda: self._do())
        self._action.hide()
        layout.addWidget(self._action, 0, Qt.AlignmentFlag.AlignLeft)
        control.changed.connect(lambda value: self.value_changed.emit(spec.name, value))

    @property
    def control(self) -> Control:
        return self._control

    @property
    def hint(self) -> str:
        return self._hint.text()

    @property
    def hint_tone(self) -> HintTone:
        return self._hint_tone

    def describe_choices(self, choices: Sequence[tuple[Any, str, str]]) -> None:
        """(value, text, why it cannot be chosen or "") of the choices of this row."""
        assert isinstance(self._control, ChoiceControl)
        describe_items(self._control, choices)

    def value(self) -> Any:
        return self._control.value()

    def set_value(self, value: Any) -> None:
        """Show `value`, without a signal."""
        self._control.set_value(value)

    def set_hint(self, text: str, tone: HintTone = "small") -> None:
        """Show a line or two below the control: a figure, what is pending, what went wrong."""
        if text != self._hint.text():
            self._hint.setText(text)
        if tone != self._hint_tone:
            self._hint_tone = tone
            self._hint.setWordWrap(tone == "error" or self._is_wrapped)
            restyle(self._hint, role=tone)

    def wrap_hint(self) -> None:
        """Let the hint take as many lines as it needs."""
        self._is_wrapped = True
        self._hint.setWordWrap(True)

    @property
    def action(self) -> QPushButton:
        """A way out below the hint; hidden where there is none."""
        return self._action

    def set_action(self, text: str, do: Callable[[], object]) -> None:
        """Offer `do` below the hint; nothing where `text` is empty."""
        self._do = do
        if text != self._action.text():
            self._action.setText(text)
            self._action.setVisible(bool(text))


def _make_control(spec: RowSpec) -> Control:
    if spec.is_path:
        path = PathControl(spec.auto)
        _describe(path, spec)
        return path
    if spec.choices:
        return ChoiceControl(spec)
    if spec.minimum is None and spec.maximum is None:
        return SwitchControl(spec)
    return NumberControl(spec)


def _describe(control: QWidget, spec: RowSpec) -> None:
    control.setAccessibleName(spec.label)
    control.setAccessibleDescription(spec.help)
    control.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    control.installEventFilter(_no_wheel())


class SwitchControl(QCheckBox):
    """On or off; carries the row's label itself."""

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec.label)
        _describe(self, spec)
        self.clicked.connect(lambda on: self.changed.emit(on))

    def value(self) -> bool:
        return self.isChecked()

    def set_value(self, value: Any) -> None:
        self.setChecked(bool(value))


class ChoiceControl(QComboBox):
    """One of a few values."""

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        for value, text in spec.choices:
            self.addItem(text, value)
        _describe(self, spec)
        # what a choice says may grow; the row does not
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(10)
        self.activated.connect(lambda: self.changed.emit(self.value()))

    def value(self) -> Any:
        return self.currentData()

    def set_value(self, value: Any) -> None:
        if self.findData(value) < 0:  # from the command line, none of the usual ones
            self.addItem(f"{value}", value)
        self.setCurrentIndex(self.findData(value))


class NumberControl(QWidget):
    """A number: a slider over its usual values, and a field that takes any."""

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        self.spec = spec
        self.field = StepField(spec)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, max(0, len(self._positions) - 1))
        self.slider.setPageStep(1)
        for control in (self.field, self.slider):
            _describe(control, spec)
        self.field.valueChanged.connect(self._field_changed)
        self.slider.valueChanged.connect(self._slider_moved)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        if spec.steps:
            layout.addWidget(self.slider, 1)
            layout.addWidget(self.field)
        else:
            self.slider.setParent(self)
            self.slider.hide()
            layout.addWidget(self.field, 1)

    def value(self) -> float | int | None:
        shown = self.field.value()
        if self.spec.auto and shown == self.field.minimum():
            return None
        own = shown * self.spec.scale
        return round(own) if self.spec.is_whole else round(own, 6)

    def set_value(self, value: Any) -> None:
        with QSignalBlocker(self.field), QSignalBlocker(self.slider):
            self._show_number(value)
            self.slider.setValue(self._nearest(value))

    @property
    def _positions(self) -> tuple[float | None, ...]:
        return (None, *self.spec.steps) if self.spec.auto else self.spec.steps

    def _show_number(self, value: float | None) -> None:
        self.field.setValue(self.field.minimum() if value is None else value / self.spec.scale)

    def _nearest(self, value: float | None) -> int:
        """Index of the slider's position closest to `value`, by ratio."""
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
        value = self.value()
        with QSignalBlocker(self.slider):
            self.slider.setValue(self._nearest(value))
        self.changed.emit(value)


Control = SwitchControl | ChoiceControl | NumberControl | PathControl


class StepField(QDoubleSpinBox):
    """The number as text. Up and down go to the next usual value."""

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        self._spec = spec
        lowest = spec.minimum if spec.minimum is not None else 0
        highest = spec.maximum if spec.maximum is not None else 2**53
        self.setLocale(QLocale.c())
        self.setDecimals(spec.decimals)
        self.setGroupSeparatorShown(True)
        self.setRange(0 if spec.auto else lowest / spec.scale, highest / spec.scale)
        self.setSpecialValueText(spec.auto)
        self.setSuffix(f" {spec.unit}" if spec.unit else "")
        self.setKeyboardTracking(False)
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setFont(figure_font())
        if spec.steps:
            self.setFixedWidth(104)

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

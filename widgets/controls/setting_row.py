"""Rows of a settings panel: label and badge, a control, and one line of consequence below it.

    Max running requests        (live)
    ----o------------------         16
    3 running · 0 waiting

A row shows a `RowSpec` and a value; it is independent of the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QLabel, QLineEdit, QToolButton, QWidget

from widgets.controls.combo import ElidedCombo, describe_items
from widgets.controls.layouts import STRETCH, Label, button, dressed, hbox, vbox
from widgets.controls.number_control import NumberControl, RowSpec, describe
from widgets.controls.paths import FolderList, PathControl
from widgets.controls.text import wrapped_tip
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, figure_font, restyle

HintTone = Literal["small", "warning", "error"]


class SettingRow(QWidget):
    """A labelled control. `value_changed` is emitted for the user's changes only."""

    value_changed = Signal(str, object)  # name, value
    refused = Signal(str, str)  # name, why the text is not taken; "": it is
    reset_wanted = Signal(str)  # name

    def __init__(self, spec: RowSpec, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.spec = spec
        self.setObjectName(spec.name)
        self.setToolTip(wrapped_tip(spec.help))
        control = self.control = _make_control(spec)
        self.hint_tone: HintTone = "small"
        self._hint_lines = 1
        # wrapped: a long one must not widen the whole panel
        hint = Label(textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self._hint = dressed(hint, role="small")
        self._hint.setFont(figure_font("small"))
        badge = QLabel(spec.badge)
        badge.setProperty("badge", spec.badge)
        self.reset: QToolButton | None = None  # once shown
        self._do: Callable[[], object] = lambda: None
        self.action = button("", lambda: self._do(), kind="link")
        self.action.setAutoDefault(False)
        self.action.hide()
        is_switch = isinstance(control, SwitchControl)
        self._head = hbox(control if is_switch else QLabel(spec.label), STRETCH, badge)
        below = () if is_switch else (control,)
        action = (self.action, 0, Qt.AlignmentFlag.AlignLeft)
        vbox(self._head, *below, self._hint, action, of=self, spacing=SPACE_1 // 2)
        control.changed.connect(lambda value: self.value_changed.emit(spec.name, value))
        if isinstance(control, NumberControl):
            control.field.refused.connect(lambda why: self.refused.emit(spec.name, why))

    def show_default(self, text: str) -> None:
        """Offer to reset to the default `text`; "" hides the button."""
        if self.reset is None:
            if not text:
                return
            self.reset = QToolButton()
            set_icon(self.reset, "undo", "accent")
            self.reset.clicked.connect(lambda: self.reset_wanted.emit(self.spec.name))
            self._head.insertWidget(1, self.reset)
        self.reset.setVisible(bool(text))
        self.reset.setToolTip(f"Reset to default: {text}")
        self.reset.setAccessibleName(f"{self.spec.label}: reset to default ({text})")

    def take_focus(self) -> None:
        """Focus the control to type into, with its text selected."""
        if isinstance(self.control, NumberControl) and self.control.isEnabled():
            self.control.field.setFocus(Qt.FocusReason.ShortcutFocusReason)
            self.control.field.selectAll()
            return
        inner = [self.control, *self.control.findChildren(QWidget)]
        fields = [w for w in inner if w.focusPolicy() & Qt.FocusPolicy.TabFocus and w.isEnabled()]
        if fields:
            fields[0].setFocus(Qt.FocusReason.ShortcutFocusReason)

    @property
    def is_marked(self) -> bool:
        """Whether the reset button is shown."""
        return self.reset is not None and not self.reset.isHidden()

    @property
    def hint(self) -> str:
        return self._hint.text()

    def describe_choices(self, choices: Sequence[tuple[Any, str, str]]) -> None:
        """Describe choices: (value, text, refusal or "") each."""
        assert isinstance(self.control, ChoiceControl)
        describe_items(self.control, choices)

    def value(self) -> Any:
        return self.control.value()

    def set_value(self, value: Any) -> None:
        """Show `value`, without a signal."""
        self.control.set_value(value)

    def keep_hint_lines(self, count: int) -> None:
        """Reserve room for this many hint lines."""
        self._hint_lines = count
        self._keep_room()

    def _keep_room(self) -> None:
        if self._hint_lines == 1:
            return
        least = self._hint_lines * self._hint.fontMetrics().lineSpacing()
        if self._hint.minimumHeight() != least:  # of this size of text
            self._hint.setMinimumHeight(least)
            self._hint.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)

    def set_hint(self, text: str, tone: HintTone = "small") -> None:
        """Show a hint below the control."""
        self._keep_room()
        if text != self._hint.text():
            self._hint.setText(text)
        if tone != self.hint_tone:
            self.hint_tone = tone
            restyle(self._hint, role=tone)

    def set_action(self, text: str, do: Callable[[], object]) -> None:
        """Offer an action below the hint; "" hides it."""
        self._do = do
        if text != self.action.text():
            self.action.setText(text)
            self.action.setVisible(bool(text))


def _make_control(spec: RowSpec) -> Control:
    if spec.is_path:
        path = PathControl(spec.auto)
        describe(path, spec)
        return path
    if spec.is_folders:
        folders = FolderList(spec.label)
        folders.setAccessibleDescription(spec.help)
        return folders
    if spec.is_text:
        return TextControl(spec)
    if spec.choices:
        return ChoiceControl(spec)
    if spec.minimum is None and spec.maximum is None:
        return SwitchControl(spec)
    return NumberControl(spec)


class SwitchControl(QCheckBox):
    """A checkbox; it shows the row's label itself."""

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec.label)
        describe(self, spec)
        self.clicked.connect(lambda on: self.changed.emit(on))

    def value(self) -> bool:
        return self.isChecked()

    def set_value(self, value: Any) -> None:
        self.setChecked(bool(value))


class TextControl(QLineEdit):
    """A line of text; `changed` when it is left or at Return."""

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        self.setPlaceholderText(spec.auto)
        describe(self, spec)
        self._told = ""
        self.editingFinished.connect(self._tell)

    def value(self) -> str:
        return self.text().strip()

    def set_value(self, value: Any) -> None:
        self._told = str(value)
        self.setText(self._told)

    def _tell(self) -> None:
        if self.value() != self._told:
            self._told = self.value()
            self.changed.emit(self._told)


class ChoiceControl(ElidedCombo):
    """A combo box."""

    changed = Signal(object)

    def __init__(self, spec: RowSpec) -> None:
        super().__init__()
        for value, text in spec.choices:
            self.addItem(text, value)
        describe(self, spec)
        # what a choice says may grow; the row does not
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(10)
        self.activated.connect(lambda: self.changed.emit(self.value()))

    def value(self) -> Any:
        return self.currentData()

    def offer(self, value: Any, text: str) -> None:
        """Add a choice, or change its text."""
        index = self.findData(value)
        if index < 0:
            self.addItem(text, value)
        else:
            self.setItemText(index, text)

    def withdraw(self, value: Any) -> None:
        """Remove a choice; the selection stays."""
        index = self.findData(value)
        if index not in (-1, self.currentIndex()):
            self.removeItem(index)

    def set_value(self, value: Any) -> None:
        if self.findData(value) < 0:  # from the command line, none of the usual ones
            self.addItem(f"{value}", value)
        self.setCurrentIndex(self.findData(value))


Control = SwitchControl | TextControl | ChoiceControl | NumberControl | PathControl | FolderList

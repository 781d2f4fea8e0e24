"""`SamplingPopover`: presets and every sampling setting of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QDoubleSpinBox, QFormLayout, QFrame, QLineEdit, QSpinBox, QWidget

from widgets.chat.records import SamplingField
from widgets.controls.buttons import IconButton
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import button, dressed, hbox, label
from widgets.controls.popover import Popover
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font

CUSTOM = "Custom"
_FIELD_WIDTH = 168


class SamplingPopover(Popover):
    """Signals: `changed(name, value)` ("stop" with a list of strings), `preset_chosen(name)`,
    `preset_saved(name)`, `preset_deleted(name)`."""

    changed = Signal(str, object)
    preset_chosen = Signal(str)
    preset_saved = Signal(str)
    preset_deleted = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "Sampling")
        self.presets = dressed(ElidedCombo(), "Preset")
        self.presets.textActivated.connect(self._preset_activated)
        delete = lambda: self.preset_deleted.emit(self.presets.currentText())
        self._delete = IconButton("delete", "Delete preset", delete)
        self._form = QFormLayout(horizontalSpacing=2 * SPACE_2, verticalSpacing=SPACE_1)
        self._form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.boxes: dict[str, QSpinBox | QDoubleSpinBox] = {}
        tip = "Generation stops at these sequences, which are omitted. Separate them with commas"
        self._stop = dressed(QLineEdit(placeholderText="none"), "Stop sequences", tip)
        self._stop.setFixedWidth(_FIELD_WIDTH)
        self._stop.editingFinished.connect(self._stop_edited)
        name = QLineEdit(placeholderText="Preset name", maxLength=40)
        self.name = dressed(name, "Preset name")
        self.save = button("Save preset", self._save_preset)
        self.name.returnPressed.connect(self._save_preset)
        self.name.textChanged.connect(lambda text: self.save.setEnabled(bool(text.strip())))
        self.save.setEnabled(False)
        self.column.addLayout(hbox((self.presets, 1), self._delete, spacing=SPACE_1))
        self.column.addLayout(self._form)
        self.column.addWidget(dressed(QFrame(), line=True))
        self.column.addLayout(hbox((self.name, 1), self.save))

    def first_field(self) -> QWidget:
        return self.presets

    def set_presets(self, presets: Sequence[tuple[str, str]], current: str, is_own: bool) -> None:
        """Offer `presets`, each a name and its help; `current` "" is none of them. `is_own`:
        whether the current one can be deleted."""
        with QSignalBlocker(self.presets):
            self.presets.clear()
            for row, (name, tip) in enumerate(presets):
                self.presets.addItem(name)
                self.presets.setItemData(row, tip, Qt.ItemDataRole.ToolTipRole)
            if not current:
                self.presets.addItem(CUSTOM)
            self.presets.setCurrentText(current or CUSTOM)
        self._delete.setEnabled(is_own)

    def set_fields(self, fields: Sequence[SamplingField], stop: Sequence[str]) -> None:
        for field in fields:
            box = self.boxes.get(field.name) or self._make_box(field)
            with QSignalBlocker(box):
                if isinstance(box, QSpinBox):
                    box.setValue(int(field.value))
                else:
                    box.setValue(field.value)
        if self._form.indexOf(self._stop) < 0:
            self._form.addRow("Stop sequences", self._stop)
        with QSignalBlocker(self._stop):
            self._stop.setText(", ".join(stop))

    def _make_box(self, field: SamplingField) -> QSpinBox | QDoubleSpinBox:
        box: QSpinBox | QDoubleSpinBox
        least, most, step = field.minimum, field.maximum, field.step
        if field.decimals:
            box = QDoubleSpinBox(
                decimals=field.decimals, minimum=least, maximum=most, singleStep=step
            )
        else:
            box = QSpinBox(minimum=int(least), maximum=int(most), singleStep=int(step))
        box.valueChanged.connect(partial(self.changed.emit, field.name))
        box.setSpecialValueText(field.unset_text)
        box.setKeyboardTracking(False)
        box.setFont(figure_font())
        box.setFixedWidth(_FIELD_WIDTH)
        dressed(box, field.label, field.help)
        self._form.addRow(dressed(label(field.label), tip=field.help), box)
        self.boxes[field.name] = box
        return box

    def _stop_edited(self) -> None:
        texts = [text.strip() for text in self._stop.text().split(",")]
        self.changed.emit("stop", [text.replace("\\n", "\n") for text in texts if text])

    def _preset_activated(self, name: str) -> None:
        if name != CUSTOM:
            self.preset_chosen.emit(name)

    def _save_preset(self) -> None:
        name = self.name.text().strip()
        if name:
            self.name.clear()
            self.preset_saved.emit(name)

"""`SamplingPopover`: presets and every sampling setting of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QDoubleSpinBox, QFormLayout, QFrame, QLineEdit, QSpinBox, QWidget

from widgets.chat.records import PresetRecord, SamplingField
from widgets.controls.buttons import IconButton
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import button, hbox, label
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
        self.presets = ElidedCombo()
        self.presets.setAccessibleName("Preset")
        self.presets.textActivated.connect(self._preset_activated)
        self._delete = IconButton("delete", "Delete preset", self._delete_preset)
        self._form = QFormLayout(horizontalSpacing=2 * SPACE_2, verticalSpacing=SPACE_1)
        self._form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self._boxes: dict[str, QSpinBox | QDoubleSpinBox] = {}
        self._stop = QLineEdit(placeholderText="none")
        self._stop.setFixedWidth(_FIELD_WIDTH)
        self._stop.setAccessibleName("Stop sequences")
        self._stop.setToolTip("Generation stops before any of these. Separate them with commas")
        self._stop.editingFinished.connect(self._stop_edited)
        self.name = QLineEdit(placeholderText="Preset name", maxLength=40)
        self.name.setAccessibleName("Preset name")
        self.save = button("Save preset", self._save_preset)
        self.name.returnPressed.connect(self._save_preset)
        self.name.textChanged.connect(lambda text: self.save.setEnabled(bool(text.strip())))
        self.save.setEnabled(False)
        line = QFrame()
        line.setProperty("line", True)
        self.column.addLayout(hbox((self.presets, 1), self._delete, spacing=SPACE_1))
        self.column.addLayout(self._form)
        self.column.addWidget(line)
        self.column.addLayout(hbox((self.name, 1), self.save))

    def first_field(self) -> QWidget:
        return self.presets

    def set_presets(self, presets: Sequence[PresetRecord], current: str) -> None:
        """Offer `presets`; `current` "" is none of them."""
        with QSignalBlocker(self.presets):
            self.presets.clear()
            for preset in presets:
                self.presets.addItem(preset.name)
                row = self.presets.count() - 1
                self.presets.setItemData(row, preset.help, Qt.ItemDataRole.ToolTipRole)
            if not current:
                self.presets.addItem(CUSTOM)
            self.presets.setCurrentText(current or CUSTOM)
        self._delete.setEnabled(any(p.name == current and p.is_own for p in presets))

    def set_fields(self, fields: Sequence[SamplingField], stop: Sequence[str]) -> None:
        for field in fields:
            box = self._boxes.get(field.name) or self._make_box(field)
            with QSignalBlocker(box):
                if isinstance(box, QSpinBox):
                    box.setValue(int(field.value))
                else:
                    box.setValue(field.value)
        if self._form.indexOf(self._stop) < 0:
            self._form.addRow("Stop sequences", self._stop)
        with QSignalBlocker(self._stop):
            self._stop.setText(", ".join(stop))

    def box(self, name: str) -> QSpinBox | QDoubleSpinBox:
        return self._boxes[name]

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
        box.setToolTip(field.help)
        box.setAccessibleName(field.label)
        name = label(field.label)
        name.setToolTip(field.help)
        self._form.addRow(name, box)
        self._boxes[field.name] = box
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

    def _delete_preset(self) -> None:
        self.preset_deleted.emit(self.presets.currentText())

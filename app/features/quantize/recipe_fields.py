"""Controls of a quantization recipe: model, method, numbers, text, modules, output."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QComboBox,
    QGridLayout,
    QHeaderView,
    QLineEdit,
    QRadioButton,
    QSpinBox,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.features.quantize.fields import FOR_CALIBRATION, Field, ModelField, TextField, path_button
from app.features.quantize.plan import GROUP_SIZE, METHOD, MODULES, OUTPUT, SOURCE, TEXT
from app.features.quantize.source import ModuleGroup
from app.units import format_bytes
from engine.quantize.recipe import GROUP_SIZES, METHODS, MIN_LENGTH, Recipe
from widgets.controls.layouts import wrapped
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font

METHOD_HINTS = {
    "awq": "4-bit, activation-aware scales from calibration text. Minutes to hours.",
    "gptq": "4- or 8-bit, error-compensated, with calibration text. Slower than AWQ.",
    "rtn": "4- or 8-bit round-to-nearest by group. Seconds; largest error at 4-bit.",
    "int8": "8-bit, one scale per output channel. Half the size, minimal error.",
    "fp8": "8-bit floating point. Half the size; fast on recent GPUs.",
    "nf4": "4-bit NormalFloat without calibration, for bitsandbytes.",
}
assert METHOD_HINTS.keys() == METHODS.keys()


TEXT_KINDS = "Texts (*.txt *.jsonl *.json *.md);;All files (*)"


class RecipeFields(QWidget):
    """`method_changed` when another method is chosen, `changed` for other values."""

    method_changed = Signal()
    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.source = ModelField("Model to quantize")
        self.text = TextField("Calibration text", TEXT_KINDS, FOR_CALIBRATION)
        self.modules = ModuleList()
        self.others = QLineEdit()
        self.others.setPlaceholderText("Exclude more, such as layers.3")
        self.others.setAccessibleName("Excluded modules")
        self.others.setToolTip("Names, parts of names or patterns, separated by spaces")
        self.others.editingFinished.connect(self.changed)
        self.output = QLineEdit()
        self.output.setAccessibleName("Output folder")
        self.browse = path_button("Choose output folder")
        self._make_numbers()
        self._make_methods()
        self._arrange()
        self.set_group_size(Recipe().group_size)
        self._show_method()

    def _make_numbers(self) -> None:
        self.bits, self.group_size = QComboBox(), QComboBox()
        self.bits.setAccessibleName("Bits per weight")
        self.group_size.setAccessibleName("Group size")
        for size in GROUP_SIZES:
            self.group_size.addItem(str(size), size)
        self.symmetric = QCheckBox("Symmetric")
        self.symmetric.setToolTip("No zero point: faster in some engines, slightly larger error")
        self.act_order = QCheckBox("Act-order")
        self.act_order.setToolTip(
            "Quantize columns by activation size: slightly smaller error, slower inference"
        )
        self.num_sequences, self.length = QSpinBox(), QSpinBox()
        self.num_sequences.setRange(1, 4096)
        self.length.setRange(MIN_LENGTH, 32_768)
        default = Recipe()
        self.num_sequences.setValue(default.num_sequences)
        self.length.setValue(default.sequence_length)
        self.num_sequences.setAccessibleName("Sequences")
        self.num_sequences.setToolTip("Calibration sequences: more are more accurate and slower")
        self.length.setAccessibleName("Sequence length")
        self.length.setToolTip("Tokens per sequence")
        self.length.setSingleStep(64)
        for box in (self.num_sequences, self.length):
            box.setFont(figure_font())
            box.setKeyboardTracking(False)
            box.valueChanged.connect(lambda *_: self.changed.emit())
        for combo in (self.bits, self.group_size):
            combo.setFont(figure_font())
            combo.currentIndexChanged.connect(lambda *_: self.changed.emit())
        for switch in (self.symmetric, self.act_order):
            switch.toggled.connect(lambda *_: self.changed.emit())

    def _make_methods(self) -> None:
        self.methods = QButtonGroup(self)
        self._method_rows = QWidget()
        column = QVBoxLayout(self._method_rows)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        grid.setColumnStretch(1, 1)
        for row, (name, hint) in enumerate(METHOD_HINTS.items()):
            button = QRadioButton(name.upper())
            button.setObjectName(name)
            button.setAccessibleDescription(hint)
            button.setToolTip(f"{hint}\nOutput format: {METHODS[name].format}")
            self.methods.addButton(button)
            line = wrapped("small", hint)
            grid.addWidget(button, row, 0)
            grid.addWidget(line, row, 1)
        column.addLayout(grid)
        self.methods.buttons()[0].setChecked(True)
        self.methods.buttonToggled.connect(self._on_method)

    def _arrange(self) -> None:
        bits = Field("Bits", self.bits)
        group = Field("Group size", self.group_size)
        reading = Field("Sequences × tokens", self.num_sequences, self.length)
        self.by_name = {
            SOURCE: Field("Model", self.source),
            METHOD: Field("Method", self._method_rows),
            GROUP_SIZE: Field("", bits, group),
            TEXT: Field("Calibration text", self.text),
            MODULES: Field("Modules", self.modules),
            OUTPUT: Field("Output", self.output, self.browse),
        }
        self._bits, self._group = bits, group
        self._reading = reading
        self.by_name[METHOD].row.setStretch(0, 1)
        self.by_name[MODULES].row.setStretch(0, 1)
        numbers = self.by_name[GROUP_SIZE].row
        for place, stretch in enumerate((1, 1)):
            numbers.setStretch(place, stretch)
        self._switches = QWidget()
        switches = QVBoxLayout(self._switches)
        switches.setContentsMargins(0, 0, 0, 0)
        switches.setSpacing(SPACE_1)
        for switch in (self.symmetric, self.act_order):
            switches.addWidget(switch)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_3)
        for name in (SOURCE, METHOD, GROUP_SIZE):
            column.addWidget(self.by_name[name])
        column.addWidget(self._switches)
        column.addWidget(self.by_name[TEXT])
        column.addWidget(reading)
        column.addWidget(self.by_name[MODULES])
        column.addWidget(self.others)
        column.addWidget(self.by_name[OUTPUT])

    # What is chosen ----------------------------------------------------------------------------

    @property
    def method(self) -> str:
        button = self.methods.checkedButton()
        return button.objectName() if button is not None else next(iter(METHOD_HINTS))

    def choose_method(self, method: str) -> None:
        """Select `method` like the user."""
        next(b for b in self.methods.buttons() if b.objectName() == method).setChecked(True)

    def set_group_size(self, size: int) -> None:
        """Show it, without a signal."""
        with QSignalBlocker(self.group_size):
            self.group_size.setCurrentIndex(self.group_size.findData(size))

    @property
    def exclude(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.modules.excluded, *self.others.text().split())))

    def recipe(self) -> Recipe:
        """The chosen recipe. Raises ConfigError; the controls offer valid values only."""
        facts = METHODS[self.method]
        default = Recipe(self.method)
        act_order = self.method == "gptq" and self.act_order.isChecked()
        return Recipe(
            method=self.method,
            bits=self.bits.currentData(),
            group_size=self.group_size.currentData() if facts.is_grouped else default.group_size,
            symmetric=self.symmetric.isChecked() if facts.can_choose_symmetry else None,
            desc_act=act_order,
            static_groups=not act_order,
            exclude=self.exclude,
            num_sequences=self.num_sequences.value(),
            sequence_length=self.length.value(),
        )

    # Showing -----------------------------------------------------------------------------------

    def _on_method(self, button: QRadioButton, checked: bool) -> None:
        if checked:
            self._show_method()
            self.method_changed.emit()

    def _show_method(self) -> None:
        """Show the controls of the chosen method."""
        facts = METHODS[self.method]
        with QSignalBlocker(self.bits):
            before = self.bits.currentData()
            self.bits.clear()
            for bits in facts.bits:
                self.bits.addItem(f"{bits}", bits)
            self.bits.setCurrentIndex(max(0, self.bits.findData(before)))
        with QSignalBlocker(self.symmetric):
            self.symmetric.setChecked(facts.symmetric)
        self._bits.setVisible(len(facts.bits) > 1)
        self._group.setVisible(facts.is_grouped)
        self.symmetric.setVisible(facts.can_choose_symmetry)
        self.act_order.setVisible(self.method == "gptq")
        self._switches.setVisible(facts.can_choose_symmetry)
        self.by_name[GROUP_SIZE].setVisible(facts.is_grouped)
        self.by_name[TEXT].setVisible(facts.is_calibrated)
        self._reading.setVisible(facts.is_calibrated)


_PATTERN = Qt.ItemDataRole.UserRole
_MOST_ROWS = 12


class ModuleList(QTreeWidget):
    """Checked modules are quantized. `changed` by the user."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Modules to quantize")
        self.setRootIsDecorated(False)
        self.setColumnCount(3)
        self.setHeaderLabels(["Quantize", "Size", "Share"])
        self.setUniformRowHeights(True)
        header = self.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        for column in (1, 2):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
            alignment = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            self.headerItem().setTextAlignment(column, alignment)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.itemChanged.connect(lambda *_: self.changed.emit())
        self.show_groups((), 1)

    def show_groups(self, groups: Sequence[ModuleGroup], total: int) -> None:
        """`total`: bytes of the whole model. Quantizable groups start checked."""
        with QSignalBlocker(self):
            self.clear()
            for group in groups:
                self.addTopLevelItem(self._row(group, total))
        line = max(self.sizeHintForRow(0), QFontMetrics(self.font()).height() + 8)
        rows = min(max(len(groups), 3), _MOST_ROWS)
        self.setFixedHeight(line * rows + self.header().sizeHint().height() + 6)

    @property
    def excluded(self) -> tuple[str, ...]:
        """Patterns of the unchecked rows."""
        return tuple(
            str(row.data(0, _PATTERN))
            for row in self._all()
            if row.data(0, _PATTERN) and row.checkState(0) is Qt.CheckState.Unchecked
        )

    def set_checked(self, pattern: str, checked: bool) -> None:
        """Check or uncheck a row like the user."""
        for row in self._all():
            if row.data(0, _PATTERN) == pattern:
                state = Qt.CheckState.Checked if checked else Qt.CheckState.Unchecked
                row.setCheckState(0, state)

    def _all(self) -> list[QTreeWidgetItem]:
        found = (self.topLevelItem(index) for index in range(self.topLevelItemCount()))
        return [row for row in found if row is not None]

    def _row(self, group: ModuleGroup, total: int) -> QTreeWidgetItem:
        count = f" × {group.num_matrices}" if group.num_matrices > 1 else ""
        share = f"{100 * group.num_bytes / max(1, total):.1f} %"
        size = format_bytes(group.num_bytes)
        row = QTreeWidgetItem([f"{group.title}{count}", size, share])
        for column in (1, 2):
            row.setFont(column, figure_font())
            row.setTextAlignment(
                column, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            )
        if group.pattern is None:
            row.setText(0, f"{group.title} (kept)")
            row.setFlags(Qt.ItemFlag.ItemIsSelectable)
            row.setToolTip(0, "Embeddings and the output head keep their precision")
        else:
            row.setData(0, _PATTERN, group.pattern)
            row.setCheckState(0, Qt.CheckState.Checked)
            row.setToolTip(0, f"Uncheck to keep the original precision (--exclude {group.pattern})")
        name = f"{row.text(0)}, {size}, {share} of the model"
        row.setData(0, Qt.ItemDataRole.AccessibleTextRole, name)
        return row

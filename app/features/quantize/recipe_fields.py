"""Controls of a quantization recipe: model, method, numbers, text, modules, output."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import (
    QButtonGroup,
    QComboBox,
    QGridLayout,
    QHeaderView,
    QRadioButton,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from app.features.quantize.fields import (
    FOR_CALIBRATION,
    Field,
    ModelField,
    TextField,
    line_field,
    number_field,
    path_button,
    switch_field,
)
from app.features.quantize.plan import GROUP_SIZE, METHOD, MODULES, OUTPUT, SOURCE, TEXT
from app.features.quantize.source import ModuleGroup
from engine.quantize.recipe import GROUP_SIZES, METHODS, MIN_LENGTH, Recipe
from engine.units import bytes_text
from widgets.controls.layouts import vbox, wrapped
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, theme_notifier

METHOD_HINTS = {
    "awq": "4-bit, activation-aware scales from calibration text. Takes minutes to hours.",
    "gptq": "4- or 8-bit, error-compensated with calibration text. Slower than AWQ.",
    "rtn": "Group-wise round-to-nearest, 4- or 8-bit. Takes seconds; highest error at 4-bit.",
    "int8": "8-bit, one scale per output channel. Half the size, minimal error.",
    "fp8": "8-bit floating point. Half the size; fast on recent GPUs.",
    "nf4": "4-bit NormalFloat without calibration, for bitsandbytes.",
}
assert METHOD_HINTS.keys() == METHODS.keys()


TEXT_KINDS = "Text files (*.txt *.jsonl *.json *.md);;All files (*)"


class RecipeFields(QWidget):
    """`changed`: the method, or a value that the calibration depends on."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        default = Recipe()
        self.source = ModelField("Model to quantize")
        self.text = TextField("Calibration text", TEXT_KINDS, FOR_CALIBRATION)
        self.modules = ModuleList()
        self.others = line_field(
            "Excluded modules",
            "Other exclusions, such as layers.3",
            "Module names, parts of names, or patterns, separated by spaces",
        )
        self.output = line_field("Output folder")
        self.browse = path_button("Choose output folder")
        self.bits, self.group_size = QComboBox(), QComboBox()
        self.bits.setAccessibleName("Bits per weight")
        self.group_size.setAccessibleName("Group size")
        for size in GROUP_SIZES:
            self.group_size.addItem(str(size), size)
        self.symmetric = switch_field(
            "Symmetric",
            "No zero point: every engine loads it, some run it faster; slightly higher error",
        )
        self.act_order = switch_field(
            "Act-order",
            "Quantize columns in activation order: slightly lower error, slower inference",
        )
        self.num_sequences = number_field(
            "Sequences",
            "More calibration sequences improve accuracy but take longer",
            (1, 4096), 1, default.num_sequences,
        )  # fmt: skip
        self.length = number_field(
            "Sequence length", "Tokens per sequence",
            (MIN_LENGTH, 32_768), 64, default.sequence_length,
        )  # fmt: skip
        self._arrange()
        self.set_group_size(default.group_size)
        self._show_method()
        self._connect()

    def _make_methods(self) -> QWidget:
        self.methods = QButtonGroup(self)
        rows = QWidget()
        grid = QGridLayout(rows)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        grid.setColumnStretch(1, 1)
        for row, (name, hint) in enumerate(METHOD_HINTS.items()):
            button = QRadioButton(name.upper())
            button.setObjectName(name)
            button.setAccessibleDescription(hint)
            button.setToolTip(f"{hint}\nOutput format: {METHODS[name].format}")
            self.methods.addButton(button)
            grid.addWidget(button, row, 0)
            grid.addWidget(wrapped("small", hint), row, 1)
        self.methods.buttons()[0].setChecked(True)
        return rows

    def _arrange(self) -> None:
        self._bits, self._group = Field("Bits", self.bits), Field("Group size", self.group_size)
        self._reading = Field("Sequences × tokens", self.num_sequences, self.length)
        self._switches = QWidget()
        vbox(self.symmetric, self.act_order, of=self._switches, spacing=SPACE_1)
        named = {
            SOURCE: Field("Model", self.source),
            METHOD: Field("Method", self._make_methods()),
            GROUP_SIZE: Field("", self._bits, self._group),
            TEXT: Field("Calibration text", self.text),
            MODULES: Field("Modules", self.modules),
            OUTPUT: Field("Output", self.output, self.browse),
        }
        self.by_name = named
        vbox(
            named[SOURCE], named[METHOD], named[GROUP_SIZE], self._switches, named[TEXT],
            self._reading, named[MODULES], self.others, named[OUTPUT],
            of=self, spacing=SPACE_3,
        )  # fmt: skip

    def _connect(self) -> None:
        self.methods.buttonToggled.connect(self._on_method)
        self.others.editingFinished.connect(self.changed)
        for changed in (
            self.num_sequences.valueChanged, self.length.valueChanged,
            self.bits.currentIndexChanged, self.group_size.currentIndexChanged,
            self.symmetric.toggled, self.act_order.toggled, self.text.changed,
        ):  # fmt: skip
            changed.connect(lambda *_: self.changed.emit())
        for combo in (self.bits, self.group_size):
            combo.setFont(figure_font())

    # What is chosen ----------------------------------------------------------------------------

    @property
    def method(self) -> str:
        button = self.methods.checkedButton()
        return button.objectName() if button is not None else next(iter(METHOD_HINTS))

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
            self.changed.emit()

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

    def __init__(self) -> None:
        super().__init__()
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
        theme_notifier().changed.connect(self._take_fonts)
        self.show_groups((), 1)

    def show_groups(self, groups: Sequence[ModuleGroup], total: int) -> None:
        """`total`: bytes of the whole model. Quantizable groups start checked."""
        with QSignalBlocker(self):
            self.clear()
            for group in groups:
                self.addTopLevelItem(self._row(group, total))
        self._take_fonts()

    def _take_fonts(self) -> None:
        """And the height: both follow the size of text."""
        with QSignalBlocker(self):
            for row in self._rows:
                for column in (1, 2):
                    row.setFont(column, figure_font())
        line = max(self.sizeHintForRow(0), QFontMetrics(self.font()).height() + 8)
        rows = min(max(self.topLevelItemCount(), 3), _MOST_ROWS)
        self.setFixedHeight(line * rows + self.header().sizeHint().height() + 6)

    @property
    def _rows(self) -> list[QTreeWidgetItem]:
        found = (self.topLevelItem(index) for index in range(self.topLevelItemCount()))
        return [row for row in found if row is not None]

    @property
    def excluded(self) -> tuple[str, ...]:
        """Patterns of the unchecked rows."""
        unchecked = Qt.CheckState.Unchecked
        rows = (row for row in self._rows if row.checkState(0) is unchecked)
        return tuple(str(row.data(0, _PATTERN)) for row in rows if row.data(0, _PATTERN))

    def _row(self, group: ModuleGroup, total: int) -> QTreeWidgetItem:
        count = f" × {group.num_matrices}" if group.num_matrices > 1 else ""
        share = f"{100 * group.num_bytes / max(1, total):.1f} %"
        size = bytes_text(group.num_bytes)
        row = QTreeWidgetItem([f"{group.title}{count}", size, share])
        for column in (1, 2):
            row.setTextAlignment(
                column, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            )
        if group.pattern is None:
            row.setText(0, f"{group.title} (not quantized)")
            row.setFlags(Qt.ItemFlag.ItemIsSelectable)
            row.setToolTip(0, "Embeddings and the LM head are not quantized")
        else:
            row.setData(0, _PATTERN, group.pattern)
            row.setCheckState(0, Qt.CheckState.Checked)
            row.setToolTip(0, f"Uncheck to keep the original precision (--exclude {group.pattern})")
        name = f"{row.text(0)}: {size}, {share} of model size"
        row.setData(0, Qt.ItemDataRole.AccessibleTextRole, name)
        return row

"""Form fields: labelled controls with a note or an error below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractSpinBox,
    QCheckBox,
    QComboBox,
    QFileDialog,
    QLabel,
    QLineEdit,
    QPushButton,
    QSizePolicy,
    QSpinBox,
    QWidget,
)

from app.features.quantize.texts import BUILTIN_TEXTS, PROGRAM, TextChoice
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import hbox, vbox, wrapped
from widgets.theme.theme import SPACE_1, figure_font, restyle

_OTHER = object()


class Field(QWidget):
    """Controls in a row with an optional `title` above and a `note` below. Buttons and numbers keep
    their width; the other controls fill the row."""

    def __init__(self, title: str, *controls: QWidget, tip: str = "") -> None:
        super().__init__()
        self.setToolTip(tip)
        label = [QLabel(title)] if title else []
        fixed = QAbstractButton | QAbstractSpinBox
        row = hbox(*((control, int(not isinstance(control, fixed))) for control in controls))
        self._note = wrapped("small")
        self._note.hide()
        vbox(*label, row, self._note, of=self, spacing=SPACE_1 // 2)

    @property
    def note(self) -> str:
        return self._note.text()

    @property
    def has_problem(self) -> bool:
        return bool(self._note.property("role") == "error" and self._note.text())

    def say(self, text: str, role: str = "small") -> None:
        """Show a line below the control; "" hides it."""
        self._note.setText(breakable(text))
        self._note.setVisible(bool(text))
        if self._note.property("role") != role:
            restyle(self._note, role=role)

    def say_problem(self, problem: str, note: str = "") -> None:
        """Show a problem, else the note."""
        self.say(problem or note, "error" if problem else "small")


class ModelField(ElidedCombo):
    """Chooses a model folder. `changed(path)` by the user; `empty_text`: shown for none."""

    changed = Signal(str)

    def __init__(self, name: str, empty_text: str = "Choose a model") -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._empty, self._path = empty_text, ""
        self._known: list[tuple[str, str]] = []
        _may_shrink(self)
        self.activated.connect(self._on_activated)
        self._fill()

    @property
    def path(self) -> str:
        return self._path

    def set_path(self, path: str) -> None:
        """Show it, without a signal."""
        if path != self._path:
            self._path = path
            self._fill()

    def choose(self, path: str) -> None:
        """As if the user had chosen it."""
        if path != self._path:
            self.set_path(path)
            self.changed.emit(path)

    def set_known(self, known: Sequence[tuple[str, str]]) -> None:
        """Set the offered folders, as (path, title)."""
        if list(known) != self._known:
            self._known = list(known)
            self._fill()

    def _fill(self) -> None:
        with QSignalBlocker(self):
            self.clear()
            self.addItem(self._empty, "")
            known = self._known
            if self._path and self._path not in [path for path, _ in known]:
                known = [*known, (self._path, Path(self._path).name or self._path)]
            for path, title in known:
                add_item(self, title, path, path)
            self.insertSeparator(self.count())
            self.addItem("Choose folder…", _OTHER)
            self.setCurrentIndex(self.findData(self._path))
        self.setToolTip(self._path)

    def _on_activated(self, index: int) -> None:
        chosen = self.itemData(index)
        if chosen is _OTHER:
            self._fill()
            chosen = QFileDialog.getExistingDirectory(self, "Model folder", self._path)
        if isinstance(chosen, str) and (chosen or index == 0):
            self.choose(chosen)


OwnText = tuple[str, str, str]
"""A built-in text: key, title, tooltip."""
FOR_CALIBRATION: tuple[OwnText, ...] = (
    (
        PROGRAM, "Built-in",
        "English text; for the demo model, conversations similar to the training data",
    ),
)  # fmt: skip
FOR_EVALUATION = tuple((text.key, f"Built-in: {text.title}", text.about) for text in BUILTIN_TEXTS)


class TextField(ElidedCombo):
    """Chooses a built-in text or a file."""

    changed = Signal()

    def __init__(self, name: str, kinds: str, own: Sequence[OwnText]) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._choice, self._kinds, self._num_own = TextChoice(own[0][0]), kinds, len(own)
        _may_shrink(self)
        for key, title, about in own:
            add_item(self, title, key, about)
        self.activated.connect(self._on_activated)
        self.set_choice(self._choice)

    @property
    def choice(self) -> TextChoice:
        return self._choice

    def set_choice(self, choice: TextChoice) -> None:
        """Show it, without a signal."""
        self._choice = choice
        while self.count() > self._num_own:
            self.removeItem(self.count() - 1)
        if choice.file:
            self.addItem(Path(choice.file).name, choice.file)
        self.addItem("Choose file…", _OTHER)
        self.setCurrentIndex(self.findData(choice.builtin or choice.file))
        self.setToolTip(choice.file or self.currentData(Qt.ItemDataRole.ToolTipRole) or "")

    def choose(self, choice: TextChoice) -> None:
        """As if the user had chosen it."""
        self.set_choice(choice)
        self.changed.emit()

    def _on_activated(self, index: int) -> None:
        chosen = self.itemData(index)
        if chosen is _OTHER:
            self.set_choice(self._choice)
            file, _ = QFileDialog.getOpenFileName(self, "Text file", "", self._kinds)
            if file:
                self.choose(TextChoice("", file))
        elif index < self._num_own:
            self.choose(TextChoice(chosen))


def add_item(box: QComboBox, text: str, data: object, tip: str) -> None:
    box.addItem(text, data)
    box.setItemData(box.count() - 1, tip, Qt.ItemDataRole.ToolTipRole)


def path_button(name: str) -> QPushButton:
    """A Browse button for the line edit beside it."""
    button = QPushButton("Browse…")
    button.setAccessibleName(name)
    button.setToolTip(name)
    return button


def number_field(
    name: str, tip: str, bounds: tuple[int, int], step: int, value: int, special: str = ""
) -> QSpinBox:
    """A whole number; `special`: the text of the least."""
    field = QSpinBox()
    field.setRange(*bounds)
    field.setSpecialValueText(special)
    field.setSingleStep(step)
    field.setValue(value)
    field.setGroupSeparatorShown(True)
    field.setKeyboardTracking(False)
    field.setFont(figure_font())
    field.setAccessibleName(name)
    field.setToolTip(tip)
    return field


def switch_field(text: str, tip: str, is_on: bool = False) -> QCheckBox:
    field = QCheckBox(text)
    field.setToolTip(tip)
    field.setChecked(is_on)
    return field


def line_field(name: str, hint: str = "", tip: str = "") -> QLineEdit:
    field = QLineEdit()
    field.setAccessibleName(name)
    field.setPlaceholderText(hint)
    field.setToolTip(tip)
    return field


def breakable(text: str) -> str:
    """Allow line breaks after slashes, which Qt does not."""
    return text.replace("/", "/\u200b")


def _may_shrink(box: QComboBox) -> None:
    box.setMinimumContentsLength(8)
    box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    box.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

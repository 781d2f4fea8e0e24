"""Modules of a model with check boxes: checked ones are quantized."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QHeaderView, QTreeWidget, QTreeWidgetItem, QWidget

from app.features.quantize.source import ModuleGroup
from app.units import format_bytes
from widgets.theme.theme import figure_font

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

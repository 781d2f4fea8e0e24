"""What the entries of a combo box say, and which of them cannot be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QComboBox


def describe_items(box: QComboBox, choices: Sequence[tuple[Any, str, str]]) -> None:
    """Say more of the entries of `box`: (data, text, why it cannot be chosen or ""). One that
    cannot be is greyed, and its tooltip says why. Entries of other data stay as they are."""
    model = box.model()
    assert isinstance(model, QStandardItemModel)
    for value, text, refusal in choices:
        index = box.findData(value)
        if index >= 0:
            box.setItemText(index, text)
            box.setItemData(index, refusal or text, Qt.ItemDataRole.ToolTipRole)
            model.item(index).setEnabled(not refusal)

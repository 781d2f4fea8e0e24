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


def described_items(box: QComboBox) -> list[tuple[Any, str, str]]:
    """What `describe_items` said of every entry."""
    model = box.model()
    assert isinstance(model, QStandardItemModel)
    return [
        (
            box.itemData(index),
            box.itemText(index),
            "" if model.item(index).isEnabled()
            else str(box.itemData(index, Qt.ItemDataRole.ToolTipRole) or ""),
        )
        for index in range(box.count())
    ]  # fmt: skip

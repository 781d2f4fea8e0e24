"""Web addresses in a conversation: the user is asked before the browser gets them, if he wants to
be."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QMessageBox, QWidget


def ask_to_open(address: str, parent: QWidget, refuse: Callable[[str], object]) -> None:
    """Ask, then hand a web address to the browser. Other kinds of address are not opened:
    `refuse` is told so."""
    url = _web_address(address, refuse)
    if url is None:
        return
    box = QMessageBox(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setIcon(QMessageBox.Icon.Question)
    box.setWindowTitle("Open a link")
    box.setText(f"Open {url.host()} in the browser?")
    box.setInformativeText(url.toDisplayString())
    box.setTextFormat(Qt.TextFormat.PlainText)
    opens = box.addButton("Open", QMessageBox.ButtonRole.AcceptRole)
    box.addButton(QMessageBox.StandardButton.Cancel)
    opens.clicked.connect(lambda: QDesktopServices.openUrl(url))
    box.open()


def open_at_once(address: str, parent: QWidget, refuse: Callable[[str], object]) -> None:
    """As `ask_to_open`, for a user who does not want to be asked."""
    url = _web_address(address, refuse)
    if url is not None:
        QDesktopServices.openUrl(url)


def _web_address(address: str, refuse: Callable[[str], object]) -> QUrl | None:
    url = QUrl(address, QUrl.ParsingMode.StrictMode)
    if url.scheme() not in ("http", "https") or not url.host():
        refuse(f"Only web addresses are opened: {address[:80]}")
        return None
    return url

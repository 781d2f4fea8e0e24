"""`RecoveryWork`: progress of the recovery of a damaged chat file, with Cancel, above the page."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer

from app.features.chat.library import ChatLibrary
from app.window.progress import Work, WorkArea

KEY = "chat-recovery"
INTERVAL_MS = 200


class RecoveryWork(QObject):
    def __init__(self, library: ChatLibrary, area: WorkArea, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._library, self._area = library, area
        self._timer = QTimer(self, interval=INTERVAL_MS)
        self._timer.timeout.connect(self._show)
        library.saver.problem_changed.connect(self._show)
        self._show()

    def _show(self) -> None:
        recovery = self._library.recovery
        if recovery is None:
            self._timer.stop()
            self._area.end(KEY)
            return
        self._timer.start()
        actions = () if recovery.is_cancelled else (("Cancel", recovery.cancel),)
        found = recovery.found
        figures = f"messages: {found.messages:,}"
        if found.expected_messages is not None:
            figures += f" of {found.expected_messages:,}"
        stage = "cancelling" if recovery.is_cancelled else recovery.path.name
        self._area.show_work(
            Work(KEY, "Recovering chats", stage, figures, recovery.fraction, actions=actions)
        )

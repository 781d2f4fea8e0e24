"""Where the engine runs: in this process, or in its own. Follows the setting."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Signal

from app.link.bridge import EngineBridge, EngineState
from app.link.child_engine import IsolatedEngine
from app.link.engine_handle import ThreadFactory, engine_thread
from app.window.notices import Notice
from app.window.program_settings import PROCESS

KEY = "engine-place"
"""Of the notice."""


def factory_of(place: str) -> ThreadFactory:
    return IsolatedEngine if place == PROCESS else engine_thread


class EngineProcess(QObject):
    """Applies a new choice to the next model, and to the open one when the user restarts it."""

    notice = Signal(object)  # Notice
    notice_gone = Signal(str)  # its key

    def __init__(
        self, bridge: EngineBridge, restart: Callable[[], object], parent: QObject | None = None
    ) -> None:
        """`restart` loads the open model again."""
        super().__init__(parent)
        self._bridge, self._restart = bridge, restart
        bridge.state_changed.connect(self._on_state)

    def follow(self, place: str) -> None:
        """The user chose where the engine runs."""
        self._bridge.make_next(factory_of(place))
        is_open = self._bridge.state in (EngineState.READY, EngineState.LOADING)
        if not self._bridge.has_next or self._bridge.is_remote or not is_open:
            self.notice_gone.emit(KEY)
            return
        where = "in its own process" if place == PROCESS else "in this process"
        self.notice.emit(
            Notice(
                KEY,
                f"The next model runs {where}.",
                "Restart the engine to move the open model too. This stops running replies.",
                actions=(("Restart engine", self._restart),),
            )
        )

    def _on_state(self, state: EngineState) -> None:
        if not self._bridge.has_next:
            self.notice_gone.emit(KEY)

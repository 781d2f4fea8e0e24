"""Where engines of our own run: in this program, or in a process of their own."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Signal

from app.link.bridge import EngineBridge, EngineState
from app.link.child_engine import IsolatedEngine
from app.link.engine_seat import ThreadFactory, engine_thread
from app.window.notices import Notice
from app.window.program_settings import PROCESS

KEY = "engine-place"
"""Of the notice."""
_PLACES = {True: "in a process of its own", False: "in this program"}


def factory_of(place: str) -> ThreadFactory:
    return IsolatedEngine if place == PROCESS else engine_thread


class EnginePlace(QObject):
    """Follows the setting: another place is for the next model that is opened, and for the one
    that is open where the user restarts the engine."""

    notice = Signal(object)  # Notice
    notice_gone = Signal(str)  # its key

    def __init__(
        self,
        bridge: EngineBridge,
        restart: Callable[[], object],
        parent: QObject | None = None,
    ) -> None:
        """`restart` opens the model again that is open."""
        super().__init__(parent)
        self._bridge, self._restart = bridge, restart
        bridge.state_changed.connect(self._on_state)

    def follow(self, place: str) -> None:
        """The user chose where engines run."""
        self._bridge.make_next(factory_of(place))
        is_open = self._bridge.state in (EngineState.READY, EngineState.LOADING)
        if not self._bridge.has_next or self._bridge.is_remote or not is_open:
            self.notice_gone.emit(KEY)
            return
        where = _PLACES[place == PROCESS]
        self.notice.emit(
            Notice(
                KEY,
                f"The engine will run {where} from the next model on.",
                "The model that is open stays where it is. A restart loads it again there, and "
                "stops replies that are being written.",
                actions=(("Restart the engine now", self._restart),),
            )
        )

    def _on_state(self, state: EngineState) -> None:
        if not self._bridge.has_next:
            self.notice_gone.emit(KEY)

"""The engine of this machine, beside those elsewhere and in their words."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from app.connections.card import LOCAL_FIGURES, EngineCard
from app.engine_bridge import EngineBridge
from engine.snapshot import EngineSnapshot, RequestState
from widgets.engine_time import EngineTime
from widgets.stat_figures import NOTHING, StatFigures
from widgets.stat_figures import state_words as words_of

EVERY_MS = 500
TITLE = "This machine"


class LocalCard(EngineCard):
    """Follows the bridge while the engine behind it is the one of this machine."""

    def __init__(self, bridge: EngineBridge, parent: QWidget | None = None) -> None:
        self._taken = StatFigures()
        super().__init__(
            TITLE, "the engine of this window", "Inferdeck", "Back to this machine",
            self._taken.trends, "output", LOCAL_FIGURES,
        )  # fmt: skip
        self._bridge = bridge
        self._time = EngineTime()
        self._snapshot: EngineSnapshot | None = None
        self._every = QTimer(self)  # rates come to rest when nothing comes any more
        self._every.setInterval(EVERY_MS)
        self._every.timeout.connect(self._show)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.state_changed.connect(lambda state: self.renew())
        self.renew()

    def renew(self) -> None:
        """What is known by now."""
        bridge = self._bridge
        if not bridge.is_remote and bridge.is_ready and bridge.model is not None:
            self.place.set_text(f"{bridge.model.name}, in this window")
            return
        self._snapshot = None
        self._taken.clear()
        self.figures.show_values({})
        self.place.set_text("the engine of this window")
        away = "not loaded while another engine is used"
        self.state.say(away if bridge.is_remote else bridge.state.value, "idle")
        self.trend.update()

    def set_in_use(self, in_use: bool, tip: str) -> None:
        super().set_in_use(in_use, tip)
        self.use.setVisible(not in_use)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._every.start()
        self._show()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._every.stop()

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        if not self._bridge.is_remote:
            self._time.synchronise(snapshot.time)
            self._taken.update(snapshot)
            self._snapshot = snapshot

    def _show(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        states = [request.state for request in snapshot.requests]
        running = states.count(RequestState.RUNNING)
        values = self._taken.values(self._time.now())
        self.state.say(*words_of(snapshot))
        self.figures.show_values(
            {
                "running": f"{running:,}",
                "waiting": f"{len(states) - running:,}",
                "kv": f"{100 * snapshot.kv_usage:.0f}\u00a0%",
                "tokens": values["output"].text,
                "ttft": values["ttft"].text,
                "itl": values["itl"].text.partition(" / ")[0] or NOTHING,
            }
        )
        self.trend.update()

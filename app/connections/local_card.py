"""The engine of this machine, beside those elsewhere and in their words."""

from __future__ import annotations

import time

from PySide6.QtWidgets import QWidget

from app.connections.card import LOCAL_FIGURES, EngineCard
from app.engine_bridge import EngineBridge, EngineState
from engine.snapshot import EngineSnapshot, RequestState
from widgets.engine_time import EngineTime
from widgets.stat_figures import NOTHING, StatFigures
from widgets.stat_figures import state_words as words_of

EVERY_S = 0.5
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
        self._shown_at = 0.0
        bridge.snapshot.connect(self._on_snapshot)
        bridge.state_changed.connect(lambda state: self.renew())
        self.renew()

    def renew(self) -> None:
        """What is known by now."""
        bridge = self._bridge
        if bridge.is_remote:
            self._taken.clear()
            self.figures.show_values({})
            self.state.say("not loaded while another engine is used", "idle")
            self.place.set_text("the engine of this window")
        elif bridge.state is EngineState.READY and bridge.model is not None:
            self.place.set_text(f"{bridge.model.name}, in this window")
        else:
            self._taken.clear()
            self.figures.show_values({})
            self.state.say(bridge.state.value, "idle")
        self.trend.update()

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        if self._bridge.is_remote:
            return
        self._time.synchronise(snapshot.time)
        self._taken.update(snapshot)
        now = time.perf_counter()
        is_idle = not snapshot.requests
        if self.isVisible() and (is_idle or now - self._shown_at >= EVERY_S):
            self._shown_at = now
            self._show(snapshot)

    def _show(self, snapshot: EngineSnapshot) -> None:
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

"""`ConnectionCard` and `LocalCard`: address, state and metrics of one engine."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, QTimer, Signal
from PySide6.QtGui import QColor, QHideEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QLabel, QSizePolicy, QWidget

from app.clients.target import LinkState
from app.features.serve.connections import TREND, Watcher
from app.features.serve.parts import Figure, FigureRow, StateLine
from app.link.bridge import EngineBridge
from engine.snapshot import EngineSnapshot, RequestState
from engine.units import NOTHING, duration_text
from widgets.controls.buttons import ButtonRows
from widgets.controls.layouts import STRETCH, button, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine, title_line
from widgets.controls.text import EngineTime
from widgets.live.figures import StateKind, StatFigures, StatTrends, draw_sparkline
from widgets.live.figures import state_text as words_of
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, restyle, theme, theme_notifier

FIGURES = (
    Figure("running", "Running", "not reported", "Running requests"),
    Figure("waiting", "Waiting", "not reported", "Requests waiting for a batch slot or KV blocks"),
    Figure("kv", "KV usage", "not reported", "KV blocks in use, % of the KV cache"),
    Figure("tokens", "Output, tok/s", "00,000.0", "Generated tokens per second, all clients, since "
           "the last poll"),
    Figure("ttft", "TTFT p50, ms", "00,000.0", "Time to first token, all clients, since "
           "the last poll"),
    Figure("itl", "ITL p50, ms", "0,000.0", "Inter-token latency, all clients, since "
           "the last poll"),
)  # fmt: skip
LOCAL_FIGURES = tuple(
    figure._replace(tip=figure.tip.replace("since the last poll", "over the last 2 minutes"))
    for figure in FIGURES
)
KINDS: dict[LinkState, StateKind] = {
    LinkState.LIVE: "busy",
    LinkState.CONNECTING: "loading",
    LinkState.RECONNECTING: "error",
    LinkState.STALE: "error",
    LinkState.CLOSED: "idle",
}
WIDTH = 340
LINE_HEIGHT = 26


class TrendLine(QWidget):
    """Output tok/s over the last minute."""

    def __init__(self, trends: StatTrends, key: str) -> None:
        super().__init__()
        self._trends, self._key = trends, key
        dressed(self, "Output tok/s, last minute", "Output tok/s, last minute")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(120, LINE_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(theme().color("border"))
        painter.drawLine(0, self.height() - 1, self.width(), self.height() - 1)
        place = QRectF(0, 2, self.width(), self.height() - 4)
        places, values = self._trends.points(self._key)
        color = QColor(theme().line_color("tokens_out"))
        draw_sparkline(painter, place, places, values, 1.0, color)
        painter.end()


class EngineCard(QFrame):
    """Base of the cards. `in_use`: the window uses this engine."""

    use_wanted = Signal()

    def __init__(
        self, title: str, place: str, kind: str, use: str, trends: StatTrends, key: str,
        figures: tuple[Figure, ...] = FIGURES,
    ) -> None:  # fmt: skip
        super().__init__()
        dressed(self, title, panel=True)
        self.mark = dressed(QLabel("in use"), badge="live")
        self.mark.hide()
        self.place = ElidedLine("text_muted")
        self.place.set_text(place)
        self.state = StateLine()
        self.figures = FigureRow(f"{title} metrics", figures, width=92)
        self.trend = TrendLine(trends, key)
        self.use = button(use, self.use_wanted.emit)
        self.foot = ButtonRows((self.use,))
        badge = dressed(QLabel(kind), badge="neutral")
        vbox(
            hbox(title_line(title), badge, STRETCH, self.mark), self.place, self.state, SPACE_1,
            self.figures, self.trend, STRETCH, SPACE_1, self.foot,
            of=self, spacing=SPACE_1, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_3),
        )  # fmt: skip

    def set_in_use(self, in_use: bool, tip: str) -> None:
        self.mark.setVisible(in_use)
        self.use.setEnabled(not in_use)
        self.use.setToolTip(tip)
        restyle(self.use, kind="" if in_use else "primary")


class ConnectionCard(EngineCard):
    """`watch_toggled`: watch always, or only while visible."""

    edit_wanted = Signal()
    watch_toggled = Signal(bool)

    def __init__(self, watcher: Watcher) -> None:
        connection = watcher.connection
        super().__init__(
            connection.name, connection.base_url, connection.kind, "Use this engine",
            watcher.trends, TREND,
        )  # fmt: skip
        self.watcher = watcher
        self.watch = dressed(
            QCheckBox("Poll in background"),
            tip="Poll metrics every 2 s, even while this page is hidden",
        )  # fmt: skip
        self.watch.setChecked(connection.is_watched)
        self.watch.toggled.connect(self.watch_toggled)
        self.foot.add(self.watch)
        tip = f"Edit {connection.name}"
        self.foot.add(button("Edit", self.edit_wanted.emit, tip, "flat"))
        watcher.changed.connect(self.renew)
        self.renew()

    def renew(self) -> None:
        watcher = self.watcher
        figures, state = watcher.figures, watcher.state
        words = watcher.words or state.value
        if state is LinkState.LIVE and figures is not None:
            words = f"{state.value} · {duration_text(figures.round_trip_s)}"
            if not figures.has_metrics:
                words += " · no metrics"
        self.state.say(words, KINDS[state])
        self.figures.show_values(figures.texts() if figures is not None else {})
        self.figures.set_muted(state is not LinkState.LIVE)
        self.trend.update()


EVERY_MS = 500
TITLE = "This machine"


class LocalCard(EngineCard):
    """Follows the bridge while it uses the local engine."""

    def __init__(self, bridge: EngineBridge, parent: QWidget | None = None) -> None:
        self._taken = StatFigures()
        super().__init__(
            TITLE, "local engine", "Inferdeck", "Use local engine",
            self._taken.trends, "output", LOCAL_FIGURES,
        )  # fmt: skip
        self._bridge = bridge
        self._time = EngineTime()
        self._snapshot: EngineSnapshot | None = None
        self._every = QTimer(self, interval=EVERY_MS)  # rates come to rest without snapshots
        self._every.timeout.connect(self._show)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.state_changed.connect(lambda state: self.renew())
        self.renew()

    def renew(self) -> None:
        bridge = self._bridge
        if not bridge.is_remote and bridge.is_ready and bridge.model is not None:
            self.place.set_text(f"{bridge.model.name} (this window)")
            return
        self._snapshot = None
        self._taken.clear()
        self.figures.show_values({})
        self.place.set_text("local engine")
        away = "unloaded while another engine is in use"
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

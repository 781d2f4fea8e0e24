"""`ConnectionCard` and `LocalCard`: address, state and metrics of one engine."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QLabel, QSizePolicy, QWidget

from app.clients.target import LinkState, ServerType
from app.features.serve.connections import POLL_MS, TREND, Watcher
from app.features.serve.parts import Figure, FigureRow, StateLine
from app.link.bridge import EngineBridge
from engine.snapshot import EngineSnapshot
from engine.units import duration_text, rate_text, whole_percent
from widgets.controls.buttons import ButtonRows
from widgets.controls.layouts import STRETCH, button, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine, title_line
from widgets.live.figures import (
    LATENCY_SPAN,
    StateKind,
    Value,
    changes_by_itself,
    draw_sparkline,
    header_values,
    state_text,
)
from widgets.live.metric_store import RATE_S, SPAN_S, MetricStore
from widgets.live.trends import StatTrends
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, restyle, theme, theme_notifier

_POLLED = f"over {duration_text(SPAN_S)}"
FIGURES = (
    Figure("running", "Running", "not reported", "Running requests"),
    Figure("waiting", "Waiting", "not reported", "Requests waiting for a batch slot or KV blocks"),
    Figure("kv", "KV usage", "not reported", "KV blocks in use, % of the KV cache"),
    Figure("tokens", "Output", "00,000 tok/s",
           f"Generated tokens per second, all clients, over {duration_text(RATE_S)}"),
    Figure("ttft", "TTFT p50", "00.0 ms (n=00)", f"Time to first token, all clients, {_POLLED}"),
    Figure("itl", "ITL p50", "00.0 ms (n=00)", f"Inter-token latency, all clients, {_POLLED}"),
)  # fmt: skip
DETAILS = (
    Figure("queue", "Queue mean", "not reported", f"From arrival to the first step, {_POLLED}"),
    Figure("prefill", "Prefill mean", "not reported",
           f"From the first step to the first token, {_POLLED}"),
    Figure("decode", "Decode mean", "not reported",
           f"From the first token of a reply to its last, {_POLLED}"),
    Figure("hits", "Prefix hits", "not reported",
           f"Prompt tokens found in the prefix cache, % {_POLLED}"),
    Figure("preemptions", "Preemptions", "not reported", f"Requests preempted {_POLLED}"),
    Figure("acceptance", "Accepted", "not reported",
           f"Drafted tokens accepted, % {_POLLED}. Not reported without speculative decoding."),
)  # fmt: skip
"""Of other engines, from their metrics."""
_TIPS = {
    "tokens": FIGURES[3].tip,
    "ttft": FIGURES[4].tip.replace(_POLLED, LATENCY_SPAN),
    "itl": FIGURES[5].tip.replace(_POLLED, LATENCY_SPAN),
}
"""Of the figures that are those of the header."""
KINDS: dict[LinkState, StateKind] = {
    LinkState.LIVE: "busy",
    LinkState.CONNECTING: "loading",
    LinkState.RECONNECTING: "error",
    LinkState.STALE: "error",
    LinkState.CLOSED: "idle",
}
WIDTH = 372
"""Of a card, in pixels at the default text size."""
LINE_HEIGHT = 26


class TrendLine(QWidget):
    """Output tok/s over the last minute."""

    def __init__(self, trends: StatTrends, key: str) -> None:
        super().__init__()
        self.follow(trends, key)
        dressed(self, "Output tok/s, last minute", "Output tok/s, last minute")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def follow(self, trends: StatTrends, key: str) -> None:
        self._trends, self._key = trends, key
        self.update()

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
    """Base of the cards. An engine that the window uses shows the figures of the header (`store`),
    at the same beats of `clock`."""

    use_wanted = Signal()

    def __init__(
        self, title: str, place: str, kind: str, use: str, store: MetricStore, clock: RedrawClock,
        trends: StatTrends, key: str,
    ) -> None:  # fmt: skip
        super().__init__()
        dressed(self, title, panel=True)
        self.store, self._clock = store, clock
        self._shown: EngineSnapshot | None = None  # of the store, whose figures are shown
        self._values: dict[str, Value] = {}  # the header's, at that time
        self.mark = dressed(QLabel("in use"), badge="live")
        self.mark.hide()
        self.place = ElidedLine("text_muted")
        self.place.set_text(place)
        self.state = StateLine()
        self.figures = FigureRow(f"{title} metrics", FIGURES, width=92)
        self.trend = TrendLine(trends, key)
        self.more = vbox()
        self.use = button(use, self.use_wanted.emit)
        self.foot = ButtonRows((self.use,))
        badge = dressed(QLabel(kind), badge="neutral")
        vbox(
            hbox(title_line(title), badge, STRETCH, self.mark), self.place, self.state, SPACE_1,
            self.figures, self.trend, self.more, STRETCH, SPACE_1, self.foot,
            of=self, spacing=SPACE_1, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_3),
        )  # fmt: skip
        clock.add(self)

    @property
    def is_measured(self) -> bool:
        """Whether the store has figures of this engine."""
        return False

    def renew(self) -> None:
        """Show the current state, and figures that are not the header's."""

    def set_in_use(self, in_use: bool, tip: str) -> None:
        self.mark.setVisible(in_use)
        self.use.setEnabled(not in_use)
        self.use.setToolTip(tip)
        restyle(self.use, kind="" if in_use else "primary")

    def wants_redraw(self) -> bool:
        if not self.is_measured:
            return False
        return self.store.snapshot is not self._shown or changes_by_itself(self._values)

    def redraw(self) -> None:
        """Like the header: a new state at once, figures at a beat of the clock."""
        self.renew()
        if self._clock.is_beat:
            self.show_measured()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.renew()
        self.show_measured()
        self._clock.wake()

    def show_measured(self) -> None:
        """Show what the header shows of the store's newest snapshot."""
        snapshot = self.store.snapshot
        if snapshot is None or not self.is_measured:
            return
        now = self.store.time.now()
        values = header_values(self.store, now)
        self._shown, self._values = snapshot, values
        output, ttft, itl = values["output"], values["ttft"], values["itl"]
        self.figures.show_values(
            {
                "running": f"{snapshot.num_running:,}",
                "waiting": f"{snapshot.num_waiting:,}",
                "kv": whole_percent(snapshot.kv_usage),
                "tokens": rate_text(self.store.rate("out", now)),
                "ttft": self._p50("ttft", ttft),
                "itl": self._p50("itl", itl),
            }
        )
        shown = {"tokens": output, "ttft": ttft, "itl": itl}
        self.figures.set_muted(False, [key for key, one in shown.items() if not one.is_firm])
        for key, one in shown.items():
            self.figures.set_tip(key, f"{_TIPS[key]}\n{one.more}".rstrip())
        self.trend.follow(self.store.trends, "output")

    def _p50(self, key: str, shown: Value) -> str:
        """Of a latency, and the number of few samples."""
        p50 = self.store.latency(key).p50
        return duration_text(None if p50 is None else p50 / 1e3) + shown.few


class ConnectionCard(EngineCard):
    """`watch_toggled`: watch always, or only while visible."""

    edit_wanted = Signal()
    watch_toggled = Signal(bool)

    def __init__(self, watcher: Watcher, store: MetricStore, clock: RedrawClock) -> None:
        connection = watcher.connection
        super().__init__(
            connection.name, connection.base_url, connection.kind, "Use this engine",
            store, clock, watcher.trends, TREND,
        )  # fmt: skip
        self.watcher = watcher
        self._is_in_use = False
        self.details = FigureRow(f"{connection.name} details", DETAILS, width=92)
        self.more.addWidget(self.details)
        every = duration_text(POLL_MS / 1e3)
        tip = f"Poll metrics every {every}, even while this page is hidden"
        self.watch = dressed(QCheckBox("Poll in background"), tip=tip)
        self.watch.setChecked(connection.is_watched)
        self.watch.toggled.connect(self.watch_toggled)
        self.foot.add(self.watch)
        tip = f"Edit {connection.name}"
        self.foot.add(button("Edit", self.edit_wanted.emit, tip, "flat"))
        watcher.changed.connect(self.renew)
        self.renew()

    def set_in_use(self, in_use: bool, tip: str) -> None:
        super().set_in_use(in_use, tip)
        if in_use != self._is_in_use:
            self._is_in_use = in_use
            self.renew()
            self.show_measured()

    @property
    def is_measured(self) -> bool:
        # of other servers the header has this window's requests only
        is_ours = self.watcher.connection.server_type is ServerType.INFERDECK
        return self._is_in_use and is_ours and self.store.snapshot is not None

    def renew(self) -> None:
        watcher = self.watcher
        figures, state = watcher.figures, watcher.state
        words = watcher.words or state.value
        if state is LinkState.LIVE and figures is not None:
            words = f"{state.value} · {duration_text(figures.round_trip_s)}"
            if not figures.has_metrics:
                words += " · no metrics"
        self.state.say(words, KINDS[state])
        texts = figures.texts() if figures is not None else {}
        self.details.show_values(texts)
        self.details.set_muted(state is not LinkState.LIVE)
        if self.is_measured:
            return
        self._shown = None
        self.figures.show_values(texts)
        self.figures.set_muted(state is not LinkState.LIVE)
        for figure in FIGURES:
            self.figures.set_tip(figure.key, figure.tip)
        self.trend.follow(watcher.trends, TREND)


TITLE = "This machine"


class LocalCard(EngineCard):
    """Follows the bridge while it uses the local engine."""

    def __init__(self, bridge: EngineBridge, store: MetricStore, clock: RedrawClock) -> None:
        super().__init__(
            TITLE, "local engine", "Inferdeck", "Use local engine", store, clock, store.trends,
            "output",
        )  # fmt: skip
        self._bridge = bridge
        bridge.state_changed.connect(lambda state: self.renew())
        self.renew()

    @property
    def is_measured(self) -> bool:
        return self._has_model and self.store.snapshot is not None

    @property
    def _has_model(self) -> bool:
        bridge = self._bridge
        return not bridge.is_remote and bridge.is_ready and bridge.model is not None

    def renew(self) -> None:
        bridge, snapshot = self._bridge, self.store.snapshot
        if self._has_model and bridge.model is not None:
            self.place.set_text(f"{bridge.model.name} (this window)")
            if snapshot is not None:
                self.state.say(*state_text(snapshot))
            return
        self._shown = None
        self.figures.show_values({})
        self.place.set_text("local engine")
        away = "unloaded while another engine is in use"
        self.state.say(away if bridge.is_remote else bridge.state.value, "idle")
        self.trend.follow(StatTrends(("output",)), "output")

    def set_in_use(self, in_use: bool, tip: str) -> None:
        super().set_in_use(in_use, tip)
        self.use.setVisible(not in_use)

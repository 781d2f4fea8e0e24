"""One engine as a card: where it is, how it stands, its figures in the same words as all others."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.connections.target import LinkState
from app.connections.watcher import TREND, Watcher
from app.serving.figure_row import Figure, FigureRow
from app.serving.state_line import StateLine
from widgets.button_rows import ButtonRows
from widgets.elided_line import ElidedLine, title_line
from widgets.sparkline import draw_sparkline
from widgets.stat_figures import StateKind
from widgets.stat_trends import StatTrends
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, restyle, theme, theme_notifier

FIGURES = (
    Figure("running", "Running", "not told", "Requests that the engine computes now"),
    Figure("waiting", "Waiting", "not told", "Requests that wait for a slot or for blocks"),
    Figure("kv", "KV usage", "not told", "Share of the KV cache that requests hold"),
    Figure("tokens", "Tokens a second", "00,000.0", "Written for all clients, since the last look"),
    Figure("ttft", "TTFT p50, ms", "00,000.0", "Arrival to first token, of all clients, since the "
           "last look"),
    Figure("itl", "ITL p50, ms", "0,000.0", "Gap between tokens, of all clients, since the last "
           "look"),
)  # fmt: skip
LOCAL_FIGURES = tuple(
    figure._replace(tip=figure.tip.replace("since the last look", "of the last 2 minutes"))
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
    """Tokens a second, over the last minute."""

    def __init__(self, trends: StatTrends, key: str) -> None:
        super().__init__()
        self._trends, self._key = trends, key
        self.setToolTip("Tokens a second, over the last minute")
        self.setAccessibleName("Tokens a second, over the last minute")
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
    """What the cards of all engines have; `in_use`: the window is on this one."""

    use_wanted = Signal()

    def __init__(
        self, title: str, place: str, kind: str, use: str, trends: StatTrends, key: str,
        figures: tuple[Figure, ...] = FIGURES,
    ) -> None:  # fmt: skip
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName(title)
        self.title = title_line(title)
        self.kind = QLabel(kind)
        self.kind.setProperty("badge", "neutral")
        self.mark = QLabel("in use")
        self.mark.setProperty("badge", "live")
        self.mark.hide()
        self.place = ElidedLine("text_muted")
        self.place.set_text(place)
        self.state = StateLine()
        self.figures = FigureRow(f"Figures of {title}", figures, width=92)
        self.trend = TrendLine(trends, key)
        self.use = QPushButton(use)
        self.use.clicked.connect(self.use_wanted)
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.title)
        head.addWidget(self.kind)
        head.addStretch(1)
        head.addWidget(self.mark)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_3)
        column.setSpacing(SPACE_1)
        column.addLayout(head)
        for widget in (self.place, self.state):
            column.addWidget(widget)
        column.addSpacing(SPACE_1)
        column.addWidget(self.figures)
        column.addWidget(self.trend)
        column.addStretch(1)
        column.addSpacing(SPACE_1)
        self.foot = ButtonRows((self.use,))
        column.addWidget(self.foot)

    def set_in_use(self, in_use: bool, tip: str) -> None:
        self.mark.setVisible(in_use)
        self.use.setEnabled(not in_use)
        self.use.setToolTip(tip)
        restyle(self.use, kind="" if in_use else "primary")


class ConnectionCard(EngineCard):
    """`watch_toggled`: its figures are wanted all the time, or while they are seen alone."""

    edit_wanted = Signal()
    watch_toggled = Signal(bool)

    def __init__(self, watcher: Watcher) -> None:
        connection = watcher.connection
        super().__init__(
            connection.name, connection.base_url, connection.kind, "Chat and tune here",
            watcher.trends, TREND,
        )  # fmt: skip
        self.watcher = watcher
        self.watch = QCheckBox("Always watch")
        self.watch.setToolTip(
            "Read its figures every 2 s all the time; else only while this page is shown"
        )
        self.watch.setChecked(connection.is_watched)
        self.watch.toggled.connect(self.watch_toggled)
        self.edit = QPushButton("Edit")
        self.edit.setProperty("kind", "flat")
        self.edit.setToolTip(f"Change {connection.name}")
        self.edit.clicked.connect(self.edit_wanted)
        self.foot.add(self.watch)
        self.foot.add(self.edit)
        watcher.changed.connect(self.renew)
        self.renew()

    def renew(self) -> None:
        watcher = self.watcher
        figures, state = watcher.figures, watcher.state
        words = watcher.words or state.value
        if state is LinkState.LIVE and figures is not None:
            words = f"{state.value} · {1e3 * figures.round_trip_s:,.1f} ms"
            if not figures.has_metrics:
                words += " · it shows no metrics"
        self.state.say(words, KINDS[state])
        self.figures.show_values(figures.texts() if figures is not None else {})
        self.figures.set_muted(state is not LinkState.LIVE)
        self.trend.update()

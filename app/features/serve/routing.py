"""`RoutingRows`: the replicas of a router: state, running requests, requests routed, cache hits.
`ReplicaNotices` says it when one is taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.clients.connection import Connection
from app.clients.look import NOT_TOLD
from app.clients.router import Replica
from app.features.serve.parts import StateLine
from app.window.notices import Kind, Notice
from engine.units import NOTHING, duration_text, number, whole_percent
from widgets.controls.layouts import dressed, label
from widgets.controls.lines import ElidedLine
from widgets.live.figures import StateKind
from widgets.live.metric_store import SPAN_S
from widgets.theme.theme import SPACE_1, SPACE_3, figure_font, restyle, theme_notifier

TITLES = ("Replica", "State", "Running", "Routed", "Prefix hits")
TIPS = (
    "", "Result of the router's health checks", "Running requests from this router",
    "Requests routed since the router started",
    f"Prompt tokens found in the prefix cache, % over {duration_text(SPAN_S)}",
)  # fmt: skip
NAME_STRETCH = 3
OUT = "{} does not respond. {} no longer routes requests to it."
BACK = "Routing resumes when it responds."


def state_of(replica: Replica) -> tuple[str, StateKind]:
    """For the user."""
    if not replica.is_healthy:
        return "no response", "error"
    return ("healthy", "busy") if replica.is_tried else ("retrying soon", "loading")


class RoutingRows(QWidget):
    """name_of: of the server at a replica's URL."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        super().__init__()
        self._name_of = name_of
        dressed(self, "Replicas")
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_3)
        self._grid.setVerticalSpacing(SPACE_1)
        self._grid.setColumnStretch(0, NAME_STRETCH)
        self._grid.setColumnStretch(1, NAME_STRETCH)
        for column, (title, tip) in enumerate(zip(TITLES, TIPS, strict=True)):
            head = label(title, "small")
            head.setToolTip(tip)
            self._grid.addWidget(head, 0, column, _side(column))
        self._rows: list[_Row] = []
        theme_notifier().changed.connect(self._fit)
        self.hide()

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """What is shown, by row."""
        return [row.texts for row in self._rows if not row.name.isHidden()]

    def show_replicas(self, replicas: Sequence[Replica]) -> None:
        while len(self._rows) < len(replicas):
            row = _Row()
            self._rows.append(row)
            for column, part in enumerate(row.parts):
                self._grid.addWidget(part, len(self._rows), column)
        for place, row in enumerate(self._rows):
            for part in row.parts:
                part.setVisible(place < len(replicas))
            if place < len(replicas):
                row.show_replica(self._name_of(replicas[place].url), replicas[place])
        self.setVisible(bool(replicas))

    def _fit(self) -> None:
        for row in self._rows:
            row.fit()


class _Row:
    def __init__(self) -> None:
        self.name = ElidedLine()
        self.state = StateLine("small")
        self.numbers = [QLabel() for _ in TITLES[2:]]
        for one in self.numbers:
            one.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.fit()

    @property
    def parts(self) -> list[QWidget]:
        return [self.name, self.state, *self.numbers]

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.name.text(), self.state.text(), *(one.text() for one in self.numbers))

    def show_replica(self, name: str, replica: Replica) -> None:
        self.name.set_text(name)
        self.name.setToolTip(replica.url)
        self.state.say(*state_of(replica))
        hits = replica.hit_rate
        texts = (
            number(replica.running),
            NOT_TOLD if replica.routed is None else number(replica.routed),
            NOT_TOLD if hits is None else NOTHING if isnan(hits) else whole_percent(hits),
        )
        for title, text, shown in zip(TITLES[2:], texts, self.numbers, strict=True):
            shown.setText(text)
            shown.setAccessibleName(f"{name}: {title} {text}")
            restyle(shown, role="" if replica.is_healthy else "muted")

    def fit(self) -> None:
        for one in self.numbers:
            one.setFont(figure_font("small"))


def _side(column: int) -> Qt.AlignmentFlag:
    is_number = column >= len(TITLES) - 3
    return Qt.AlignmentFlag.AlignRight if is_number else Qt.AlignmentFlag.AlignLeft


class ReplicaNotices(QObject):
    """Says which replicas of a router do not respond, until they are back."""

    notice = Signal(object)  # Notice
    notice_gone = Signal(str)

    def __init__(self, name_of: Callable[[str], str], parent: QObject) -> None:
        super().__init__(parent)
        self._name_of = name_of
        self._away: dict[str, frozenset[str]] = {}  # by connection id

    def follow(self, router: Connection, replicas: Sequence[Replica]) -> None:
        away = frozenset(one.url for one in replicas if not one.is_healthy)
        if away == self._away.get(router.id, frozenset()):
            return
        self._away[router.id] = away
        key = f"replicas-{router.id}"
        if not away:
            self.notice_gone.emit(key)
            return
        names, left = ", ".join(sorted(map(self._name_of, away))), len(replicas) - len(away)
        kind: Kind = "warning" if left else "error"
        self.notice.emit(Notice(key, OUT.format(names, router.name), _rest(left), kind))


def _rest(left: int) -> str:
    if not left:
        return f"No healthy replica: requests fail. Start one. {BACK}"
    others = "the other one" if left == 1 else f"the other {left}"
    return f"New requests go to {others}. Replies that ran there failed. {BACK}"

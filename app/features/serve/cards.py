"""`EngineCards`: the local engine and all connections, as a grid of cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QWidget

from app.clients.connection import Connection
from app.clients.router import routed_url
from app.clients.target import ServerType
from app.features.serve.connections import ConnectionStore, Watcher
from app.features.serve.engine_cards import WIDTH, ConnectionCard, EngineCard, LocalCard
from app.features.serve.managed import ManagedEngines
from app.features.serve.managed_card import LogPane, ManagedCard
from app.features.serve.routing import ReplicaNotices, RoutingRows
from app.link.bridge import EngineBridge
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import STRETCH, dressed, vbox, wrapped
from widgets.live.metric_store import MetricStore
from widgets.plot.clock import RedrawClock
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_4

EMPTY = (
    "Connect to a running server on the left: Inferdeck, vLLM, SGLang, TensorRT-LLM, TGI, "
    "llama.cpp or another OpenAI-compatible server. Or run one."
)
IN_USE = "In use by this window"
USE = "Use this engine for chats and views; existing chats are kept"


class EngineCards(QWidget):
    """`use_wanted(connection)`, `back_wanted`; `edit_wanted(its id)`. `polled(its id,
    LinkState)`."""

    use_wanted = Signal(object)
    back_wanted = Signal()
    edit_wanted = Signal(str)
    polled = Signal(str, object)

    def __init__(
        self,
        bridge: EngineBridge,
        store: ConnectionStore,
        metrics: MetricStore,
        clock: RedrawClock,
        in_use: Callable[[], str],
        engines: ManagedEngines,
    ) -> None:
        super().__init__()
        self._engines = engines
        self._bridge, self._store, self._in_use = bridge, store, in_use
        self._metrics, self._clock = metrics, clock
        self._watchers: dict[str, Watcher] = {}
        self._keys: dict[str, str] = {}  # that the watchers have
        self.cards: dict[str, ConnectionCard] = {}
        self.routed = ReplicaNotices(self._name_of, self)
        self.local = LocalCard(bridge, metrics, clock)
        self.local.use_wanted.connect(self.back_wanted)
        self.empty = wrapped("muted", EMPTY)
        self._note = dressed(QFrame(), notice="info")
        vbox(self.empty, of=self._note, margins=(SPACE_4, SPACE_4, SPACE_4, SPACE_4))
        self._grid = QGridLayout()
        self._grid.setSpacing(SPACE_2)
        self._columns = 0
        holder = dressed(QWidget(), bare=True)
        self.log = LogPane()
        vbox(self._grid, self._note, self.log, STRETCH, of=holder, spacing=SPACE_4)
        area = scroll_area(holder, "Engines")
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the cards' buttons have it
        vbox(area, of=self)
        store.changed.connect(self.renew)
        store.keys.arrived.connect(lambda _: self.renew())
        engines.changed.connect(lambda _: self._watch())
        self.renew()

    def close_down(self) -> None:
        for watcher in self._watchers.values():
            watcher.close()

    def renew(self) -> None:
        connections = self._store.connections
        for gone in set(self._watchers) - {one.id for one in connections}:
            self._remove(gone)
        for one in connections:
            key, known = self._store.key(one), self._watchers.get(one.id)
            if known is not None and _is_same(known.connection, one) and self._keys[one.id] == key:
                known.connection = one
                continue
            self._remove(one.id)
            self._add(one, key)
        self._note.setVisible(not connections)
        self._columns = 0
        self._arrange()
        self.mark()
        self._watch()

    def _add(self, connection: Connection, key: str) -> None:
        store, known = self._store, connection.id
        launch = store.launch(known)
        routed = routed_url(connection.base_url) if self._is_router(known) else ""
        watcher = self._watchers[connection.id] = Watcher(connection, key, self, routed)
        watcher.recognised.connect(
            lambda probe: store.update(known, server_type=probe.server_type, version=probe.version)
        )
        watcher.changed.connect(lambda: self.polled.emit(known, watcher.state))
        self._keys[connection.id] = key
        if launch is None:
            card = ConnectionCard(watcher, self._metrics, self._clock)
        else:
            card = ManagedCard(watcher, self._metrics, self._clock, self._engines)
            card.log_wanted.connect(partial(self.show_log, known))
        self.cards[known] = card
        card.use_wanted.connect(partial(self.use_wanted.emit, connection))
        card.edit_wanted.connect(partial(self.edit_wanted.emit, known))
        card.watch_toggled.connect(lambda is_on: store.update(known, is_watched=is_on))
        if connection.server_type is ServerType.ROUTER:
            self._add_routing(card)

    def _add_routing(self, card: ConnectionCard) -> None:
        watcher, rows = card.watcher, RoutingRows(self._name_of)
        card.more.addWidget(rows)

        def renew() -> None:
            if watcher.figures is not None:
                rows.show_replicas(watcher.figures.replicas)
                self.routed.follow(watcher.connection, watcher.figures.replicas)

        watcher.changed.connect(renew)

    def _name_of(self, url: str) -> str:
        known = self._store.at(url)
        return known.name if known is not None else url

    def _remove(self, connection_id: str) -> None:
        watcher = self._watchers.pop(connection_id, None)
        if watcher is None:
            return
        watcher.close()
        watcher.deleteLater()
        card = self.cards.pop(connection_id)
        card.hide()
        card.deleteLater()

    def show_log(self, connection_id: str) -> None:
        """Of an engine that this window runs."""
        known = self._store.find(connection_id)
        if known is not None:
            self.log.show_log(known.name, lambda: self._engines.lines(connection_id))

    def _watch(self) -> None:
        """Watch the visible and the always-watched engines; of our own those that are ready."""
        for one in self._store.connections:
            wanted = one.is_watched or self.isVisible()
            if self._store.launch(one.id) is not None:
                is_ready = self._engines.is_ready(one.id)
                wanted = is_ready and (wanted or self._is_router(one.id))
                if not is_ready:
                    self.routed.follow(one, ())
            if not wanted or self._store.keys.is_known(one.key_name):
                self._watchers[one.id].set_on(wanted)
            else:
                self._store.keys.fetch(one.key_name)  # `renew` follows

    def _is_router(self, connection_id: str) -> bool:
        """Always watched: a replica that is away must be said."""
        launch = self._store.launch(connection_id)
        return launch is not None and launch.is_router

    def mark(self) -> None:
        """Show which engine is in use."""
        self.local.renew()
        used, is_here = self._in_use(), not self._bridge.is_remote
        self.local.set_in_use(is_here, IN_USE if is_here else "Reload the local model")
        for connection_id, card in self.cards.items():
            is_used = connection_id == used
            card.set_in_use(is_used, IN_USE if is_used else USE)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.local.renew()
        self._watch()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._watch()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        cards: list[EngineCard] = [self.local]
        cards += [self.cards[one.id] for one in self._store.connections]
        columns = max(1, min(3, self.width() // scaled(WIDTH)))
        if columns == self._columns:
            return
        for column in range(max(columns, self._columns)):
            self._grid.setColumnStretch(column, int(column < columns))
        self._columns = columns
        for place, card in enumerate(cards):
            self._grid.addWidget(card, *divmod(place, columns))


def _is_same(one: Connection, other: Connection) -> bool:
    """Whether both are the same server and name."""
    return replace(one, is_watched=other.is_watched) == other

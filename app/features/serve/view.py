"""`ServingView`: server state, address, metrics, recent calls and client examples.

+--------------------------------------------------+
| o Serving          http://127.0.0.1:8000  [Copy] |
| Clients get Demo model.                          |
| calls/s  connections  running  waiting  aborted  |
+--------------------------------------------------+
| curl | Python | ...                       [Copy] |
+--------------------------------------------------+
| the latest calls                                 |
+--------------------------------------------------+
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QCheckBox,
    QFrame,
    QLabel,
    QPlainTextEdit,
    QSplitter,
    QStackedLayout,
    QTabBar,
    QWidget,
)

from app.features.serve.addresses import Example, examples, url_of
from app.features.serve.call_content import KEEP, KEEP_TIP, ContentView
from app.features.serve.calls_table import POLLS, CallsTable, calls_view
from app.features.serve.controller import ServerController, ServingState
from app.features.serve.form import CopyButton
from app.features.serve.parts import Figure, FigureRow, StateLine
from app.server.options import ServingChoice
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import STRETCH, Item, button, dressed, hbox, label, vbox, wrapped
from widgets.controls.lines import title_line
from widgets.live.figures import StateKind
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, mono_font, theme_notifier

FIGURES = (
    Figure("calls_per_s", "Calls per second", "0,000.0", "Completed calls, last 10 s"),
    Figure("connections", "Connections", "00,000", "Open client connections"),
    Figure("windows", "Windows", "000", "Attached remote windows"),
    Figure("running", "Running", "0,000", "Running client requests"),
    Figure("waiting", "Waiting", "0,000", "Client requests waiting for a batch slot or KV blocks"),
    Figure("aborted", "Aborted", "00,000", "Client requests aborted by a disconnect or "
           "model unload"),
    Figure("total", "Calls", "000,000", "Calls since Inferdeck started"),
)  # fmt: skip
OFF = (
    "Start the server to let other programs use this window's model and KV cache. Their "
    "requests appear in all views."
)
NO_CALLS = "Completed calls appear here with client, status, token count and latency."
STATES: dict[ServingState, tuple[str, StateKind]] = {
    ServingState.OFF: ("Not serving", "idle"),
    ServingState.STARTING: ("Starting", "loading"),
    ServingState.ON: ("Serving", "busy"),
    ServingState.STOPPING: ("Stopping: waiting for running requests", "loading"),
}
REQUESTS = ("All engine requests", "Requests")  # and where that has no room
UNKNOWN_MODEL = "MODEL"
EXAMPLE_LINES = 8


class ServingView(FittedFrame):
    """`free_port_wanted(port)`; `requests_wanted`: show the requests view."""

    free_port_wanted = Signal(int)
    requests_wanted = Signal()

    def __init__(self, controller: ServerController) -> None:
        super().__init__()
        self._controller = controller
        self._choice, self._has_key = ServingChoice(), False
        self._examples: list[Example] = []
        self.model = CallsTable(controller.calls, self)
        self.table = calls_view(self.model)
        vbox(self._make_status(), self._make_examples(), (self._make_calls(), 1), of=self)
        controller.changed.connect(self.renew)
        controller.moved.connect(self._renew_figures)
        self.renew()

    def _make_status(self) -> QFrame:
        self.state = StateLine("title")
        flags = Qt.TextInteractionFlag
        selectable = flags.TextSelectableByMouse | flags.TextSelectableByKeyboard
        self.url = dressed(QLabel(textInteractionFlags=selectable), "Server address")
        self.url.setFont(mono_font())
        self.copy_url = CopyButton("Copy address", self.url.text)
        self.health = wrapped("muted")
        self.error = wrapped("error")
        self.take_port = button("", self._on_take_port, "Start the server on this port")
        self.figures = FigureRow("Server load", FIGURES, width=88)
        self._where = hbox((self.url, 1), self.copy_url)
        self._head = hbox((self.state, 1), self._where)
        self.figures.setContentsMargins(0, SPACE_1, 0, SPACE_1)
        return _card(self._head, self.health, hbox((self.error, 1), self.take_port), self.figures)

    def _make_examples(self) -> QFrame:
        self.example_tabs = dressed(QTabBar(), "Client examples")
        self.example_tabs.setExpanding(False)
        self.example = dressed(QPlainTextEdit(), "Example", bare=True, ring=True)
        self.example.setReadOnly(True)
        self.example.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.example.setTabChangesFocus(True)
        self.copy_example = CopyButton("Copy example", lambda: self.example.toPlainText())
        self.example_about = label(role="small")
        self.example_tabs.currentChanged.connect(lambda _: self._show_example())
        theme_notifier().changed.connect(self._fit_example)
        self._fit_example()
        head = hbox(self.example_tabs, STRETCH, self.copy_example)
        return _card(head, self.example_about, self.example)

    def _make_calls(self) -> QFrame:
        tip = "Show requests from chats and clients"
        self.show_requests = button(REQUESTS[0], self.requests_wanted.emit, tip, "link")
        self.show_requests.setAccessibleName(REQUESTS[0])
        self.hide_polls = dressed(
            QCheckBox("Hide polling"), tip=f"Hide successful polling calls: {', '.join(POLLS)}"
        )
        self.hide_polls.setChecked(True)
        self.hide_polls.toggled.connect(self._on_hide_polls)
        self.keep_content = dressed(QCheckBox(KEEP), tip=KEEP_TIP)
        self.keep_content.toggled.connect(self._on_keep_content)
        self._calls_title = title_line("Recent calls")
        self._calls_ways = hbox(
            STRETCH, self.keep_content, self.hide_polls, self.show_requests, spacing=SPACE_3
        )
        self._calls_head = hbox((self._calls_title, 1), self._calls_ways, spacing=SPACE_3)
        empty = wrapped("small", NO_CALLS)
        empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        stage = QWidget()
        self._stage = QStackedLayout(stage)
        self._stage.addWidget(empty)
        self.content = ContentView()
        self.content.hide()
        self.table.selectionModel().currentRowChanged.connect(lambda *_: self._show_content())
        split = QSplitter(Qt.Orientation.Vertical)
        split.setChildrenCollapsible(False)
        for part in (self.table, self.content):
            split.addWidget(part)
        self._stage.addWidget(split)
        return _card(self._calls_head, (stage, 1))

    # Showing -----------------------------------------------------------------------------------

    def show_choice(self, choice: ServingChoice, *, has_key: bool) -> None:
        """The settings for the next start."""
        self._choice, self._has_key = choice, has_key
        self.renew()

    def renew(self) -> None:
        controller = self._controller
        self.state.say(*STATES[controller.state])
        is_on = controller.is_on
        choice = controller.choice if is_on else self._choice
        url = controller.url if is_on else url_of(choice.host, choice.port)
        self.url.setText(url)
        self.url.setVisible(is_on)
        self.copy_url.setVisible(is_on)
        self.health.setText(controller.health if is_on else OFF)
        problem = controller.problem
        self.error.setText(f"{problem.cause} {problem.remedy}".strip() if problem else "")
        self.error.setVisible(problem is not None)
        port = controller.free_port
        self.take_port.setVisible(port is not None and problem is not None)
        self.take_port.setText(f"Use port {port}")
        self.figures.setVisible(controller.state in (ServingState.ON, ServingState.STOPPING))
        model = controller.model_name if is_on else (choice.model_name or controller.model_name)
        self._show_examples(examples(url, model or UNKNOWN_MODEL, has_key=self._has_key))
        self.fit()
        self._renew_figures()

    def _renew_figures(self) -> None:
        figures = self._controller.figures
        texts = {name: f"{count:,}" for name, count in figures._asdict().items()}
        self.figures.show_values(texts | {"calls_per_s": f"{figures.calls_per_s:,.1f}"})
        if self.isVisible():
            self.model.renew()
        self._stage.setCurrentIndex(int(self.model.rowCount() > 0))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._renew_figures()

    def minimumSizeHint(self) -> QSize:
        """The width of the address, on a line below."""
        width = self._where.minimumSize().width() + 2 * SPACE_3
        return QSize(width, super().minimumSizeHint().height())

    def fit(self) -> None:
        """Move the address below the state, and the options below the title, where they are too
        wide."""
        room = self.width() - 2 * SPACE_3
        wanted = self.state.wanted_width + 2 * SPACE_2 + self._where.minimumSize().width()
        directions = QBoxLayout.Direction
        is_narrow = self._controller.is_on and wanted > room
        self._head.setDirection(directions.TopToBottom if is_narrow else directions.LeftToRight)
        now, advance = self.show_requests.text(), self.show_requests.fontMetrics().horizontalAdvance
        ways = self._calls_ways.minimumSize().width() - advance(now)
        beside = self._calls_title.sizeHint().width() + SPACE_3 + ways
        is_low = beside + advance(REQUESTS[-1]) > room  # the title is above
        self._calls_head.setDirection(directions.TopToBottom if is_low else directions.LeftToRight)
        least = ways if is_low else beside
        fitting = (text for text in REQUESTS if least + advance(text) <= room)
        self.show_requests.setText(next(fitting, REQUESTS[-1]))

    def _show_examples(self, found: list[Example]) -> None:
        if found == self._examples:
            return
        self._examples = found
        while self.example_tabs.count() < len(found):
            self.example_tabs.addTab(found[self.example_tabs.count()].title)
        self._show_example()

    def _show_example(self) -> None:
        if self._examples:
            shown = self._examples[max(0, self.example_tabs.currentIndex())]
            self.example.setPlainText(shown.text)
            self.example_about.setText(shown.about)

    def _fit_example(self) -> None:
        self.example.setFont(mono_font("small"))
        height = self.example.fontMetrics().lineSpacing() * EXAMPLE_LINES
        self.example.setFixedHeight(height + SPACE_3)

    def _on_hide_polls(self, hides: bool) -> None:
        self.model.show_polls(not hides)
        self._renew_figures()

    def _on_keep_content(self, wanted: bool) -> None:
        self._controller.calls.keep_content(wanted)
        self.content.setVisible(wanted)
        self._show_content()

    def _show_content(self) -> None:
        if self.content.isHidden():
            return
        row = self.table.currentIndex().row()
        record = self.model.row_at(row)
        found = self._controller.calls.content(record.number) if record is not None else None
        self.content.show_call(record, found)

    def _on_take_port(self) -> None:
        if self._controller.free_port is not None:
            self.free_port_wanted.emit(self._controller.free_port)


def _card(*parts: Item) -> QFrame:
    card = dressed(QFrame(), panel=True)
    vbox(*parts, of=card, spacing=SPACE_1, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_2))
    return card

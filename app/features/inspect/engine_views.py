"""`EngineViews`: block map, step timeline, requests, bottleneck and memory, as docks and as tabs of
the Inspect page."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.features.inspect.bottleneck import BottleneckPanel
from app.features.inspect.memory_view import MemoryPanel
from app.features.inspect.page import InspectPage, Tab
from app.features.inspect.slot import SharedView
from app.features.inspect.step_link import StepLink
from app.features.inspect.step_state import StepState
from app.features.inspect.timeline_tab import TimelineTab
from app.link.bridge import EngineBridge, EngineState
from app.window.docks import CardDock, PanelDock
from engine import messages
from engine.snapshot import EngineSnapshot, RequestTimes, StepRecord
from widgets.blocks.panel import BlocksPanel
from widgets.latency.popover import LatencyPopover
from widgets.latency.reply import reply_latency
from widgets.plot.clock import RedrawClock
from widgets.plot.link import ChartGroup, LinkedCursor
from widgets.plot.painted import NONE
from widgets.requests.model import ReplyRecord
from widgets.requests.panel import RequestsPanel
from widgets.speculation.panel import SpeculationPanel
from widgets.timeline.panel import TimelinePanel

LEAST_HEIGHT = 104
TABS = (
    ("Timeline", "step-timeline"), ("KV blocks", "kv-blocks"), ("Bottleneck", "bottleneck"),
    ("Memory", "memory"), ("Requests", "requests"), ("Speculation", "speculation"),
)  # fmt: skip
"""Of the Inspect page: titles, and names of the docks with the same view."""
LONGEST_NAME = 48


class EngineViews(QObject):
    """Builds the views and docks, feeds them snapshots, and links them."""

    def __init__(
        self,
        bridge: EngineBridge,
        clock: RedrawClock,
        parent: QObject,
        name_of: Callable[[str], str],
        refuse: Callable[[str, Any], str] = lambda name, value: "",
        cursor: LinkedCursor | None = None,
        reply_of: Callable[[str], ReplyRecord | None] = lambda request_id: None,
    ) -> None:
        """`name_of`: display name of a request, e.g. the title of its chat. `refuse(setting,
        value)`: why the engine cannot take a value, or "". `cursor`: shared with charts.
        `reply_of`: the record of a reply that ended, whose figures are shown for its request."""
        super().__init__(parent)
        self.kv_blocks = BlocksPanel(clock)
        self.timeline = TimelinePanel(clock)
        self.requests = RequestsPanel()
        self.latency = LatencyPopover(self.requests)
        self.speculation = SpeculationPanel(clock)
        self.bottleneck = BottleneckPanel()
        self.memory = MemoryPanel(clock)
        self._places: dict[str, SharedView] = {}
        self.blocks_dock = self._dock("KV blocks", "kv-blocks", self.kv_blocks)
        self.timeline_dock = self._dock("Step timeline", "step-timeline", self.timeline)
        self.requests_dock = self._dock("Requests", "requests", self.requests)
        self.speculation_dock = self._dock("Speculation", "speculation", self.speculation)
        self.bottleneck_dock = self._dock("Bottleneck", "bottleneck", self.bottleneck)
        self.memory_dock = self._dock("Memory", "memory", self.memory)
        self.docks = (
            (self.blocks_dock, "Ctrl+Shift+B"),
            (self.timeline_dock, "Ctrl+Shift+T"),
            (self.requests_dock, "Ctrl+Shift+R"),
            (self.speculation_dock, "Ctrl+Shift+D"),
            (self.bottleneck_dock, "Ctrl+Shift+W"),
            (self.memory_dock, "Ctrl+Shift+M"),
        )
        self.page: InspectPage | None = None
        self.step_link = StepLink(self.timeline.view, cursor or LinkedCursor(self), self)
        self.speculation.chart.join(ChartGroup(self.step_link.cursor, self))
        self._name_of, self._reply_of = name_of, reply_of
        self.timeline.view.chosen.connect(lambda ordinal: self._on_chosen_step())
        for view in (
            self.kv_blocks, self.timeline, self.requests, self.speculation, self.bottleneck,
            self.memory,
        ):  # fmt: skip
            # docks that lie behind each other are as high as the highest: the page comes first
            view.setMinimumHeight(LEAST_HEIGHT)
        self.kv_blocks.details_wanted.connect(bridge.inspect_block)
        self.requests.abort_requested.connect(bridge.abort)
        self.requests.blocks_wanted.connect(self.show_blocks_of)
        self.requests.latency_wanted.connect(self.show_latency_of)
        self.latency.step_wanted.connect(self.show_step)
        bridge.block_inspected.connect(lambda event: self.kv_blocks.show_details(event.details))
        self.timeline.set_explain(self.bottleneck.step_text)
        self.bottleneck.measure_wanted.connect(bridge.measure_peaks)
        bridge.peaks_measured.connect(self.bottleneck.show_peaks)
        self.bottleneck.profile_wanted.connect(bridge.profile_steps)
        bridge.steps_profiled.connect(self.bottleneck.show_profile)
        bridge.ended.connect(self._on_ended)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.state_changed.connect(self._on_state)
        bridge.loaded.connect(self._on_loaded)
        self.kv_blocks.name = self.latency.view.name = name_of
        self.timeline.set_names(name_of)
        self.requests.set_names(name_of)
        self.bottleneck.table.refuse = refuse

    def _dock(self, title: str, name: str, view: QWidget) -> CardDock:
        shared = self._places[name] = SharedView(view)
        return CardDock(title, name, shared.slot())

    def make_page(self, *others: Tab) -> InspectPage:
        """The Inspect page; `others`: tabs after those of the views."""
        slots = {name: self._places[name].slot() for _, name in TABS}
        self.step_state = StepState(self._name_of, self.bottleneck.model.split)
        self.step_state.closed.connect(lambda: self.timeline.view.choose(NONE))
        self.step_state.request_wanted.connect(self.show_request)
        self.timeline_tab = TimelineTab(slots["step-timeline"], self.step_state)
        contents: dict[str, QWidget] = {**slots, "step-timeline": self.timeline_tab}
        tabs = [Tab(title, name, contents[name]) for title, name in TABS]
        self.page = InspectPage([*tabs, *others])
        return self.page

    def _bring_to_front(self, dock: PanelDock) -> None:
        """Show a view: on the Inspect page, unless its dock is open beside another page."""
        page, name = self.page, dock.objectName()
        if page is not None and page.show_view(name):
            return
        if page is None or not dock.isHidden():
            dock.bring_to_front()
        else:
            page.open_view(name)

    def show_blocks_of(self, request_id: str) -> None:
        """Highlight a request's blocks in the map, and show the map."""
        self._bring_to_front(self.blocks_dock)
        self.kv_blocks.map.choose(request_id)

    def show_latency_of(self, request_id: str) -> None:
        """Open the latency breakdown of a request, above the table of requests."""
        reply = self._reply_of(request_id)
        times = self.requests.model.times[request_id] if reply is None else reply.times
        latency = reply_latency(request_id, times, self.steps_of(times))
        name = shorten(self.latency.view.name(request_id), LONGEST_NAME, placeholder=" …")
        self.latency.show_latency(latency, f"“{name}”")
        self.latency.toggle_at(self.requests.latency_button)

    def steps_of(self, times: RequestTimes) -> list[StepRecord]:
        """The timeline's steps from the arrival of a request to its last token; none where the
        times begin at 0: of an earlier session, or of a reply that was continued."""
        if not times.arrival:
            return []
        return self.timeline.view.history.between(times.arrival, times.tokens[-1].time)

    def show_step(self, index: int) -> None:
        """Point at a step in the timeline, and show the timeline."""
        self._bring_to_front(self.timeline_dock)
        self.timeline.show_step(index)

    def show_requests(self) -> None:
        """Show the table of requests."""
        self._bring_to_front(self.requests_dock)

    def show_request(self, request_id: str) -> None:
        """Select a request in the table of requests, and show that."""
        self.show_requests()
        self.requests.select(request_id)

    def _on_chosen_step(self) -> None:
        step = self.step_link.chosen
        if self.page is not None:
            self.timeline_tab.show_step(step)
        entries = () if step is None else step.entries
        self.requests.mark(
            {entry.request_id for entry in entries}, "" if step is None else f"step {step.index:,}"
        )

    def clear(self) -> None:
        self._on_state(EngineState.EMPTY)
        self._forget_requests()

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self.kv_blocks.update_snapshot(snapshot)
        self.timeline.update_snapshot(snapshot)
        self.requests.update_requests(snapshot.requests)
        self.speculation.update_snapshot(snapshot)
        self.bottleneck.update_snapshot(snapshot)
        self.memory.update_snapshot(snapshot)

    def _on_ended(self, event: messages.OutputEvent) -> None:
        if event.finish_reason is None or event.times is None:
            return
        shown = self._reply_of(event.request_id) or ReplyRecord(
            event.times, event.num_prompt_tokens, event.num_cached_tokens
        )
        self.requests.finish(
            event.request_id, event.finish_reason, *shown, event.num_preemptions
        )

    def _on_state(self, state: EngineState) -> None:
        if state in (EngineState.CRASHED, EngineState.EMPTY):
            self.kv_blocks.clear()
            self.requests.update_requests(())  # no snapshot follows
            self.timeline.rest()
            self.speculation.clear()
            self.bottleneck.close_model()
            self.memory.clear()

    def _on_loaded(self, event: messages.Loaded) -> None:
        self._forget_requests()
        self.speculation.clear()
        self.bottleneck.open_model()
        self.memory.clear()

    def _forget_requests(self) -> None:
        self.timeline.clear()
        self.requests.clear()
        self.latency.hide()

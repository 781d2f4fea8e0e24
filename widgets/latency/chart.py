"""`LatencyChart`: the latency of a reply as bars; its sentences and its table of values."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QMouseEvent, QPainter, QPen

from engine.units import counted, duration_text
from widgets.latency.causes import Cause, Gap, Reason
from widgets.latency.reply import ReplyLatency, Stage
from widgets.plot.painted import NONE, PaintedPlot
from widgets.plot.table import Cell, ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, theme, ui_font

Name = Callable[[str], str]
"""The user's name of a request, from its id."""
_MOST_NAMES = 2


def first_token_text(latency: ReplyLatency) -> str:
    """ "First token after 412 ms: 12.0 ms queued, 400 ms prefill of 600 tokens"."""
    if not latency.stretches:
        return "No tokens."
    if latency.stretches[0].stage is Stage.BOTH:
        return f"First token after {duration_text(latency.ttft_s)}: queue and prefill not reported."
    prefills = [s for s in latency.stretches if s.stage is Stage.PREFILL]
    parts = []
    if queue := latency.seconds_of(Stage.QUEUE):
        parts.append(f"{duration_text(queue)} queued")
    count, cached = sum(s.num_tokens for s in prefills), sum(s.num_cached for s in prefills)
    prefill = f"{duration_text(latency.seconds_of(Stage.PREFILL))} prefill"
    if count:
        prefill += f" of {counted(count, 'token')}"
    if len(prefills) > 1:
        prefill += f" in {len(prefills):,} chunks"
    parts.append(prefill)
    if cached:
        parts.append(f"{counted(cached, 'token')} cached")
    if wait := latency.seconds_of(Stage.WAIT):
        parts.append(f"{duration_text(wait)} waiting between chunks")
    return f"First token after {duration_text(latency.ttft_s)}: {', '.join(parts)}."


def gaps_text(latency: ReplyLatency) -> str:
    """ "63 gaps (4 slow): median 18.2 ms, max 95.0 ms."."""
    if not latency.gaps:
        return "Only one token: no inter-token gaps."
    longest = float(latency.gap_seconds.max())
    slow = latency.slow_gaps
    figures = duration_text(longest)
    if len(latency.gaps) > 1:
        figures = f"median {duration_text(latency.usual_s)}, max {figures}"
    text = f"{counted(len(latency.gaps), 'gap')} ({len(slow):,} slow): {figures}."
    unknown = sum(gap.reason is None for gap in slow)
    if unknown:
        text += f" Causes not recorded: {unknown:,} of {len(slow):,}."
    return text


def gap_text(latency: ReplyLatency, index: int, name: Name) -> str:
    gap = latency.gaps[index]
    text = f"Token {first_token_of(latency, index):,} after {duration_text(gap.seconds)}"
    if numbers := _steps_text(gap):
        text += f", {numbers}"
    if latency.causes[index] is Cause.NONE:
        return f"{text}: normal."
    if gap.reason is None:
        return f"{text}: cause not recorded."
    return f"{text}: {reason_text(gap, gap.reason, name)}."


def _steps_text(gap: Gap) -> str:
    """ "steps 17 to 18", also of steps that are no longer kept."""
    first, last = -1, -1
    if gap.steps:
        first, last = gap.steps[0].index, gap.steps[-1].index
    elif gap.reason is not None:
        first, last = gap.reason.first_step, gap.reason.last_step
    if last < 0:
        return ""
    return f"step {last:,}" if first == last else f"steps {first:,} to {last:,}"


def first_token_of(latency: ReplyLatency, index: int) -> int:
    """Number, from 1, of the first token that came after gap `index`."""
    return 2 + sum(gap.num_tokens for gap in latency.gaps[:index])


_REASONS = {
    Cause.BETWEEN: "no step ran for {took} (engine thread waiting for the CPU)",
    Cause.BATCH: "batch of {reason.batch:,} requests (median: {reason.usual_batch:,})",
    Cause.DRAFT: "drafting took {took} longer than usual",
    Cause.MODEL: "the forward pass took {took} longer than usual (busy or throttled processor)",
    Cause.HOST: "scheduling and sampling took {took} longer (garbage collection or busy CPU)",
    Cause.UNKNOWN: "no more work than usual; the CPU was probably busy with other work",
}


def reason_text(gap: Gap, reason: Reason, name: Name) -> str:
    """Why a gap was long: a clause."""
    took, count = duration_text(reason.seconds), counted(reason.num_tokens, "token")
    match reason.cause:
        case Cause.CONTINUED:
            return f"continued here, {took} queued and {count} of prefill"
        case Cause.REBUILD | Cause.RELOAD:
            what = f" ({reason.text})" if reason.text else ""
            rest = duration_text(max(0.0, gap.seconds - reason.seconds))
            again = f" + recomputation of {count} {rest}" if reason.num_tokens else ""
            return f"{reason.cause} {took}{what}{again}"
        case Cause.PREEMPTED:
            why = f"by a change of {reason.text}" if reason.text else "to free KV blocks"
            again = f", {count} recomputed" if reason.num_tokens else ""
            return f"preempted {why}{again}"
        case Cause.PREFILL:
            return f"batched with {_prefills(reason, name, is_stored=gap.is_stored)}"
    text = _REASONS.get(reason.cause, _REASONS[Cause.UNKNOWN])
    return text.format(took=took, reason=reason)


def _prefills(reason: Reason, name: Name, *, is_stored: bool) -> str:
    """ "the prefill of 512 tokens for “Planning”"."""
    names = list(reason.others) if is_stored else list(dict.fromkeys(map(name, reason.others)))
    shown = [f"“{one}”" for one in names]
    text = " and ".join(shown[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        more = len(names) - 1
        if names[-1].startswith("+"):  # of stored names the last may be a number
            more += int(names[-1]) - 1
        text = f"{shown[0]} and {more:,} others"
    return f"the prefill of {counted(reason.num_tokens, 'token')} for {text}"


HEADERS = (
    "phase", "start (ms)", "duration (ms)", "tokens", "cached tokens", "last step", "requests",
    "cause",
)  # fmt: skip
_DIGITS = (0, 2, 2, 0, 0, 0, 0, 0)


def latency_table(latency: ReplyLatency | None) -> ValuesTable:
    """A row per stretch to the first token, then per gap."""
    rows: list[tuple[Cell, ...]] = []
    for stretch in latency.stretches if latency is not None else ():
        is_prefill = stretch.stage is Stage.PREFILL
        counts = (stretch.num_tokens, stretch.num_cached) if is_prefill else (None, None)
        times = 1e3 * stretch.start, 1e3 * stretch.seconds
        rows.append((stretch.stage.value, *times, *counts, None, None, ""))
    causes = latency.causes if latency is not None else ()
    for gap, cause in zip(latency.gaps if latency is not None else (), causes, strict=True):
        step = gap.steps[-1] if gap.steps else None
        of_step: tuple[int | None, int | None] = (None, None)
        if step is not None:
            of_step = (step.index, len(step.entries))
        elif gap.reason is not None and gap.reason.last_step >= 0:
            of_step = (gap.reason.last_step, gap.reason.batch)
        times = 1e3 * gap.start, 1e3 * gap.seconds
        rows.append(("gap", *times, gap.num_tokens, None, *of_step, cause.value))
    return ValuesTable(HEADERS, tuple(rows), _DIGITS)


STAGE_COLORS = {
    Stage.QUEUE: "queued", Stage.PREFILL: "prefill", Stage.BOTH: "prefill", Stage.WAIT: "waiting",
}  # fmt: skip
CAUSE_COLORS = {
    Cause.NONE: "decode",
    Cause.PREFILL: "prefill",
    Cause.PREEMPTED: "preempted",
    Cause.REBUILD: "badge_rebuild",
    Cause.RELOAD: "badge_rebuild",
    Cause.CONTINUED: "queued",
    Cause.BETWEEN: "queued",
    Cause.BATCH: "running",
    Cause.DRAFT: "draft",
    Cause.MODEL: "p99",
    Cause.HOST: "p99",
    Cause.UNKNOWN: "p99",
}
_STRIP_HEIGHT = 18
_WIDEST_BAR = 14
_PAD = 4  # between the frame of the focus and what is drawn
_LEAST_STRETCH = 2  # pixels


class LatencyChart(PaintedPlot):
    """TTFT as a strip above a bar per gap."""

    preferred = QSize(560, 180)
    least = QSize(200, 120)

    def __init__(self) -> None:
        name = "Request latency: TTFT, then each inter-token gap"
        super().__init__(name, title="Request latency")
        self._latency: ReplyLatency | None = None
        self._causes: list[Cause] = []
        self._slowest = NONE

    def text_font(self) -> QFont:
        return ui_font("small")

    def values_table(self) -> ValuesTable:
        return latency_table(self._latency)

    def show_latency(self, latency: ReplyLatency) -> None:
        """Select the slowest gap. The user's choice stays while its reply grows."""
        before, self._latency = self._latency, latency
        self._causes = latency.causes
        slowest_before = self._slowest
        is_any_slow = bool(latency.slow_places)
        self._slowest = int(latency.gap_seconds.argmax()) if is_any_slow else NONE
        is_same = before is not None and before.request_id == latency.request_id
        is_chosen = self.pointed_index not in (NONE, slowest_before)
        if not (is_same and is_chosen and self.pointed_index < len(latency.gaps)):
            self.pointed_index = NONE
            self.point_at(self._slowest)
        self.update()

    # Geometry ----------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Pixels from the first to the last bar."""
        return max(1, self.width() - 2 * _PAD)

    def _pen_height(self) -> int:
        return self.fontMetrics().height() + SPACE_1

    @property
    def _per_bar(self) -> int:
        """Gaps per bar: 1 while each can have two pixels."""
        count = len(self._causes)
        return max(1, -(-count * 2 // self._room))

    @property
    def _bar_width(self) -> float:
        bars = -(-len(self._causes) // self._per_bar)
        return min(float(_WIDEST_BAR), self._room / max(1, bars))

    def gap_at(self, x: float) -> int:
        """The longest gap of the bar at `x`, or NONE."""
        x -= _PAD
        if self._latency is None or not self._causes or x < 0:
            return NONE
        first = int(x // self._bar_width) * self._per_bar
        group = self._latency.gaps[first : first + self._per_bar]
        if not group:
            return NONE
        lengths = [gap.seconds for gap in group]
        return first + lengths.index(max(lengths))

    @property
    def num_items(self) -> int:
        return len(self._causes)

    def item_at(self, position: QPointF) -> int:
        return self.gap_at(position.x())

    # Painting ----------------------------------------------------------------------------------

    def paint(self, painter: QPainter) -> None:
        if self._latency is not None:
            painter.translate(_PAD, _PAD)
            self._paint_strip(painter, self._latency)
            self._paint_bars(painter, self._latency)
            painter.resetTransform()

    def _paint_strip(self, painter: QPainter, latency: ReplyLatency) -> None:
        if not latency.stretches or latency.ttft_s <= 0:
            return
        scale = self._room / latency.ttft_s
        painter.setPen(Qt.PenStyle.NoPen)
        for stretch in latency.stretches:
            left = min(stretch.start * scale, self._room - _LEAST_STRETCH)
            width = max(stretch.seconds * scale - 1, _LEAST_STRETCH)
            painter.setBrush(QColor(theme().value(STAGE_COLORS[stretch.stage])))
            painter.drawRect(QRectF(left, 0, width, _STRIP_HEIGHT))

    def _paint_bars(self, painter: QPainter, latency: ReplyLatency) -> None:
        if not latency.gaps:
            return
        top = _STRIP_HEIGHT + self._pen_height() + SPACE_2
        area = QRectF(0, top, self._room, max(0, self.height() - 2 * _PAD - top))
        table, per_bar = theme(), self._per_bar
        lengths = latency.gap_seconds
        longest = float(lengths.max()) or 1.0
        scale, width = area.height() / longest, self._bar_width
        space = 1.0 if width >= 4 else 0.0
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for place, first in enumerate(range(0, len(lengths), per_bar)):
            group = lengths[first : first + per_bar]
            index = first + int(group.argmax())
            height = max(1.0, float(lengths[index]) * scale)
            color = QColor(table.value(CAUSE_COLORS[self._causes[index]]))
            bar = QRectF(place * width, area.bottom() - height, width - space, height)
            painter.fillRect(bar, color)
            if first <= self.pointed_index < first + per_bar:
                painter.setPen(QPen(table.color("text"), 1))
                painter.drawRect(bar.adjusted(-0.5, -0.5, 0.5, -0.5))
        usual = area.bottom() - latency.usual_s * scale
        painter.setPen(QPen(table.color("text_muted"), 1, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(0, usual), QPointF(self._room, usual))
        caption = QRectF(0, _STRIP_HEIGHT + SPACE_1, self._room, self._pen_height())
        painter.setPen(table.color("text_muted"))
        text = f"Inter-token gaps, max {duration_text(longest)}; dashed: median"
        self.pen.left(painter, caption, self.pen.elided(text, self._room))

    # Mouse and keyboard ------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self.item_at(event.position())
        if index != NONE:  # beside the bars: keep the last one
            self.point_at(index)

    def leaveEvent(self, event: QEvent) -> None:
        """Keep the last gap pointed at."""

"""Measurements and precisions of a reply, and their text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from app.features.models.precision import precision_change
from engine.messages import OutputEvent
from engine.snapshot import RequestTimes
from widgets.controls.text import milliseconds
from widgets.tokens.record import Alternative, TokenRecord

GAP = "    "
"""Separates groups of figures; within a group a middle dot does."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one finished reply. Latencies in milliseconds, rates in tokens per second. `num_tokens`
    were generated; `num_given_tokens` before them come from another version.

    `itl_*` pool the gaps between output events; p99 is None for fewer than 100 samples. The rate
    is that of decoding, after the first token.
    """

    num_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    model: str = ""
    finish_reason: str = ""
    ttft_ms: float | None = None
    queue_ms: float | None = None
    itl_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    itl_max_ms: float | None = None
    num_given_tokens: int = 0

    @property
    def prefill_ms(self) -> float | None:
        """First schedule to first token."""
        if self.ttft_ms is None or self.queue_ms is None:
            return None
        return self.ttft_ms - self.queue_ms

    @property
    def tokens_per_s(self) -> float | None:
        return 1e3 / self.itl_ms if self.itl_ms else None

    @property
    def num_context_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_given_tokens + self.num_tokens

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Figures:
        """Unknown names are ignored: a newer version may have written more."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    @classmethod
    def of(
        cls, event: OutputEvent, num_tokens: int, model: str, num_given_tokens: int = 0
    ) -> Figures:
        """From the last event of a reply of `num_tokens` tokens."""
        times = event.times or RequestTimes(arrival=event.time)
        gaps = sorted(gap * 1e3 for gap in times.itl_s)
        ttft, queue = times.ttft_s, times.queue_s
        return cls(
            num_tokens=num_tokens,
            num_prompt_tokens=event.num_prompt_tokens,
            num_cached_tokens=event.num_cached_tokens,
            model=model,
            finish_reason=event.finish_reason.value if event.finish_reason else "",
            ttft_ms=None if ttft is None else ttft * 1e3,
            queue_ms=None if queue is None else queue * 1e3,
            itl_ms=sum(gaps) / len(gaps) if gaps else None,
            itl_p50_ms=_percentile(gaps, 0.5) if gaps else None,
            itl_p99_ms=_percentile(gaps, 0.99) if len(gaps) >= 100 else None,
            itl_max_ms=gaps[-1] if gaps else None,
            num_given_tokens=num_given_tokens,
        )


def _percentile(ordered: list[float], fraction: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def figures_line(figures: Figures, precisions: str = "") -> str:
    """The line of figures under a reply, with `precisions` at its end."""
    groups = []
    if figures.ttft_ms is not None:
        groups.append(f"TTFT {_coarse(figures.ttft_ms)} ms{_parts_of_ttft(figures)}")
    if figures.itl_ms is not None:
        groups.append(f"ITL {milliseconds(figures.itl_ms)}")
    if figures.tokens_per_s is not None:
        groups.append(f"{figures.tokens_per_s:,.0f} tok/s")
    unit = "token" if figures.num_tokens == 1 else "tokens"
    given = f" + {figures.num_given_tokens:,} reused tokens" if figures.num_given_tokens else ""
    groups.append(f"{figures.num_tokens:,} {unit}{given}")
    if precisions:
        groups.append(precisions)
    return GAP.join(groups)


def _parts_of_ttft(figures: Figures) -> str:
    given = figures.num_prompt_tokens + figures.num_given_tokens
    cached = (
        f"{figures.num_cached_tokens:,} of {given:,} tokens cached"
        if figures.num_cached_tokens
        else f"{given:,} tokens"
    )
    if figures.queue_ms is None or figures.prefill_ms is None:
        return f" ({cached})"
    queue, prefill = _coarse(figures.queue_ms), _coarse(figures.prefill_ms)
    return f" (queue {queue} · prefill {prefill}, {cached})"


def figures_details(figures: Figures, precisions: str = "") -> str:
    """All figures of a reply, one a line, for its tooltip."""
    lines = [f"Model: {figures.model}"] if figures.model else []
    if precisions:
        lines.append(f"Precision: {precisions}")
    if figures.ttft_ms is not None:
        lines.append(f"TTFT (arrival to first token): {milliseconds(figures.ttft_ms)}")
    if figures.itl_ms is not None and figures.itl_p50_ms is not None:
        p99 = figures.itl_p99_ms
        tail = "" if p99 is None else f", p99 {milliseconds(p99)}"
        lines.append(
            f"ITL (time between tokens): mean {milliseconds(figures.itl_ms)}, "
            f"p50 {milliseconds(figures.itl_p50_ms)}{tail}, "
            f"max {milliseconds(figures.itl_max_ms or 0.0)}"
        )
    lines.append(
        f"Prompt: {figures.num_prompt_tokens:,} tokens, "
        f"{figures.num_cached_tokens:,} from the prefix cache"
    )
    lines.append(f"Reply: {figures.num_tokens:,} tokens")
    if figures.num_given_tokens:
        lines.append(f"Reused from the previous version: {figures.num_given_tokens:,} tokens")
    if figures.finish_reason in FINISHES:
        lines.append(f"Finish reason: {FINISHES[figures.finish_reason]}")
    return "\n".join(lines)


FINISHES = {
    "stop": "EOS or stop sequence",
    "length": "max tokens reached",
    "abort": "stopped",
    "error": "error",
}
"""Texts of the finish reasons."""


def _coarse(value: float) -> str:
    """A TTFT; with tenths below ten only."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


class Progress:
    """Figures of a reply while it is generated."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_prompt_tokens = 0
        self.step_index = 0
        self._first: float | None = None
        self._first_tokens = 0
        self._last = 0.0

    def add(self, event: OutputEvent) -> None:
        self.num_tokens += len(event.token_ids)
        self.num_prompt_tokens = event.num_prompt_tokens
        self.step_index = event.step_index
        self._last = event.time
        if self._first is None and event.token_ids:
            self._first, self._first_tokens = event.time, self.num_tokens

    @property
    def itl_ms(self) -> float | None:
        """Mean gap between tokens so far."""
        gaps = self.num_tokens - self._first_tokens
        if self._first is None or gaps < 1:
            return None
        return (self._last - self._first) * 1e3 / gaps


def records_of(event: OutputEvent) -> list[TokenRecord]:
    """The tokens of an event: accepted drafts, then the model's own token in place of the rejected
    ones."""
    records = [
        TokenRecord(
            token.token_id, token.token, token.logprob, token.rank,
            tuple(Alternative(*alternative) for alternative in token.alternatives),
        )
        for token in event.logprobs
    ]  # fmt: skip
    if event.drafts is not None and records:
        for i in range(min(event.drafts.num_accepted, len(records))):
            records[i] = records[i]._replace(is_draft=True)
        if event.drafts.rejected:
            records[-1] = records[-1]._replace(rejected=event.drafts.rejected)
    return records


class Passage(NamedTuple):
    """Generated in `precision` from the character `start` on, after `num_tokens` tokens."""

    start: int
    num_tokens: int
    precision: str

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Passage:
        """Raises KeyError, TypeError or ValueError for what `_asdict` did not give."""
        start, num_tokens = int(stored["start"]), int(stored["num_tokens"])
        if start < 0 or num_tokens < 0 or not isinstance(stored["precision"], str):
            raise ValueError(f"invalid passage: {dict(stored)}")
        return cls(start, num_tokens, stored["precision"])


Passages = tuple[Passage, ...]


def followed(passages: Passages, text: str, num_tokens: int, precision: str) -> Passages:
    """`passages` of a reply that has `text` so far and continues in `precision`."""
    last = passages[-1] if passages else None
    if last is not None and last.precision == precision:
        return passages
    if last is not None and last.num_tokens == num_tokens:  # nothing was written in it
        return followed(passages[:-1], text, num_tokens, precision)
    return (*passages, Passage(len(text), num_tokens, precision))


def passages_before(passages: Passages, num_tokens: int) -> Passages:
    """Passages that begin within the first `num_tokens` tokens."""
    return tuple(p for p in passages if p.num_tokens < num_tokens)


def precisions_of(passages: Passages) -> str:
    """ "bf16", or "bf16 → bf16 · int8 weights"."""
    return " → ".join(passage.precision for passage in passages)


def marks_of(passages: Passages) -> tuple[tuple[int, str, str], ...]:
    """(character, label, explanation) of every place where the precision changed."""
    return tuple(
        (
            after.start,
            f"{precision_change(before.precision, after.precision)} from this token on",
            f"The precision changed from {before.precision} to {after.precision} after "
            f"{after.num_tokens:,} tokens.",
        )
        for before, after in pairwise(passages)
    )


def note_of(passages: Passages) -> str:
    """A sentence for copies and exports of a reply in several precisions; else ""."""
    if len(passages) < 2:
        return ""
    later = (f"from token {p.num_tokens + 1:,} on in {p.precision}" for p in passages[1:])
    return f"Written in {passages[0].precision}, {', '.join(later)}."

"""Measurements of a reply; the text of these and of its precisions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from app.features.models.precision import precision_change
from engine.messages import NO_STEP, OutputEvent
from engine.snapshot import RequestTimes
from engine.units import duration_text, rate_text

if TYPE_CHECKING:
    from app.features.chat.conversation import Passages
    from app.features.chat.open_reply import Earlier

GAP = "    "
"""Separates groups of figures; within a group a middle dot does."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one finished reply. Latencies in milliseconds, rates in tokens per second. `num_tokens`
    were generated; `num_given_tokens` before them come from another version. `is_served`: by
    another server, which reports no steps; `queue_ms` is what its trace leaves of the TTFT.

    `itl_*` pool the gaps between output events; p99 is None for fewer than 100 samples. The rate
    is that of decoding, after the first token. `num_continued_tokens` were generated before the
    reply was last continued.
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
    num_continued_tokens: int = 0
    is_served: bool = False

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
    def num_sent_tokens(self) -> int:
        """Tokens of the request: the prompt and those of another version."""
        return self.num_prompt_tokens + self.num_given_tokens

    @property
    def num_context_tokens(self) -> int:
        return self.num_sent_tokens + self.num_tokens

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Figures:
        """Unknown names are ignored: a newer version may have written more. Raises
        msgspec.ValidationError for values of another type."""
        return msgspec.convert(values, cls)

    @classmethod
    def of(
        cls, event: OutputEvent, num_tokens: int, model: str, num_given_tokens: int = 0
    ) -> Figures:
        """From the last event of a reply of `num_tokens` tokens."""
        times = event.times or RequestTimes(arrival=event.time)
        return cls(
            num_tokens=num_tokens,
            num_prompt_tokens=event.num_prompt_tokens,
            num_cached_tokens=event.num_cached_tokens,
            model=model,
            finish_reason=event.finish_reason.value if event.finish_reason else "",
            ttft_ms=_ms(times.ttft_s),
            queue_ms=_ms(times.queue_s),
            num_given_tokens=num_given_tokens,
            is_served=event.step_index == NO_STEP,
            **_itl(times.itl_s),
        )


def _itl(gaps_s: Sequence[float]) -> dict[str, Any]:
    gaps = sorted(gap * 1e3 for gap in gaps_s)
    if not gaps:
        return {}
    return {
        "itl_ms": sum(gaps) / len(gaps),
        "itl_p50_ms": _percentile(gaps, 0.5),
        "itl_p99_ms": _percentile(gaps, 0.99) if len(gaps) >= 100 else None,
        "itl_max_ms": gaps[-1],
    }


def joined(earlier: Earlier, after: Figures, times: RequestTimes) -> Figures:
    """Of a continued reply: `after` are the figures of its second part, `times` those of the
    whole reply. The wait for the continuation's first token is no inter-token latency."""
    before = earlier.figures
    whole = replace(
        after,
        num_tokens=earlier.num_tokens + after.num_tokens,
        num_cached_tokens=before.num_cached_tokens if before is not None else 0,
        ttft_ms=None if before is None else before.ttft_ms,
        queue_ms=None if before is None else before.queue_ms,
        num_continued_tokens=earlier.num_tokens,
    )
    if before is not None:
        given = before.num_given_tokens
        whole = replace(
            whole,
            num_prompt_tokens=before.num_prompt_tokens,
            num_tokens=whole.num_tokens - given,
            num_given_tokens=given,
        )
    if earlier.times is None:
        return whole
    # as its latency chart shows it: of the second part where the first has no token
    return replace(
        whole, ttft_ms=_ms(times.ttft_s), queue_ms=_ms(times.queue_s), **_itl(times.itl_s)
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _percentile(ordered: list[float], fraction: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def figures_line(figures: Figures, precisions: str = "") -> str:
    """The line of figures under a reply, with `precisions` at its end."""
    groups = []
    if figures.ttft_ms is not None:
        groups.append(f"TTFT {_text(figures.ttft_ms)}{_parts_of_ttft(figures)}")
    if figures.itl_ms is not None:
        groups.append(f"mean ITL {_text(figures.itl_ms)}")
    if figures.tokens_per_s is not None:
        groups.append(decode_text(figures.tokens_per_s))
    unit = "token" if figures.num_tokens == 1 else "tokens"
    given = f" + {figures.num_given_tokens:,} reused tokens" if figures.num_given_tokens else ""
    again = figures.num_continued_tokens
    later = f" (continued after {again:,})" if again else ""
    groups.append(f"{figures.num_tokens:,} {unit}{given}{later}")
    if precisions:
        groups.append(precisions)
    return GAP.join(groups)


def decode_text(tokens_per_s: float) -> str:
    """ "decode 81.6 tok/s". The header's Output is another figure: of all requests, with the time
    of prefills and without any request."""
    return f"decode {rate_text(tokens_per_s)}"


def _parts_of_ttft(figures: Figures) -> str:
    sent = figures.num_sent_tokens
    cached = (
        f"{figures.num_cached_tokens:,} of {sent:,} tokens cached"
        if figures.num_cached_tokens
        else f"{sent:,} tokens"
    )
    if figures.queue_ms is None or figures.prefill_ms is None:
        return f" ({cached})"
    queue, prefill = _text(figures.queue_ms), _text(figures.prefill_ms)
    name = "queue and connection" if figures.is_served else "queue and tokenization"
    return f" ({name} {queue} · prefill {prefill}, {cached})"


def figures_details(figures: Figures, precisions: str = "") -> str:
    """All figures of a reply, one a line, for its tooltip."""
    lines = [f"Model: {figures.model}"] if figures.model else []
    if precisions:
        lines.append(f"Precision: {precisions}")
    if figures.ttft_ms is not None:
        lines.append(f"TTFT (arrival to first token): {_text(figures.ttft_ms)}")
    if figures.itl_ms is not None and figures.itl_p50_ms is not None:
        p99 = figures.itl_p99_ms
        tail = "" if p99 is None else f", p99 {_text(p99)}"
        lines.append(
            f"ITL (time between tokens): mean {_text(figures.itl_ms)}, "
            f"p50 {_text(figures.itl_p50_ms)}{tail}, "
            f"max {_text(figures.itl_max_ms or 0.0)}"
        )
    if figures.tokens_per_s is not None:
        lines.append(f"Decode rate (1 / mean ITL): {rate_text(figures.tokens_per_s)}")
    lines.append(
        f"Prompt: {figures.num_prompt_tokens:,} tokens, "
        f"{figures.num_cached_tokens:,} from the prefix cache"
    )
    lines.append(f"Reply: {figures.num_tokens:,} tokens")
    if figures.num_given_tokens:
        lines.append(f"Reused from the previous version: {figures.num_given_tokens:,} tokens")
    if figures.num_continued_tokens:
        lines.append(f"Continued after {figures.num_continued_tokens:,} tokens")
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


def _text(milliseconds: float) -> str:
    return duration_text(milliseconds / 1e3)


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

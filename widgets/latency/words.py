"""The latency of a reply in words. No Qt."""

from __future__ import annotations

from collections.abc import Callable

from engine.snapshot import StepEntry
from widgets.durations import milliseconds
from widgets.latency.reply import Cause, Gap, ReplyLatency, Stage

Name = Callable[[str], str]
"""The name of a request, as the user knows it, from its id."""
_MOST_NAMES = 2


def duration(seconds: float) -> str:
    return milliseconds(seconds * 1e3)


def tokens(count: int) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"


def first_token_words(latency: ReplyLatency) -> str:
    """ "First token after 412 ms: 12.0 ms in the queue, 400 ms prefill of 600 tokens"."""
    if not latency.stretches:
        return "No token was written."
    prefills = [s for s in latency.stretches if s.stage is Stage.PREFILL]
    parts = []
    if queue := latency.seconds_of(Stage.QUEUE):
        parts.append(f"{duration(queue)} in the queue")
    count, cached = sum(s.num_tokens for s in prefills), sum(s.num_cached for s in prefills)
    prefill = f"{duration(latency.seconds_of(Stage.PREFILL))} prefill"
    if count:
        prefill += f" of {tokens(count)}"
    if len(prefills) > 1:
        prefill += f" in {len(prefills):,} chunks"
    parts.append(prefill)
    if cached:
        parts.append(f"{tokens(cached)} cached and skipped")
    if wait := latency.seconds_of(Stage.WAIT):
        parts.append(f"{duration(wait)} waiting between chunks")
    return f"First token after {duration(latency.ttft_s)}: {', '.join(parts)}."


def gaps_words(latency: ReplyLatency) -> str:
    """ "63 gaps: usually 18.2 ms, the longest 95.0 ms; 4 slow."."""
    if not latency.gaps:
        return "One token: no gaps."
    longest = max(gap.seconds for gap in latency.gaps)
    count = len(latency.gaps)
    slow = len(latency.slow_gaps)
    noun = "gap" if count == 1 else "gaps"
    text = (
        f"{count:,} {noun}: usually {duration(latency.usual_s)}, "
        f"the longest {duration(longest)}; "
    )
    text += f"{slow:,} slow." if slow else "none is slow."
    if not any(gap.steps for gap in latency.gaps) and not latency.is_complete:
        text += " Its steps are no longer kept, so what other requests ran in them is not known."
    elif not latency.is_complete:
        text += " The first steps of this reply are no longer kept."
    return text


def gap_words(latency: ReplyLatency, index: int, name: Name) -> str:
    """One gap: how long, and where it is slow, what else ran."""
    gap = latency.gaps[index]
    text = f"Token {first_token_of(latency, index):,} after {duration(gap.seconds)}"
    if gap.steps:
        numbers = f"step {gap.steps[-1].index:,}"
        if len(gap.steps) > 1:
            numbers = f"steps {gap.steps[0].index:,} to {gap.steps[-1].index:,}"
        text += f", {numbers}"
    if not latency.is_slow(gap):
        return f"{text}: as usual."
    return f"{text}: {_reason(latency, gap, name)}."


def first_token_of(latency: ReplyLatency, index: int) -> int:
    """Number, from 1, of the first token that came after gap `index`."""
    return 2 + sum(gap.num_tokens for gap in latency.gaps[:index])


def _reason(latency: ReplyLatency, gap: Gap, name: Name) -> str:
    if not gap.steps and not latency.is_complete:
        return "why is not known, for its steps are no longer kept"
    match latency.cause(gap):
        case Cause.PREEMPTED:
            count = latency.num_recomputed(gap)
            return (
                "it was preempted to make room in the KV cache"
                + (f", and {tokens(count)} were computed again" if count else "")
            )
        case Cause.BETWEEN:
            return (
                f"for {duration(gap.between_s)} of it no step ran "
                "(a setting was changed, or the engine's thread had to wait for the processor)"
            )
        case Cause.PREFILL:
            return f"with it {_prefills(latency.others_prefill(gap), name)}"
        case Cause.BATCH:
            most = max(len(step.entries) for step in gap.steps)
            return f"{most:,} requests shared its step, usually {latency.usual_batch:,.0f}"
    return (
        "the engine did no more than usual in it, so the processor was busy with something else "
        "(this window included)"
    )


def _prefills(entries: list[StepEntry], name: Name) -> str:
    """ "512 tokens of “Planning” were prefilled"."""
    total = sum(entry.num_tokens for entry in entries)
    names = list(dict.fromkeys(f"“{name(entry.request_id)}”" for entry in entries))
    text = " and ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        text = f"{names[0]} and {len(names) - 1:,} others"
    verb = "was" if total == 1 else "were"
    return f"{tokens(total)} of {text} {verb} prefilled"

"""One request as a row of figures. No Qt."""

from __future__ import annotations

from typing import NamedTuple

from engine.snapshot import FinishReason, RequestSnapshot, RequestState, RequestTimes

ENDS = {
    FinishReason.STOP: "finished",
    FinishReason.LENGTH: "length limit",
    FinishReason.ABORT: "aborted",
    FinishReason.ERROR: "failed",
}


class RequestRecord(NamedTuple):
    """Times in milliseconds; None where there is nothing to tell yet. `arrival` is seconds of the
    engine's clock."""

    request_id: str
    state: str
    is_active: bool
    arrival: float
    num_prompt: int
    num_cached: int
    num_output: int
    num_blocks: int | None
    queue_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None
    num_preemptions: int | None


def record_of(request: RequestSnapshot) -> RequestRecord:
    """What a snapshot tells of a request."""
    state = str(request.state)
    if request.state is RequestState.RUNNING:
        computed = request.num_computed_tokens
        is_prefill = request.num_output_tokens == 0 and computed < request.num_prompt_tokens
        state = "prefill" if is_prefill else "decode"
    return RequestRecord(
        request.request_id, state, True, request.times.arrival, request.num_prompt_tokens,
        request.num_cached_tokens, request.num_output_tokens, _told(request.num_blocks),
        _ms(request.times.queue_s), _ms(request.times.ttft_s),
        mean_gap_ms(request.times, request.num_output_tokens), _told(request.num_preemptions),
    )  # fmt: skip


def ended(record: RequestRecord, reason: FinishReason, times: RequestTimes) -> RequestRecord:
    """The same request after its last token: it holds no blocks any more."""
    return record._replace(
        state=ENDS[reason], is_active=False, num_output=times.num_output_tokens,
        num_blocks=None if record.num_blocks is None else 0,
        queue_ms=_ms(times.queue_s), ttft_ms=_ms(times.ttft_s),
        itl_ms=mean_gap_ms(times, times.num_output_tokens),
    )  # fmt: skip


def mean_gap_ms(times: RequestTimes, num_output: int) -> float | None:
    """Mean gap between `num_output` tokens: from the first event to the last, over the tokens after
    the first event. It looks at two events only: there may be thousands."""
    if len(times.tokens) < 2:
        return None
    first, last = times.tokens[0], times.tokens[-1]
    return (last.time - first.time) * 1e3 / (num_output - first.num_tokens)


def _told(count: int) -> int | None:
    return count if count >= 0 else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3

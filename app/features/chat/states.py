"""The state of a running or waiting request in words, with what it waits for. No Qt.

Read from the last snapshot and the change of settings under way; nothing is stored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.link.change_watch import Applying
from engine.config import Change
from engine.snapshot import EngineSnapshot, Part, RequestSnapshot, RequestState, StepRecord
from engine.units import counted, number, percent_text, rough_duration

MEASURED_TOKENS, MEASURED_STEPS = 64, 100
"""The prefill rate is measured over the last steps that prefill, and at least so many tokens."""


class PrefillRate:
    """Tokens per second of the steps whose work was mostly prefill."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float]] = deque(maxlen=MEASURED_STEPS)

    def take(self, steps: Iterable[StepRecord]) -> None:
        for step in steps:
            count = step.num_prefill_tokens
            if count > step.num_decode_tokens and step.duration > 0:
                self._steps.append((count, step.duration))

    def clear(self) -> None:
        """The settings or the model changed."""
        self._steps.clear()

    @property
    def tokens_per_s(self) -> float | None:
        """None while too few tokens were measured."""
        count = sum(tokens for tokens, _ in self._steps)
        if count < MEASURED_TOKENS:
            return None
        return count / sum(seconds for _, seconds in self._steps)


@dataclass(frozen=True, slots=True)
class EngineNow:
    """What states are read from. `held_back`: requests that wait for the end of a static batch in
    the last step. `prefill_rate`: tokens per second, None if not measured."""

    snapshot: EngineSnapshot | None = None
    held_back: frozenset[str] = field(default_factory=frozenset)
    prefill_rate: float | None = None
    applying: Applying | None = None


def state_text(request_id: str, now: EngineNow) -> str:
    """Why a request produces no token now: "waiting for a batch slot (16 of 16 running)"; "" while
    it decodes, or where the engine does not say."""
    applying, snapshot = now.applying, now.snapshot
    if applying is not None and request_id not in applying.tokens:
        applying = None
    if applying is not None and _is_before(applying, snapshot):
        return _paused(request_id, now, applying)
    if snapshot is None:
        return ""
    request = next((r for r in snapshot.requests if r.request_id == request_id), None)
    if request is None:
        return ""
    match request.state:
        case RequestState.RUNNING:
            return _running(request, now)
        case RequestState.PREEMPTED:
            if applying is not None:
                return _paused(request_id, now, applying)
            return f"preempted: waiting for {_missing(snapshot, request)}"
        case RequestState.WAITING:
            return _waiting(request, snapshot, now)
    return ""


def _is_before(applying: Applying, snapshot: EngineSnapshot | None) -> bool:
    """Whether the change is under way, or done later than the snapshot: one from before shows its
    requests as they ran then."""
    answer = applying.answer
    return answer is None or (snapshot is not None and snapshot.config != answer.config)


def _paused(request_id: str, now: EngineNow, applying: Applying) -> str:
    """ "paused: rebuilding the cache, then recomputing 573 tokens, about 12 s": all paused requests
    recompute together."""
    doing, done = "reloading the model", "model reloaded"
    if applying.change is Change.CACHE_REBUILD:
        doing, done = "rebuilding the cache", "cache rebuilt"
    stage = f"{doing}, then" if applying.answer is None else f"{done},"
    tokens = applying.tokens
    left = _seconds(sum(tokens.values()), now)
    return f"paused: {stage} recomputing {counted(tokens[request_id], 'token')}{left}"


def _running(request: RequestSnapshot, now: EngineNow) -> str:
    """ "prefill 512 of 1,204 tokens"; the last of its tokens is computed by the decoding step."""
    total = request.num_prompt_tokens + request.num_output_tokens
    done = request.num_computed_tokens
    if total - done <= (1 if request.num_output_tokens else 0):
        return ""
    if not request.num_output_tokens:
        return f"prefill {number(done)} of {counted(total, 'token')}"
    left = _seconds(total - done, now)
    return f"recomputing {number(done)} of {counted(total, 'token')}{left}"


def _seconds(count: int, now: EngineNow) -> str:
    return f", about {rough_duration(count / now.prefill_rate)}" if now.prefill_rate else ""


def _waiting(request: RequestSnapshot, snapshot: EngineSnapshot, now: EngineNow) -> str:
    if Part.QUEUE in snapshot.missing or request.num_blocks < 0:
        return _at_server(snapshot)
    running = _num_running(snapshot)
    if request.request_id in now.held_back:
        return f"waiting for the static batch to finish ({running:,} running)"
    return f"waiting for {_missing(snapshot, request)}"


def _at_server(snapshot: EngineSnapshot) -> str:
    """Another server reports at most how many requests it runs."""
    told = snapshot.told
    if told is None or told.num_running is None:
        return ""
    waiting = f", {told.num_waiting:,} waiting" if told.num_waiting is not None else ""
    return f"waiting for the first token (server: {told.num_running:,} running{waiting})"


def _missing(snapshot: EngineSnapshot, request: RequestSnapshot) -> str:
    """What the next request in line lacks."""
    running, config, blocks = _num_running(snapshot), snapshot.config, snapshot.blocks
    most = getattr(config, "max_num_seqs", None)
    if most is not None and running >= most:
        return f"a batch slot ({running:,} of {most:,} running)"
    if not running:
        return "the next step"
    if getattr(config, "kv_allocation", "paged") != "paged":
        return f"KV blocks ({percent_text(snapshot.kv_usage)} reserved by contiguous allocation)"
    ahead = _ahead_of(request, snapshot)  # they get slots and blocks first
    tail = [f"{counted(len(ahead), 'request')} ahead"] if ahead else []
    free = blocks.num_free + blocks.num_cached
    needed = _num_blocks(request, snapshot)
    usable = free - getattr(config, "watermark", 0.0) * blocks.num_blocks
    in_all = needed + sum(_num_blocks(r, snapshot) for r in ahead)
    if most is not None and 0 < in_all <= usable:
        if len(ahead) < most - running:  # a request ended in the last step
            return "the next step"
        return f"a batch slot ({', '.join([f'{running:,} of {most:,} running', *tail])})"
    parts = [f"{free:,} of {blocks.num_blocks:,} free"]
    parts += [f"{needed:,} needed"] if needed > free else []
    return f"KV blocks ({', '.join([*parts, *tail])})"


def _ahead_of(request: RequestSnapshot, snapshot: EngineSnapshot) -> list[RequestSnapshot]:
    """Requests that wait before this one: a snapshot has them in the order of the queue."""
    waiting = [r for r in snapshot.requests if r.state is not RequestState.RUNNING]
    return waiting[: waiting.index(request)]


def _num_blocks(request: RequestSnapshot, snapshot: EngineSnapshot) -> int:
    """Blocks of all its tokens so far; 0 where the size of a block is not reported."""
    tokens = request.num_prompt_tokens + request.num_output_tokens
    size = snapshot.blocks.block_size
    return math.ceil(tokens / size) if size else 0


def _num_running(snapshot: EngineSnapshot) -> int:
    return sum(r.state is RequestState.RUNNING for r in snapshot.requests)

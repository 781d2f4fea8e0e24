"""A step of the engine: who took part, with how many tokens, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class StepEntry(NamedTuple):
    """What one request did in one step.

    kind: "prefill" (also the recomputation after a preemption) or "decode". `num_tokens` of its own
    tokens were computed; `num_cached_tokens` were skipped because of a prefix hit at admission in
    this step; `num_draft` drafts behind them were verified, and `num_accepted` of them accepted.
    `num_context`: tokens whose K and V the step attended over, its own and the drafts among them;
    `num_logits`: rows of logits that were computed. `is_resumed`: it is the first step after a
    preemption.
    """

    request_id: str
    kind: str
    num_tokens: int
    num_cached_tokens: int = 0
    num_draft: int = 0
    num_accepted: int = 0
    num_context: int = 0
    num_logits: int = 0
    is_resumed: bool = False

    @property
    def num_computed(self) -> int:
        """Tokens that went through the model: its own, and the drafts to verify."""
        return self.num_tokens + self.num_draft


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step: when, how long, who took part, and where the time went.

    entries: a tuple, or where the step is kept for long `PackedEntries`, which equals it.
    held_back: requests that waited although a slot was idle, because the batch is static.
    kv_usage: share of the KV blocks that requests held during the step, also those that ended with
    it; None where nobody took it down (older recordings).
    num_threads: that computed it on the CPU; 0 on a GPU, and where nobody took it down.
    exchange_s: of model_s, what the first rank of several waited for the others and added up; 0
    where one computes all, and on GPUs, whose host does not wait.
    """

    index: int
    start: float
    duration: float
    entries: tuple[StepEntry, ...]
    num_running: int
    num_waiting: int
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    schedule_s: float = 0.0
    draft_s: float = 0.0
    model_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    held_back: tuple[str, ...] = ()
    kv_usage: float | None = None
    num_threads: int = 0
    exchange_s: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.duration

    @property
    def num_prefill_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries if e.kind == "prefill")

    @property
    def num_decode_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries if e.kind == "decode")

    @property
    def num_cached_tokens(self) -> int:
        return sum(e.num_cached_tokens for e in self.entries)

    @property
    def num_resumed(self) -> int:
        return sum(e.is_resumed for e in self.entries)

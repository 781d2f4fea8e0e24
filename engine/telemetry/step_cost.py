"""Breakdown of a step's time: bytes and operations, against the machine's peak rates.

    duration of a step, and the pause before it in which requests waited
    |<------------------ model ------------------>|<- scheduling, sampling, ->|<-- between -->|
    | weights | KV | arithmetic | launch and rest |  commit; drafting         |    steps      |
    |<-- counted, at peak ---->|<-- measured less counted                    measured ------->|

Reads and compute overlap: a matmul takes the longer of both, so arithmetic is only what exceeds the
reads (Williams et al., "Roofline", 2009). Pure Python: no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.hardware.peaks import Peaks
from engine.snapshot import EngineSnapshot, ModelInfo, StepEntry, StepRecord
from engine.units import percent_text

LONGEST_PAUSE_S = 0.5
"""A longer one between two steps is a reload or a rebuilt cache, and no part of a step."""


class Work(NamedTuple):
    """The bytes that a step reads and the operations that it computes.

    `weights` are read by its `linear` operations; `fixed_weights` are the part that weight
    quantization does not change: the output layer. `kv` is read by `attention`.
    """

    weights: float = 0.0
    fixed_weights: float = 0.0
    linear: float = 0.0
    kv: float = 0.0
    attention: float = 0.0


class Counts(NamedTuple):
    """Tokens that go through the model, rows of logits, tokens attended over, and pairs of a token
    and one that it attends to."""

    tokens: int = 0
    logits: int = 0
    context: int = 0
    pairs: int = 0


class Batch(NamedTuple):
    """Sums of a step's entries. `least`: as if every prompt token but the last were cached.
    `only_decodes`: it computes no prompt. `has_parts`: some entry is a part of a prompt, without
    logits."""

    counts: Counts
    least: Counts
    only_decodes: bool
    has_parts: bool

    @classmethod
    def of(cls, entries: Iterable[StepEntry]) -> Batch:
        """One pass with plain numbers: the window makes it for every request of every step."""
        tokens = logits = context = pairs = 0
        fewer = dropped = unpaired = 0  # by which `least` is less
        only_decodes, has_parts = True, False
        for _, kind, own, _, draft, _, reach, rows, _ in entries:
            new = own + draft
            tokens += new
            logits += rows
            context += reach
            # token i of the n new ones attends to all but the n - 1 - i that come after it
            mine = new * reach - new * (new - 1) // 2
            pairs += mine
            if not rows:
                has_parts = True
            if kind != "decode":
                only_decodes = False
                left = 1 + draft if rows else 0
                fewer += new - left
                unpaired += mine - (left * reach - left * (left - 1) // 2)
                if not rows:
                    dropped += reach
        least = Counts(tokens - fewer, logits, context - dropped, pairs - unpaired)
        return cls(Counts(tokens, logits, context, pairs), least, only_decodes, has_parts)


class Split(NamedTuple):
    """Seconds. `launch`: model time beyond the peaks: kernel launches, small operations, and reads
    or compute below peak rates. `python`: scheduling, sampling, commit. `queue`: between steps,
    while requests waited for the next. `draft`: drafting tokens."""

    weights: float = 0.0
    kv: float = 0.0
    arithmetic: float = 0.0
    launch: float = 0.0
    python: float = 0.0
    queue: float = 0.0
    draft: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def floor(self) -> float:
        """What the counted bytes and operations take at least."""
        return self.weights + self.kv + self.arithmetic

    def shares(self) -> Split:
        """Fractions of the total; all 0 where nothing took time."""
        total = self.total
        return Split(*(part / total if total else 0.0 for part in self))


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Bytes and operations of a model, by cause.

    `dense_bytes` are read in every step, `expert_bytes` in part, depending on the experts that its
    tokens choose; `output_bytes` are those of the output layer, read where logits are computed.
    """

    dense_bytes: float
    output_bytes: float
    expert_bytes: float
    num_experts: int
    experts_per_token: int
    bytes_per_lookup: float
    flops_per_token: float
    flops_per_logit: float
    flops_per_pair: float  # of a token and one that it attends to, in all layers
    kv_bytes_per_token: float

    @classmethod
    def of(cls, model: ModelInfo, kv_bytes_per_token: float) -> ModelCost:
        """From what a snapshot tells of the model. A sliding window is not known here: a long
        context counts as read in full."""
        output = model.vocab_size * model.hidden_size
        lookup, experts = model.num_lookup_parameters, model.num_expert_parameters
        dense = max(0, model.num_parameters - output - lookup - experts)
        active = experts * model.experts_per_token / model.num_experts if model.num_experts else 0
        return cls(
            dense_bytes=model.body_bytes,
            output_bytes=model.output_bytes,
            expert_bytes=model.expert_bytes,
            num_experts=model.num_experts,
            experts_per_token=model.experts_per_token,
            bytes_per_lookup=(model.lookup_bytes or model.output_bytes) / max(1, model.vocab_size),
            flops_per_token=2.0 * (dense + active),
            flops_per_logit=2.0 * output,
            flops_per_pair=4.0 * model.num_layers * model.num_heads * model.head_dim,
            kv_bytes_per_token=kv_bytes_per_token,
        )

    def work(self, entries: Iterable[StepEntry]) -> Work:
        """Of one step with these entries."""
        return self.work_of(Batch.of(entries).counts)

    def work_of(self, counts: Counts) -> Work:
        tokens, logits, context, pairs = counts
        if not tokens:
            return Work()
        fixed = self.output_bytes if logits else 0.0
        body = self.dense_bytes + self.expert_bytes * self._chosen(tokens)
        return Work(
            weights=body + fixed + tokens * self.bytes_per_lookup,
            fixed_weights=fixed + tokens * self.bytes_per_lookup,
            linear=tokens * self.flops_per_token + logits * self.flops_per_logit,
            kv=(context + tokens) * self.kv_bytes_per_token,  # read, and the new ones written
            attention=pairs * self.flops_per_pair,
        )

    def _chosen(self, tokens: int) -> float:
        """Share of the experts that at least one of the tokens chooses, if they choose evenly."""
        if not self.num_experts:
            return 0.0
        return 1.0 - (1.0 - self.experts_per_token / self.num_experts) ** tokens


def least_time(work: Work, peaks: Peaks) -> Split:
    """What the work takes at the machine's peaks: the longer of reading and computing, twice."""
    weights = work.weights / peaks.read_bytes_per_s
    kv = work.kv / peaks.read_bytes_per_s
    arithmetic = max(0.0, work.linear / peaks.flops_per_s - weights)
    arithmetic += max(0.0, work.attention / peaks.flops_per_s - kv)
    return Split(weights=weights, kv=kv, arithmetic=arithmetic)


def least_times(work: NDArray[np.float64], peaks: Peaks) -> NDArray[np.float64]:
    """Seconds (`least_time(...).floor`) of many steps: `work` has a `Work` in each row."""
    weights, _, linear, kv, attention = work.T
    read, compute = peaks.read_bytes_per_s, peaks.flops_per_s
    return np.maximum(linear / compute, weights / read) + np.maximum(attention / compute, kv / read)


class CostedStep(NamedTuple):
    """A step with its batch, work and split. `speed`: measured over counted time of the model, if
    it was faster than the peaks (weights in the CPU cache), else 1."""

    step: StepRecord
    batch: Batch
    work: Work
    split: Split
    speed: float = 1.0


def cost_step(step: StepRecord, pause: float, model: ModelCost, peaks: Peaks) -> CostedStep:
    """Divide a step's time, and the `pause` before it (seconds in which requests waited)."""
    batch = Batch.of(step.entries)
    work = model.work_of(batch.counts)
    least = least_time(work, peaks)
    python = step.schedule_s + step.sample_s + step.commit_s
    measured = step.model_s or max(0.0, step.duration - python - step.draft_s)
    speed = min(1.0, measured / least.floor) if least.floor else 1.0
    split = Split(
        weights=least.weights * speed,
        kv=least.kv * speed,
        arithmetic=least.arithmetic * speed,
        launch=max(0.0, measured - least.floor * speed),
        python=python,
        queue=pause,
        draft=step.draft_s,
    )
    return CostedStep(step, batch, work, split, speed)


def pause_between(before: StepRecord | None, step: StepRecord) -> float:
    """Seconds in which requests waited for `step` after the one before it."""
    if before is None or not (before.num_running or before.num_waiting):
        return 0.0
    pause = max(0.0, step.start - before.start - before.duration)
    return pause if pause < LONGEST_PAUSE_S else 0.0


def total(costed: Iterable[CostedStep]) -> Split:
    """The sum of the splits."""
    columns = list(zip(*(one.split for one in costed), strict=True))
    return Split(*map(sum, columns)) if columns else Split()


def model_cost(snapshot: EngineSnapshot) -> ModelCost:
    """Of the model that a snapshot shows; drafting is a time of its own, and not counted here."""
    blocks, plan = snapshot.blocks, snapshot.memory.plan
    own = plan.block_bytes_in_all - plan.draft_bytes_per_block
    return ModelCost.of(snapshot.model, own / max(1, blocks.block_size))


def verdict(split: Split) -> str:
    """The bottleneck: "memory-bound: weights 71 %"."""
    if split.total <= 0:
        return ""
    shares = split.shares()
    sides = {
        "memory-bound": shares.weights + shares.kv,
        "compute-bound": shares.arithmetic,
        "overhead-bound": shares.launch,
        "CPU-bound in Python": shares.python,
        "idle between steps": shares.queue,
        "draft-bound": shares.draft,
    }
    side = max(sides, key=lambda name: sides[name])
    if side == "overhead-bound":
        return f"{side}: kernel launch and other overhead {percent_text(shares.launch)}"
    if side == "memory-bound":
        part, share = max(("weights", shares.weights), ("KV", shares.kv), key=lambda p: p[1])
        return f"{side}: {part} {percent_text(share)}"
    return f"{side}: {percent_text(sides[side])}"

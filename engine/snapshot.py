"""What the engine shows of itself: immutable records, made at most once per step.

Widgets import this module and nothing else of the engine. It imports no torch.
Times are seconds of `time.perf_counter()`, the clock of the process; sizes are bytes; fractions
are 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class RequestState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"  # EOS, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORT = "abort"
    ERROR = "error"


class TokenEvent(NamedTuple):
    """One output event: `num_tokens` tokens that became visible together at `time`."""

    time: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When what happened to a request. `tokens` has one entry per output event."""

    arrival: float
    first_scheduled: float | None = None
    tokens: tuple[TokenEvent, ...] = ()
    finished: float | None = None

    @property
    def first_token(self) -> float | None:
        return self.tokens[0].time if self.tokens else None

    @property
    def num_output_tokens(self) -> int:
        return sum(event.num_tokens for event in self.tokens)

    @property
    def queue_s(self) -> float | None:
        """Arrival to the first step that computed something of it."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def itl_s(self) -> list[float]:
        """Gaps between successive output events; an event of n tokens counts n times gap / n."""
        gaps: list[float] = []
        for before, event in zip(self.tokens, self.tokens[1:], strict=False):
            gaps += [(event.time - before.time) / event.num_tokens] * event.num_tokens
        return gaps

    @property
    def e2e_s(self) -> float | None:
        return None if self.finished is None else self.finished - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """(end to end - TTFT) / (n - 1); None for fewer than two tokens."""
        n, e2e, ttft = self.num_output_tokens, self.e2e_s, self.ttft_s
        return None if n < 2 or e2e is None or ttft is None else (e2e - ttft) / (n - 1)


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """num_blocks, num_preemptions: -1 where they are not told."""

    request_id: str
    state: RequestState
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    num_blocks: int
    num_preemptions: int
    times: RequestTimes
    finish_reason: FinishReason | None = None


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

    held_back: requests that waited although a slot was idle, because the batch is static.
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


BLOCK_FREE = -1
BLOCK_CACHED = -2


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """State of every physical KV block, indexed by block id.

    owner[b]: index into `owners` (one of them, if shared), BLOCK_FREE, or BLOCK_CACHED (holds a
    published prefix that nobody references: evictable). ref_count[b]: how many requests hold it.
    fill[b]: tokens in it, 0 to block_size. hashed[b]: published in the prefix cache. tables: the
    blocks of each of `owners`, in the order of its tokens.
    """

    block_size: int
    owners: tuple[str, ...]
    owner: NDArray[np.int32]
    ref_count: NDArray[np.int32]
    fill: NDArray[np.int32]
    hashed: NDArray[np.bool_]
    tables: tuple[tuple[int, ...], ...] = ()

    @property
    def num_blocks(self) -> int:
        return len(self.owner)

    @property
    def num_free(self) -> int:
        return int(np.count_nonzero(self.owner == BLOCK_FREE))

    @property
    def num_cached(self) -> int:
        return int(np.count_nonzero(self.owner == BLOCK_CACHED))

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_shared(self) -> int:
        return int(np.count_nonzero(self.ref_count > 1))

    @property
    def num_wasted_tokens(self) -> int:
        """Token places in referenced blocks that hold no token."""
        return int((self.block_size - self.fill[self.owner >= 0]).sum())


@dataclass(frozen=True, slots=True)
class BlockDetails:
    """What one block holds. owners: the requests that reference it. token_ids and text: what its
    keys and values were computed from. block_hash and parent_hash: hexadecimal, "" where it is not
    published, or is the first of its chain. published: when it was."""

    block: int
    owners: tuple[str, ...]
    token_ids: tuple[int, ...]
    text: str
    block_hash: str = ""
    parent_hash: str = ""
    published: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the memory was planned before loading. `limit` is what the engine may use in all.
    `key_dtype`, `value_dtype`: what the model's keys and values are stored in."""

    total: int
    free: int
    reserve: int
    limit: int
    weights: int
    activations: int
    kv_cache: int
    bytes_per_block: int
    num_blocks: int
    draft_weights: int = 0  # part of weights
    draft_bytes_per_block: int = 0  # part of bytes_per_block
    key_dtype: str = ""
    value_dtype: str = ""

    @property
    def predicted(self) -> int:
        return self.weights + self.activations + self.kv_cache


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Measured now. kv_used and kv_cached are parts of kv_cache; `other` is the rest of the
    process (resident size less weights and the touched KV cache), which includes the window."""

    plan: MemoryPlan
    weights: int
    kv_cache: int
    kv_used: int
    kv_cached: int
    other: int
    process: int
    free: int
    total: int
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that holds memory on a GPU, in bytes."""

    name: str
    pid: int
    used: int


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """A GPU as its driver sees it. Memory in bytes: `own` is this process' part, `processes` are
    the others, the largest first. Utilizations are fractions of the time in which anything ran, or
    memory was read or written. None: the driver does not tell."""

    name: str
    total: int
    used: int
    own: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    uuid: str = ""
    utilization: float | None = None
    memory_utilization: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None

    @property
    def others(self) -> int:
        """What other programs hold, and the driver itself."""
        return max(0, self.used - (self.own or 0))


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals since the engine was started."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    evictions: int = 0
    finished: dict[str, int] = field(default_factory=dict)

    @property
    def prefix_hit_rate(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, in words and numbers.

    `num_lookup_parameters` are those of an input embedding that is not the output layer too: of
    it a step reads the rows of its tokens alone. `num_expert_parameters` are in experts, of which
    a token uses `experts_per_token` out of `num_experts`. `quantization`: how weights of linear
    layers are held ("" for plain numbers). Of `weights_bytes`, `output_bytes` are the output
    layer's, `lookup_bytes` those of the input embedding above, `expert_bytes` those of experts.
    `device_name`: the make of `device`, with its cores where that is the CPU.
    """

    name: str
    path: str
    architecture: str
    dtype: str
    device: str
    num_parameters: int
    weights_bytes: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    is_dummy: bool
    has_chat_template: bool
    kernels: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    num_lookup_parameters: int = 0
    num_expert_parameters: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    device_name: str = ""
    quantization: str = ""
    output_bytes: int = 0
    lookup_bytes: int = 0
    expert_bytes: int = 0

    @property
    def is_described(self) -> bool:
        """Whether more of it is known than its name, and (as `device`) what serves it."""
        return bool(self.architecture)

    @property
    def body_bytes(self) -> int:
        """Of weights that every token of a step is multiplied with."""
        return self.weights_bytes - self.output_bytes - self.lookup_bytes - self.expert_bytes


class SpeedUp(NamedTuple):
    """Tokens per second with drafts over those without, on the same load at the same number of
    requests; from so many steps with drafts and without."""

    factor: float
    num_drafted_steps: int
    num_plain_steps: int


@dataclass(frozen=True, slots=True)
class SpeculationSnapshot:
    """Speculative decoding since its method was chosen.

    method: "ngram", "draft_model" or "eagle3". rounds: verifications of at least one draft.
    drafted_per_position[i], accepted_per_position[i]: how many rounds drafted, and kept, an i-th
    token (from 0). draft_steps: steps with at least one round; verify_s: seconds of the model's
    passes in these; draft_s: of drafting, in all steps. draft_model: its name. weights, kv_cache:
    bytes of the draft model's. rest_steps: steps in a row in which adaptive drafting left everybody
    without drafts because they do not pay, but for a try now and then.

    Of a server that counts drafts and tells no more, method is "": told_drafted, told_accepted and
    rounds are its counts, told_length is what it says of the tokens of a round; None: not told.
    """

    method: str
    draft_model: str = ""
    rounds: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    draft_steps: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    weights: int = 0
    kv_cache: int = 0
    speed_up: SpeedUp | None = None
    rest_steps: int = 0
    told_drafted: int | None = None
    told_accepted: int | None = None
    told_length: float | None = None

    @property
    def drafted(self) -> int:
        return sum(self.drafted_per_position) if self.told_drafted is None else self.told_drafted

    @property
    def accepted(self) -> int:
        return sum(self.accepted_per_position) if self.told_accepted is None else self.told_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a round: 1 + accepted drafts."""
        return 1 + self.accepted / self.rounds if self.rounds else self.told_length


class Part(StrEnum):
    """A part of a snapshot that not every source tells: an engine of ours tells all of them, a
    server of another make what its metrics have."""

    MODEL = "facts of the model"
    SETTINGS = "settings"
    REQUESTS = "requests of other clients"
    QUEUE = "requests running and waiting"
    BLOCKS = "KV blocks"
    KV_USAGE = "KV usage"
    STEPS = "steps"
    MEMORY = "memory"
    TOKENS = "tokens of all clients"
    PREFIX_CACHE = "prefix cache"
    PREEMPTIONS = "preemptions"
    SPECULATION = "drafts"


@dataclass(frozen=True, slots=True)
class Told:
    """Gauges of a server that does not show what they are counted from. None: not told either."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None


class Sample(NamedTuple):
    """One latency sample: when it was taken, and its value in seconds."""

    time: float
    value: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine after a step. `steps`, `ttft` and `itl` hold what is new since the snapshot
    published before this one; everything else is the state now. `missing`: what its source does not
    tell; there the values are empty and mean nothing. `told`: gauges in place of the parts that
    they would be counted from. `gpus`: those of the engine's machine, while it computes on one."""

    time: float
    step_index: int
    config: Any  # EngineConfig; Any keeps widgets free of engine.config
    model: ModelInfo
    requests: tuple[RequestSnapshot, ...]
    blocks: BlockSnapshot
    memory: MemorySnapshot
    counters: Counters
    steps: tuple[StepRecord, ...] = ()
    ttft: tuple[Sample, ...] = ()
    itl: tuple[Sample, ...] = ()
    speculation: SpeculationSnapshot | None = None
    missing: frozenset[Part] = frozenset()
    told: Told | None = None
    gpus: tuple[GpuFigures, ...] = ()

    @property
    def num_running(self) -> int:
        if self.told is not None and self.told.num_running is not None:
            return self.told.num_running
        return sum(r.state is RequestState.RUNNING for r in self.requests)

    @property
    def num_waiting(self) -> int:
        if self.told is not None and self.told.num_waiting is not None:
            return self.told.num_waiting
        return sum(r.state in (RequestState.WAITING, RequestState.PREEMPTED) for r in self.requests)

    @property
    def kv_usage(self) -> float:
        if self.told is not None and self.told.kv_usage is not None:
            return self.told.kv_usage
        return self.blocks.num_used / self.blocks.num_blocks if self.blocks.num_blocks else 0.0

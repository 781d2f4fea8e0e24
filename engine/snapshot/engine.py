"""The snapshot of an engine, and the parts of it that a source may not report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from engine.snapshot.memory import BlockSnapshot, GpuFigures, MemorySnapshot
from engine.snapshot.requests import Arrival, RequestSnapshot, RequestState
from engine.snapshot.steps import StepRecord


class TokenBudget(NamedTuple):
    """max_num_batched_tokens as measured: a step of `tokens` prompt tokens takes `seconds`, at
    most `limit_s` unless it is the smallest choice."""

    tokens: int
    seconds: float
    limit_s: float


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ModelInfo:
    """The loaded model's description.

    `num_lookup_parameters`: of an input embedding that is not the output layer too; a step reads
    only the rows of its tokens. `num_expert_parameters`: in experts, of which a token uses
    `experts_per_token` out of `num_experts`. `quantization`: the weight format of linear layers
    ("": unquantized). Of `weights_bytes`, `output_bytes` are the output layer's, `lookup_bytes`
    those of the input embedding above, `expert_bytes` those of experts. `device_name`: the name of
    `device`, with its cores for a CPU, and with the offloaded layers. `token_budget`: the
    measured one; None if it was not measured.
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
    token_budget: TokenBudget | None = None

    @property
    def is_described(self) -> bool:
        """Whether more is known than its name, and (as `device`) the server."""
        return bool(self.architecture)

    @property
    def body_bytes(self) -> int:
        """Weights that every token of a step is multiplied with."""
        return self.weights_bytes - self.output_bytes - self.lookup_bytes - self.expert_bytes


class SpeedUp(NamedTuple):
    """Measured speed-up by drafts: tokens per second with drafts over those without, on the same
    load at the same number of requests, from so many steps with and without drafts."""

    factor: float
    num_drafted_steps: int
    num_plain_steps: int


@dataclass(frozen=True, slots=True)
class SpeculationSnapshot:
    """Speculative decoding since its method was chosen.

    method: "ngram", "draft_model" or "eagle3". rounds: verifications of at least one draft.
    drafted_per_position[i], accepted_per_position[i]: rounds that drafted, and accepted, an i-th
    token (from 0). draft_steps: steps with at least one round; verify_s: seconds of the model's
    passes in these; draft_s: seconds of drafting, in all steps. draft_model: its name. weights,
    kv_cache: bytes of the draft model. rest_steps: consecutive steps in which adaptive drafting was
    paused, without a speed-up, except for single tries.

    For a server that reports only counts, method is "": told_drafted, told_accepted and rounds are
    its counts, told_length is its mean number of tokens per round; None: not reported.
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
        """Tokens per round: 1 + accepted drafts."""
        return 1 + self.accepted / self.rounds if self.rounds else self.told_length


class ThreadsOf(NamedTuple):
    """The best thread count for steps of `first` to `last` tokens: `threads`."""

    first: int
    last: int
    threads: int


class ThreadFigures(NamedTuple):
    """Thread counts. most: maximum per step. used: in the last step. free: threads with a core to
    themselves; others: cores used by other programs, None if unknown. found: the measured best
    counts, for steps of few tokens."""

    most: int
    used: int
    free: int
    others: float | None
    found: tuple[ThreadsOf, ...] = ()


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


class Part(StrEnum):
    """A part of a snapshot that a source may not report: our engine reports all of them, another
    server those that its metrics contain."""

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
class ReportedLoad:
    """Gauges that a server reports in place of its requests and blocks. None: not reported."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None


class Sample(NamedTuple):
    """One latency sample: when it was taken, and its value in seconds."""

    time: float
    value: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine after a step. `steps`, `ttft`, `itl` and `arrivals` contain what is new since the
    previous snapshot; everything else is the current state. `missing`: parts that the source does
    not report; their values are empty. `told`: gauges that replace the parts from which they would
    be counted. `gpus`: of the engine's machine, while it computes on one. `threads`: while it
    computes on the CPU; None if not reported. `settings_since`: when the settings and the model
    took effect, after a reload or a rebuild of the cache if one was needed; 0: not reported."""

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
    told: ReportedLoad | None = None
    gpus: tuple[GpuFigures, ...] = ()
    threads: ThreadFigures | None = None
    settings_since: float = 0.0
    arrivals: tuple[Arrival, ...] = ()

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

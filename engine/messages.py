"""Messages of the engine's thread: commands in, events out.

All of them are immutable and hold plain data, so that the engine can move to a process of its
own without changing a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.config import Change, EngineConfig
from engine.errors import ErrorInfo
from engine.hardware.peaks import Peaks
from engine.sampling_params import SamplingParams
from engine.snapshot import (
    BlockDetails,
    EngineSnapshot,
    FinishReason,
    LastBlocks,
    MemoryPlan,
    ModelInfo,
    RequestTimes,
)
from engine.snapshot.profile import StepsProfile

ChatMessages = tuple[Mapping[str, str], ...]
Prompt = str | tuple[int, ...] | ChatMessages
"""A text, token ids, or chat messages ({"role": ..., "content": ...}) for the chat template."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load the model of `config` in place of the loaded one. Answered by LoadProgress events, then
    Loaded or LoadFailed (after which the previous model serves again)."""

    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Unload:
    """Abort everything and free the model's memory. Answered by Unloaded."""


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Add a request. Answered by OutputEvents, the last with a finish_reason, or by RequestFailed.

    The output starts with the tokens `begin_with`, as if they had been sampled: their text comes
    with the first event, their ids do not come again. arrival: when the sender submitted the
    request, on the engine's clock; None: when this command was submitted. model: path of the model
    that the token ids are for; another model fails the request. None: any model. client: whose turn
    encoding the prompt takes; a server sets it for its attached windows.
    """

    request_id: str
    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    begin_with: tuple[int, ...] = ()
    arrival: float | None = None
    model: str | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop a request now; unknown and finished ids are ignored. Answered by an OutputEvent with
    finish_reason ABORT."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Change settings, whatever their class. Answered by Reconfigured or ReconfigureFailed."""

    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InspectBlock:
    """Inspect a KV block. Answered by BlockInspected."""

    block: int


@dataclass(frozen=True, slots=True)
class MeasurePeaks:
    """Measure memory bandwidth and compute peak, in under a second without steps. Answered by
    PeaksMeasured."""


@dataclass(frozen=True, slots=True)
class ProfileSteps:
    """Profile the next `num_steps` steps (at most 256) of the running requests. Answered by
    StepsProfiled."""

    num_steps: int


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Count the tokens of a text with the loaded model. Answered by TokensCounted. client: as in
    AddRequest."""

    key: str
    text: str
    client: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Abort running requests and end the thread."""


Command = (
    Load | Unload | AddRequest | Abort | Reconfigure | InspectBlock | MeasurePeaks | ProfileSteps
    | CountTokens | Stop
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log probability under the distribution that was sampled from the raw
    logits (before temperature and penalties), and its rank (1 is the most probable)."""

    token_id: int
    token: str
    logprob: float
    rank: int
    alternatives: tuple[tuple[int, str, float], ...] = ()


class DraftRound(NamedTuple):
    """The draft tokens of a request in one step, and how many were accepted. The token after these
    is the model's own. `rejected`: texts of the rejected drafts, if log probabilities were
    requested."""

    token_ids: tuple[int, ...]
    num_accepted: int
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of loading. `stage`: a text to show; done and total in bytes (total 0: unknown)."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Loaded:
    config: EngineConfig  # with dtype, max_model_len and num_threads resolved
    model: ModelInfo
    plan: MemoryPlan
    without_draft: ErrorInfo | None = None  # why the draft model was not loaded


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Loading failed or was cancelled. `serving`: the model that is still loaded, or None."""

    error: ErrorInfo
    cancelled: bool = False
    serving: str | None = None


@dataclass(frozen=True, slots=True)
class Unloaded:
    pass


NO_STEP = -1


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """New text of one request. `text` is appended to the output; it may be empty while a stop
    string or a split character is held back. `time`: when its step was committed. step_index:
    `NO_STEP` from another server, which reports no steps. num_preemptions: so far, -1 if not
    reported. blocks: with the finish; None if it had none then, or if not reported."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    time: float
    step_index: int
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    times: RequestTimes | None = None  # with the first token, and with the finish
    is_first: bool = False
    error: ErrorInfo | None = None  # with finish_reason ERROR
    drafts: DraftRound | None = None  # where drafts were verified in the step
    num_preemptions: int = -1
    blocks: LastBlocks | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    request_id: str
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Settings were changed. `model` and `plan`: after the change; a reload may change both.
    Earlier output events used the previous settings, later ones use `config`.

    `seconds`: until the engine could compute again. The `num_preempted` requests that it was
    computing wait longer: the next steps recompute their `num_lost_tokens` tokens."""

    config: EngineConfig
    change: Change | None
    seconds: float
    notices: tuple[str, ...] = ()
    model: ModelInfo | None = None
    plan: MemoryPlan | None = None
    num_preempted: int = 0
    num_lost_tokens: int = 0


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """A step ran out of memory: the cache was made smaller or, if not `is_smaller`, a step launched
    without async scheduling. No request was lost. `text`: the numbers. `model` and `plan` are
    current. `times`: how often since the cache was built."""

    text: str
    model: ModelInfo
    plan: MemoryPlan
    times: int = 1
    is_smaller: bool = True


@dataclass(frozen=True, slots=True)
class ReconfigureFailed:
    """Changing settings failed; the previous settings, `config`, are in force again."""

    config: EngineConfig
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    snapshot: EngineSnapshot


@dataclass(frozen=True, slots=True)
class BlockInspected:
    """The content of a KV block. `details`: None where the cache has no such block (any more)."""

    block: int
    details: BlockDetails | None


@dataclass(frozen=True, slots=True)
class PeaksMeasured:
    """The measured peak rates. `peaks`: None if not measured; `why_not`: the reason."""

    peaks: Peaks | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class StepsProfiled:
    """The profiled steps: fewer than requested where the requests ended. `profiles`: empty if none
    was; `why_not`: the reason. `trace`: a Chrome trace, compressed with gzip."""

    profiles: tuple[StepsProfile, ...] = ()
    why_not: str = ""
    trace: bytes = b""


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """The number of tokens of a text. `num_tokens`: None where no model is loaded."""

    key: str
    num_tokens: int | None


@dataclass(frozen=True, slots=True)
class EngineCrashed:
    """The engine crashed: all requests in flight are lost, and the thread waits for Load.
    `is_restarting`: this Load is on its way, for it replaced an engine that was stuck."""

    error: ErrorInfo
    traceback: str
    is_restarting: bool = False


@dataclass(frozen=True, slots=True)
class Stalled:
    """The engine has not answered for `seconds`. `doing`: the step or command that does not end. A
    Load now replaces the stuck engine; else Recovered may follow."""

    doing: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """A stalled engine goes on, after `seconds`."""

    seconds: float


Event = (
    LoadProgress | Loaded | LoadFailed | Unloaded | OutputEvent | RequestFailed | Reconfigured
    | ReconfigureFailed | MadeRoom | SnapshotEvent | BlockInspected | PeaksMeasured | StepsProfiled
    | TokensCounted | EngineCrashed | Stalled | Recovered
)  # fmt: skip

"""How the server's requests are called, so that every view can tell them from chats."""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.server.bodies import SAMPLING_NAMES, choose
from app.server.errors import bad_request, refused
from app.server.options import Limits
from engine.errors import InvalidRequestError
from engine.messages import AddRequest
from engine.sampling_params import MAX_LOGPROBS, SamplingParams
from engine.text.prompts import EncodedPrompt

_PREFIXES = {"chatcmpl": "API chat", "cmpl": "API text"}
_ID = re.compile(r"(chatcmpl|cmpl)-([0-9a-f]{24})(?:-(\d+))?")


def new_call_id(prefix: str) -> str:
    """An id for a call to /v1/chat/completions ("chatcmpl") or /v1/completions ("cmpl")."""
    return f"{prefix}-{secrets.token_hex(12)}"


def request_id_of(call_id: str, index: int, count: int) -> str:
    """The engine's id of the `index`-th of `count` requests of a call."""
    return call_id if count == 1 else f"{call_id}-{index}"


def origin_of(request_id: str) -> str | None:
    """The words for a request of the server ("API chat 3f2a"); None for any other."""
    match = _ID.fullmatch(request_id)
    if match is None:
        return None
    prefix, digits, index = match.groups()
    name = f"{_PREFIXES[prefix]} {digits[:4]}"
    return name if index is None else f"{name}-{index}"


MAX_REPLIES = 128
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
MAX_NAMED_TOKENS = 1024
"""Of stop_token_ids and of logit_bias: the engine looks at them for every token."""

COMPLETION_MAX_TOKENS = 16  # where none is given, as OpenAI and vLLM have it


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a call asks of the form of its answer."""

    n: int = 1
    streams: bool = False
    usage_at_end: bool = False
    usage_always: bool = False
    token_ids: bool = False
    logprobs: bool = False


@dataclass(slots=True)
class Call:
    """One call. The replies to prompt p are the choices p * n to p * n + n - 1."""

    prefix: str
    model: str
    prompts: Sequence[EncodedPrompt]
    wishes: Wishes
    call_id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    arrival: float | None = None  # since when the client waits, on the engine's clock

    def __post_init__(self) -> None:
        self.call_id = self.call_id or new_call_id(self.prefix)

    @property
    def num_replies(self) -> int:
        return len(self.prompts) * self.wishes.n

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def requests(self) -> list[AddRequest]:
        return [
            AddRequest(
                request_id_of(self.call_id, index, self.num_replies),
                tuple(prompt.token_ids),
                _seeded(prompt.params, index % self.wishes.n),
                arrival=self.arrival,
            )
            for index in range(self.num_replies)
            for prompt in [self.prompts[index // self.wishes.n]]
        ]


def _seeded(params: SamplingParams, number: int) -> SamplingParams:
    """The parameters of the `number`-th reply to a prompt: with one seed all would be equal."""
    if params.seed is None or number == 0:
        return params
    seed = (params.seed + number + 2**63) % 2**64 - 2**63
    return dataclasses.replace(params, seed=seed)


def read_wishes(values: Mapping[str, Any], *, logprobs: int | None) -> Wishes:
    n = values.get("n", 1)
    if not 1 <= n <= MAX_REPLIES:
        raise bad_request(f"n is {n}; it must be 1 to {MAX_REPLIES}.", "n")
    options = values.get("stream_options") or {}
    streams = values.get("stream", False)
    if options and not streams:
        raise bad_request("stream_options is for stream: true.", "stream_options")
    flags = {}
    for name in ("include_usage", "continuous_usage_stats"):
        flags[name] = options.get(name) or False
        if not isinstance(flags[name], bool):
            raise bad_request(
                f"stream_options.{name} must be true or false.", f"stream_options.{name}"
            )
    return Wishes(
        n=n,
        streams=streams,
        usage_at_end=flags["include_usage"],
        usage_always=flags["include_usage"] and flags["continuous_usage_stats"],
        token_ids=values.get("return_token_ids", False),
        logprobs=logprobs is not None,
    )


def completion_params(values: Mapping[str, Any], limits: Limits) -> SamplingParams:
    wanted = values.get("max_tokens", COMPLETION_MAX_TOKENS)
    return _params(values, wanted, values.get("logprobs"), limits)


def chat_params(values: Mapping[str, Any], limits: Limits) -> SamplingParams:
    wanted = values.get("max_completion_tokens", values.get("max_tokens"))
    top = values.get("top_logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs is {top}; it must be 0 to {MAX_LOGPROBS}.", "top_logprobs")
    if top and not values.get("logprobs"):
        raise bad_request("top_logprobs needs logprobs: true.", "top_logprobs")
    return _params(values, wanted, (top or 0) if values.get("logprobs") else None, limits)


def _params(
    values: Mapping[str, Any], max_tokens: int | None, logprobs: int | None, limits: Limits
) -> SamplingParams:
    _check_sizes(values)
    most = limits.max_output_tokens
    if most is not None:
        if max_tokens is not None and max_tokens > most:
            raise bad_request(
                f"max_tokens is {max_tokens}; this server allows {most} a reply.", "max_tokens"
            )
        max_tokens = max_tokens or most
    try:
        return SamplingParams(
            **choose(values, SAMPLING_NAMES), max_tokens=max_tokens, logprobs=logprobs
        )
    except InvalidRequestError as error:
        raise refused(error.info()) from None


def _check_sizes(values: Mapping[str, Any]) -> None:
    stop = values.get("stop", ())
    if len(stop) > MAX_STOPS or any(len(text) > MAX_STOP_CHARACTERS for text in stop):
        raise bad_request(
            f"stop may have {MAX_STOPS} texts of {MAX_STOP_CHARACTERS} characters.", "stop"
        )
    for name in ("stop_token_ids", "logit_bias"):
        if len(values.get(name, ())) > MAX_NAMED_TOKENS:
            raise bad_request(f"{name} may name {MAX_NAMED_TOKENS} tokens.", name)

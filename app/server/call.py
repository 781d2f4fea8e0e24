"""A call to the server and its requests: their ids, which tell them from chats."""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.server.bodies import ReplyBody
from engine.messages import AddRequest
from engine.sampling_params import SamplingParams
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
    """The label of a request of the server ("API chat 3f2a"); None for any other."""
    match = _ID.fullmatch(request_id)
    if match is None:
        return None
    prefix, digits, index = match.groups()
    name = f"{_PREFIXES[prefix]} {digits[:4]}"
    return name if index is None else f"{name}-{index}"


@dataclass(slots=True)
class Call:
    """One call. The replies to prompt p are the choices p * n to p * n + n - 1."""

    prefix: str
    model: str
    prompts: Sequence[EncodedPrompt]
    body: ReplyBody
    call_id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    arrival: float | None = None  # when the client began to wait, on the engine's clock

    def __post_init__(self) -> None:
        self.call_id = self.call_id or new_call_id(self.prefix)

    @property
    def num_replies(self) -> int:
        return len(self.prompts) * self.body.num_replies

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def requests(self) -> list[AddRequest]:
        return [
            AddRequest(
                request_id_of(self.call_id, index, self.num_replies),
                tuple(prompt.token_ids),
                _seeded(prompt.params, index % self.body.num_replies),
                arrival=self.arrival,
            )
            for index in range(self.num_replies)
            for prompt in [self.prompts[index // self.body.num_replies]]
        ]


def _seeded(params: SamplingParams, number: int) -> SamplingParams:
    """The parameters of the `number`-th reply to a prompt: with one seed all would be equal."""
    if params.seed is None or number == 0:
        return params
    seed = (params.seed + number + 2**63) % 2**64 - 2**63
    return dataclasses.replace(params, seed=seed)

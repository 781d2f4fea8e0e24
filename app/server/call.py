"""One API call: the ids of its requests, and their output until the client reads it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.server.bodies import ReplyBody
from app.server.errors import ApiError, failed
from engine.errors import ErrorInfo
from engine.messages import AddRequest, OutputEvent, TokenLogprob
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason, RequestTimes
from engine.text.tokenizer import EncodedPrompt

_PREFIXES = {"chatcmpl": "Chat API", "cmpl": "Completions API"}
_ID = re.compile(r"(chatcmpl|cmpl)-([0-9a-f]{24})(?:-(\d+))?")


def new_call_id(prefix: str) -> str:
    """An id for a call to /v1/chat/completions ("chatcmpl") or /v1/completions ("cmpl")."""
    return f"{prefix}-{secrets.token_hex(12)}"


def request_id_of(call_id: str, index: int, count: int) -> str:
    """The engine's id of the `index`-th of `count` requests of a call."""
    return call_id if count == 1 else f"{call_id}-{index}"


def origin_of(request_id: str) -> str | None:
    """The label of a request of the server ("Chat API 3f2a"); None for any other."""
    match = _ID.fullmatch(request_id)
    if match is None:
        return None
    prefix, digits, index = match.groups()
    name = f"{_PREFIXES[prefix]} {digits[:4]}"
    return name if index is None else f"{name}-{index}"


@dataclass(slots=True)
class Call:
    """One call. The replies to prompt p are the choices p * n to p * n + n - 1. `path`: of the
    model, whose tokenizer encoded the prompts."""

    call_id: str
    model: str
    path: str
    prompts: Sequence[EncodedPrompt]
    body: ReplyBody
    created: int = field(default_factory=lambda: int(time.time()))
    arrival: float | None = None  # when the client began to wait, on the engine's clock

    @property
    def num_replies(self) -> int:
        return len(self.prompts) * self.body.num_replies

    def requests(self) -> list[AddRequest]:
        return [
            AddRequest(
                request_id_of(self.call_id, index, self.num_replies),
                tuple(prompt.token_ids),
                _seeded(prompt.params, index % self.body.num_replies),
                arrival=self.arrival,
                model=self.path,
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


UNEXPLAINED = ErrorInfo("The engine failed to complete the request.")


@dataclass(slots=True)
class Piece:
    """Output of one request since the last read."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    first: RequestTimes | None = None  # with the first token

    def extend(self, event: OutputEvent) -> None:
        self.first = event.times if event.is_first else self.first
        self.text += event.text
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        self.finish_reason = event.finish_reason
        self.num_cached_tokens = event.num_cached_tokens


class OutputCollector:
    """Pieces of all requests of a call, merged per request until `take` fetches them: for a slow
    reader they grow longer, not more numerous. All methods run on the server's loop."""

    def __init__(
        self,
        request_ids: Sequence[str],
        abort: Callable[[str], None],
        observe_first_token: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._index = {request_id: index for index, request_id in enumerate(request_ids)}
        self._open = set(request_ids)
        self._abort = abort
        self._observe = observe_first_token
        self._pieces: dict[int, Piece] = {}
        self._error: ApiError | None = None
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_closed = False
        self._kept: list[str] = []
        self._room = 0
        self.num_tokens = 0
        self.ttft_s: float | None = None
        """Of the first of its requests."""

    @property
    def is_finished(self) -> bool:
        """Whether every request has ended and all output was taken."""
        return not self._open and not self._pieces

    def keep_replies(self, length: int) -> None:
        """Keep the first `length` characters of all `replies`, as they come. Called before the
        first output is taken."""
        self._room = length
        self._kept = [""] * len(self._index)
        for piece in self._pieces.values():
            self._keep(piece.index, piece.text)

    @property
    def replies(self) -> tuple[str, ...]:
        """Text of each request so far, where it is kept."""
        return tuple(self._kept)

    def _keep(self, index: int, text: str) -> None:
        if self._room:
            kept = text[: self._room]
            self._kept[index] += kept
            self._room -= len(kept)

    def on_output(self, event: OutputEvent) -> None:
        self.num_tokens += len(event.token_ids)
        self._keep(self._index[event.request_id], event.text)
        if event.finish_reason is not None:
            self._open.discard(event.request_id)
        if self._is_closed:
            return
        if event.finish_reason is FinishReason.ERROR:
            self._error = self._error or failed(event.error or UNEXPLAINED)
        else:
            index = self._index[event.request_id]
            self._pieces.setdefault(index, Piece(index)).extend(event)
        self._tell()

    def on_failed(self, request_id: str, error: ApiError) -> None:
        self._open.discard(request_id)
        self._error = self._error or error
        self._tell()

    def check(self) -> None:
        """Raise ApiError if one of the requests has failed."""
        if self._error is not None:
            raise self._error

    async def wait(self) -> None:
        """Wait until there is something to take."""
        await self._changed.wait()

    async def take(self) -> list[Piece]:
        """The output since the last call, in request order; waits for some. Raises ApiError if a
        request failed."""
        await self._changed.wait()
        self._changed.clear()
        self.check()
        pieces = [self._pieces[index] for index in sorted(self._pieces)]
        self._pieces.clear()
        return pieces

    async def take_whole(self) -> list[Piece]:
        """One piece per request, when all have ended. Raises ApiError if one failed."""
        await self._ended.wait()
        pieces = await self.take()
        for piece in pieces:
            if piece.first is not None and piece.first.first_token is not None:
                self._first_token(piece.first, piece.first.first_token)
        return pieces

    def handed_over(self, pieces: Sequence[Piece]) -> None:
        """Streamed pieces were just sent to the client."""
        now = time.perf_counter()
        for piece in pieces:
            if piece.first is not None:
                self._first_token(piece.first, now)

    def close(self) -> None:
        """The client is gone: abort the running requests."""
        self._is_closed = True
        self._pieces.clear()
        for request_id in list(self._open):
            self._abort(request_id)

    def _first_token(self, times: RequestTimes, at: float) -> None:
        seconds = max(at - times.arrival, 0.0)
        self.ttft_s = seconds if self.ttft_s is None else min(seconds, self.ttft_s)
        self._observe(seconds)

    def _tell(self) -> None:
        self._changed.set()
        if not self._open or self._error is not None:
            self._ended.set()

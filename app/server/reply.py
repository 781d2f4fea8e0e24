"""JSON of replies, complete and streamed, for chat and text completions."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.server.bodies import ChatBody, CompletionBody, ReplyBody
from app.server.call import Call, OutputCollector, Piece
from app.server.call_log import note_of
from app.server.errors import ApiError, error_of
from engine.messages import TokenLogprob

Json = dict[str, Any]
TokenBytes = Callable[[int], bytes | None]

LOWEST_LOGPROB = -9999.0
"""Logprob of an impossible token, as in OpenAI's and vLLM's responses: JSON has no infinity."""


class Shape(ABC):
    """Builds the JSON of one call and counts its tokens. Pass every piece once, in order, to
    `whole` or `chunk`."""

    body: type[ReplyBody]
    prefix: str
    object_whole: str
    object_chunk: str

    def __init__(self, call: Call, token_bytes: TokenBytes) -> None:
        self._call = call
        self._token_bytes = token_bytes
        self._num_tokens = [0] * call.num_replies
        self._num_cached = [0] * len(call.prompts)

    def chunk(self, piece: Piece) -> Json:
        is_first = self._num_tokens[piece.index] == 0
        self._count(piece)
        result = self._envelope(self.object_chunk)
        result["choices"] = [self._choice(piece, self._delta(piece, is_first), is_first)]
        if self._call.body.usage_always:
            result["usage"] = self.usage()
        elif self._call.body.usage_at_end:
            result["usage"] = None
        return result

    def last_chunk(self) -> Json | None:
        """The usage, in a chunk without choices; None if not requested."""
        if not self._call.body.usage_at_end:
            return None
        return {**self._envelope(self.object_chunk), "choices": [], "usage": self.usage()}

    def whole(self, pieces: Sequence[Piece]) -> Json:
        """The response, from one piece per reply."""
        for piece in pieces:
            self._count(piece)
        result = self._envelope(self.object_whole)
        result["choices"] = [self._choice(piece, self._content(piece), True) for piece in pieces]
        result["usage"] = self.usage()
        return result

    def usage(self) -> Json:
        prompt = sum(len(prompt.token_ids) for prompt in self._call.prompts)
        written = sum(self._num_tokens)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached)},
        }

    @abstractmethod
    def _content(self, piece: Piece) -> Json:
        """The text, in a complete response."""

    def _delta(self, piece: Piece, is_first: bool) -> Json:
        """The text, in a chunk."""
        return self._content(piece)

    @abstractmethod
    def _logprobs(self, piece: Piece) -> Json: ...

    def _choice(self, piece: Piece, content: Json, has_prompt: bool) -> Json:
        body = self._call.body
        choice = {
            "index": piece.index,
            **content,
            "logprobs": None if body.num_logprobs is None else self._logprobs(piece),
            "finish_reason": piece.finish_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
            if has_prompt:
                prompt = self._call.prompts[piece.index // body.num_replies]
                choice["prompt_token_ids"] = list(prompt.token_ids)
        return choice

    def _envelope(self, kind: str) -> Json:
        call = self._call
        return {"id": call.call_id, "object": kind, "created": call.created, "model": call.model}

    def _count(self, piece: Piece) -> None:
        self._num_tokens[piece.index] += len(piece.token_ids)
        prompt, number = divmod(piece.index, self._call.body.num_replies)
        if number == 0:  # the others to the same prompt find what the first one computed
            self._num_cached[prompt] = piece.num_cached_tokens


class ChatShape(Shape):
    body = ChatBody
    prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def _content(self, piece: Piece) -> Json:
        return {"message": {"role": "assistant", "content": piece.text, "refusal": None}}

    def _delta(self, piece: Piece, is_first: bool) -> Json:
        role = {"role": "assistant"} if is_first else {}
        return {"delta": {**role, "content": piece.text}}

    def _logprobs(self, piece: Piece) -> Json:
        return {"content": [self._token(entry) for entry in piece.logprobs]}

    def _token(self, entry: TokenLogprob) -> Json:
        tops = [self._named(*alternative) for alternative in entry.alternatives]
        return {**self._named(entry.token_id, entry.token, entry.logprob), "top_logprobs": tops}

    def _named(self, token_id: int, token: str, logprob: float) -> Json:
        data = self._token_bytes(token_id)
        return {
            "token": token,
            "logprob": _finite(logprob),
            "bytes": None if data is None else list(data),
        }


class CompletionShape(Shape):
    body = CompletionBody
    prefix = "cmpl"
    object_whole = object_chunk = "text_completion"

    def __init__(self, call: Call, token_bytes: TokenBytes) -> None:
        super().__init__(call, token_bytes)
        self._offsets = [0] * call.num_replies

    def _content(self, piece: Piece) -> Json:
        return {"text": piece.text}

    def _logprobs(self, piece: Piece) -> Json:
        result: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in piece.logprobs:
            result["tokens"].append(entry.token)
            result["token_logprobs"].append(_finite(entry.logprob))
            tops = {token: _finite(value) for _, token, value in entry.alternatives}
            result["top_logprobs"].append(tops or None)
            result["text_offset"].append(self._offsets[piece.index])
            self._offsets[piece.index] += len(entry.token)
        return result


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


FIRST_NEWS_S = 1.0
"""How long a stream's head waits for the first token: an early error keeps its own status."""

COMMENT_S = 15.0
"""Interval of comments in a silent stream: proxies keep it open, and lost clients are noticed."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def json_bytes(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # an error may quote half a surrogate pair
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers)


class Reply:
    """Answers a call from its outputs."""

    def __init__(
        self, outputs: OutputCollector, shape: Shape, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._outputs = outputs
        self._shape = shape
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_of(scope).take_outputs(self._outputs)
        watch = asyncio.create_task(_until_hang_up(receive))
        work = asyncio.create_task(self._answer(scope, receive, send))
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._outputs.close()
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response()
        except BaseException as error:
            response = error_response(error_of(error))
        await response(scope, receive, send)

    async def _response(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        whole = self._shape.whole(await self._outputs.take_whole())
        return json_response(whole, headers=self._headers)


class StreamedReply(Reply):
    """As server-sent events."""

    async def _response(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_NEWS_S):
                await self._outputs.wait()
        self._outputs.check()
        return self._stream

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = [(name.lower().encode(), text.encode()) for name, text in self._headers.items()]
        headers = [*STREAM_HEADERS, *own]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while not self._outputs.is_finished:
                pieces = await self._next()
                chunks = [_event(self._shape.chunk(piece)) for piece in pieces] or [
                    b": waiting\n\n"
                ]
                await _body(send, b"".join(chunks))
                self._outputs.handed_over(pieces)
            last = self._shape.last_chunk()
            end = _event(last) if last is not None else b""
        except BaseException as error:
            shown = error_of(error)
            note_of(scope).error = shown.message
            end = _event(shown.body())
        await _body(send, end + b"data: [DONE]\n\n", more=False)

    async def _next(self) -> list[Piece]:
        try:
            async with asyncio.timeout(COMMENT_S):
                await self._outputs.wait()
        except TimeoutError:
            return []
        return await self._outputs.take()


def _event(value: Any) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


async def _body(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _until_hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

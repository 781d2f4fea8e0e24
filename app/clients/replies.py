"""Replies of another server as our engine's events: output events,
rows of a snapshot, and latencies measured here, from sending to receiving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.clients.calls import Call, make_call
from app.clients.chunks import Piece, ReplyReader
from app.clients.errors import TargetError
from app.clients.latencies import Gap, Samples, add_tokens, with_late_tokens
from app.clients.stream import Streamer, Timed
from app.clients.target import OnEvent, Probe, Remark, Traced
from app.clients.traces import Span
from engine.errors import ErrorInfo
from engine.messages import NO_STEP, AddRequest, OutputEvent, RequestFailed
from engine.snapshot import (
    FinishReason,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    TokenEvent,
)


class Reply:
    """One running request. `arrival`: when the user sent it (time.perf_counter)."""

    def __init__(
        self,
        request_id: str,
        call: Call,
        arrival: float,
        samples: Samples,
        emit: Callable[[OutputEvent | RequestFailed], None],
    ) -> None:
        self.request_id = request_id
        self._call = call
        self._arrival = arrival
        self._samples = samples
        self._emit = emit
        self._reader = ReplyReader()
        self._tokens: list[TokenEvent] = []
        self._gap: Gap | None = None  # before the last of them
        self._is_ended = False

    async def run(self, streamer: Streamer) -> TargetError | None:
        """Stream the reply to its end; cancelling disconnects, which aborts it on the server.
        Returns the connection's error, if any. The last event has the finish reason and the
        times."""
        held: Timed | None = None  # the last piece waits for the token counts
        try:
            async for timed in streamer.stream(self._call, self._reader):
                if held is None and timed.piece.finish_reason is None:
                    self._say(timed)
                elif held is None:
                    held = timed
                else:
                    held = Timed(held.time, held.piece + timed.piece)
        except TargetError as error:
            self._fail(error.info())
            return error
        if held is not None:
            self._finish(held)
        return None

    @property
    def server_id(self) -> str:
        """Its id at the server; "" before the first piece."""
        return self._reader.id

    @property
    def times(self) -> RequestTimes:
        """So far."""
        return RequestTimes(self._arrival, None, tuple(self._tokens))

    def abort(self) -> None:
        """It was cancelled: its last event."""
        if not self._is_ended:
            self._end(Piece(finish_reason=FinishReason.ABORT), time.perf_counter())

    def row(self) -> RequestSnapshot:
        """Its row now. A reply without tokens counts as waiting."""
        prompt, written = self._reader.num_prompt_tokens or 0, self._reader.num_tokens
        return RequestSnapshot(
            self.request_id,
            RequestState.RUNNING if self._tokens else RequestState.WAITING,
            num_prompt_tokens=prompt,
            num_cached_tokens=self._reader.num_cached_tokens or 0,
            num_computed_tokens=prompt + written if self._tokens else 0,
            num_output_tokens=written,
            num_blocks=-1,
            num_preemptions=-1,
            times=self.times,
        )

    # -- events -----------------------------------------------------------------------------

    def _say(self, timed: Timed) -> None:
        piece = timed.piece
        if not piece.text and not piece.token_ids:
            return
        is_first = self._measure(timed.time, len(piece.token_ids))
        times = self.times if is_first else None
        self._output(piece, timed.time, is_first=is_first, times=times)

    def _finish(self, timed: Timed) -> None:
        piece = timed.piece
        is_first = self._measure(timed.time, len(piece.token_ids) - piece.num_late)
        self._tokens = with_late_tokens(self._tokens, piece.num_late)
        self._samples.num_output_tokens += piece.num_late
        self._end(piece, timed.time, is_first=is_first)

    def _fail(self, error: ErrorInfo) -> None:
        """Keep the text so far; the failure has the cause."""
        if self._tokens:
            last = Piece(finish_reason=FinishReason.ERROR)
            self._end(last, time.perf_counter(), error=error)
        self._is_ended = True
        self._emit(RequestFailed(self.request_id, error))

    def _end(self, last: Piece, at: float, **more: Any) -> None:
        self._is_ended = True
        samples, reader, reason = self._samples, self._reader, last.finish_reason
        assert reason is not None
        samples.num_prompt_tokens += reader.num_prompt_tokens or 0
        samples.num_cached_tokens += reader.num_cached_tokens or 0
        samples.finished[reason.value] = samples.finished.get(reason.value, 0) + 1
        times = replace(self.times, finished=at)
        self._output(last, at, finish_reason=reason, times=times, **more)

    def _output(self, piece: Piece, at: float, **more: Any) -> None:
        reader = self._reader
        self._emit(
            OutputEvent(
                self.request_id, piece.text, piece.token_ids, at, NO_STEP,
                reader.num_prompt_tokens or 0, reader.num_cached_tokens or 0, piece.logprobs,
                **more,
            )
        )  # fmt: skip

    def _measure(self, at: float, num_tokens: int) -> bool:
        """Count an output event; whether it is the first."""
        if not num_tokens:
            return False
        samples, is_first = self._samples, not self._tokens
        samples.num_output_tokens += num_tokens
        if is_first:
            samples.ttft.append(Sample(at, at - self._arrival))
        elif at != (last := self._tokens[-1].time):
            self._gap = Gap(at, at - last, num_tokens)
            samples.gaps.append(self._gap)
        elif self._gap is not None:
            self._gap.num_tokens += num_tokens
        add_tokens(self._tokens, at, num_tokens)
        return is_first


MOST_REMARKS = 100
MOST_ENDED = 256
"""Replies that have ended, whose traces may come."""


class Replies:
    """Used on the connection's loop. look: polls the server soon; ended: called when a reply has
    ended."""

    def __init__(
        self, streamer: Streamer, emit: OnEvent, look: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self.samples = Samples()
        self._streamer = streamer
        self._emit = emit
        self._look = look
        self._ended = ended
        self._running: dict[str, tuple[Reply, asyncio.Task[Any]]] = {}
        self._last: dict[str, tuple[str, RequestTimes]] = {}  # by id at the server, ended ones
        self._said: set[str] = set()
        self._is_closing = False

    def __bool__(self) -> bool:
        return bool(self._running)

    def rows(self) -> tuple[RequestSnapshot, ...]:
        return tuple(reply.row() for reply, _ in self._running.values())

    def add(self, command: AddRequest, at: float, found: Probe, model: str) -> None:
        """Send a request that the user sent `at` (time.perf_counter)."""
        try:
            if command.begin_with:
                raise TargetError(
                    f"{found.server_type} cannot continue a partial reply.",
                    "Branching from a token requires the built-in engine.",
                )
            call = make_call(
                found.server_type, model, command.prompt, command.params, found.max_model_len
            )
        except TargetError as error:
            self._emit(RequestFailed(command.request_id, error.info()))
            return
        self._remark(call.remark)
        if not self._running:
            self._look()  # from now on more often
        reply = Reply(command.request_id, call, at, self.samples, self._emit)
        task = asyncio.create_task(self._run(reply))
        self._running[command.request_id] = (reply, task)

    def abort(self, request_id: str) -> None:
        found = self._running.get(request_id)
        if found is not None:
            found[1].cancel()

    async def close(self) -> None:
        """Abort all replies."""
        self._is_closing = True
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, reply: Reply) -> None:
        try:
            error = await reply.run(self._streamer)
            if error is not None:
                self._look()  # is it the line?
        except asyncio.CancelledError:
            reply.abort()
            if self._is_closing:
                raise
        finally:
            self._running.pop(reply.request_id, None)
            if reply.server_id:
                if len(self._last) >= MOST_ENDED:
                    del self._last[next(iter(self._last))]
                self._last[reply.server_id] = (reply.request_id, reply.times)
            self._ended()

    def take_span(self, span: Span) -> None:
        """A completion has the number of its prompt at the end of its id, of ours always 0 (vLLM,
        entrypoints/openai/completion/serving.py). The time before the first step is that until
        our request was there, and in the queue."""
        request_id, times = self._last.pop(span.request_id.removesuffix("-0"), ("", None))
        if times is not None and (first := times.first_token) is not None:
            begun = max(first - span.prefill_s, times.arrival)
            self._emit(Traced(request_id, replace(times, first_scheduled=begun)))

    def _remark(self, words: str) -> None:
        if words and words not in self._said and len(self._said) < MOST_REMARKS:
            self._said.add(words)
            self._emit(Remark(words))

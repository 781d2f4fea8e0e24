"""Our requests at a server of another make: sent, read as they stream, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from app.connections.target import OnEvent, Probe, Remark
from app.dialects.calls import make_call
from app.dialects.errors import TargetError
from app.dialects.requests import Reply, Samples
from app.dialects.stream import Streamer
from engine.errors import ErrorInfo
from engine.messages import AddRequest, RequestFailed
from engine.snapshot import RequestSnapshot

MOST_REMARKS = 100


class Replies:
    """Belongs to the loop of the connection. look: have a look at the server soon; ended: called
    when a reply is over."""

    def __init__(
        self,
        streamer: Streamer,
        emit: OnEvent,
        look: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.samples = Samples()
        self._streamer = streamer
        self._emit = emit
        self._look = look
        self._ended = ended
        self._running: dict[str, tuple[Reply, asyncio.Task[Any]]] = {}
        self._said: set[str] = set()
        self._is_closing = False

    def __bool__(self) -> bool:
        return bool(self._running)

    def rows(self) -> tuple[RequestSnapshot, ...]:
        return tuple(reply.row() for reply, _ in self._running.values())

    def add(self, command: AddRequest, at: float, found: Probe, model: str) -> None:
        """Send a request that the user sent `at` (time.perf_counter)."""
        if command.begin_with:
            error = ErrorInfo(
                f"{found.dialect} cannot begin a reply with given tokens.",
                "Branches from a token need the engine of this program.",
            )
            self._emit(RequestFailed(command.request_id, error))
            return
        try:
            call = make_call(
                found.dialect, model, command.prompt, command.params, found.max_model_len
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
        """Give up all of them."""
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
            self._ended()

    def _remark(self, words: str) -> None:
        if words and words not in self._said and len(self._said) < MOST_REMARKS:
            self._said.add(words)
            self._emit(Remark(words))

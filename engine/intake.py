"""Takes requests in: their prompts are encoded by another process while the worker runs steps.

    add      AddRequest  -->  a future of token ids  -->  Encoded (a command of the worker)
    encoded  Encoded     -->  the engine's add_request
    count    CountTokens -->  a future of token ids  -->  Counted  -->  TokensCounted
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from engine import messages as m
from engine.config import EngineConfig
from engine.errors import (
    ErrorInfo,
    InferdeckError,
    InvalidRequestError,
    is_panic,
    panic_text,
)
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

log = logging.getLogger(__name__)


class Encoded(NamedTuple):
    """The prompt of a request is encoded, or could not be."""

    request: m.AddRequest
    params: SamplingParams
    token_ids: Future[list[int]]


class Counted(NamedTuple):
    """The tokens of a text."""

    key: str
    token_ids: Future[list[int]]


class Intake:
    """Called by the worker alone. `submit` gives it what another thread has finished.

    A request's text or parameters end that request; any other error is raised: the engine's.
    """

    def __init__(
        self, emit: Callable[[m.Event], None], submit: Callable[[Encoded | Counted], None]
    ) -> None:
        self._emit, self._submit = emit, submit
        self._encoding: dict[str, Future[list[int]]] = {}  # by request id

    def add(self, engine: LLMEngine | None, request: m.AddRequest, at: float) -> None:
        """`at`: when it was submitted."""
        request_id = request.request_id
        if engine is None:
            error = InvalidRequestError("No model is loaded.", "Load a model first.")
            self._emit(m.RequestFailed(request_id, error.info()))
            return
        if request.model is not None and request.model != engine.model_info.path:
            self._emit(m.RequestFailed(request_id, replaced_by(engine.config)))
            return
        if request.arrival is None:
            request = replace(request, arrival=at)
        try:
            if request_id in self._encoding:
                raise InvalidRequestError(
                    f"Request id {request_id!r} is already in use.", "Use a unique id per request."
                )
            future, params = engine.encode(request.prompt, request.params, request.client)
        except BaseException as error:
            self._refuse(request_id, error)
            return
        encoded = Encoded(request, params, future)
        if future.done():
            self._add(engine, encoded)
            return
        self._encoding[request_id] = future
        future.add_done_callback(lambda _: self._submit(encoded))

    def encoded(self, engine: LLMEngine | None, encoded: Encoded) -> None:
        """Nothing for a request that was aborted meanwhile."""
        request_id = encoded.request.request_id
        if self._encoding.get(request_id) is encoded.token_ids:
            del self._encoding[request_id]
            assert engine is not None, "it is gone with its requests"
            self._add(engine, encoded)

    def abort(self, request_id: str) -> bool:
        """Whether its prompt was being encoded."""
        future = self._encoding.pop(request_id, None)
        if future is None:
            return False
        future.cancel()
        ended = m.OutputEvent(
            request_id, "", (), time.perf_counter(), step_index=0, num_prompt_tokens=0,
            num_cached_tokens=0, finish_reason=FinishReason.ABORT, num_preemptions=0,
        )  # fmt: skip
        self._emit(ended)
        return True

    def end(self, error: ErrorInfo | None) -> None:
        """All requests end, aborted or with `error`."""
        for request_id in list(self._encoding):
            if error is None:
                self.abort(request_id)
            else:
                self._encoding.pop(request_id).cancel()
                self._emit(m.RequestFailed(request_id, error))

    def drop(self) -> None:
        """As `end`, without a word: the engine crashed."""
        while self._encoding:
            self._encoding.popitem()[1].cancel()

    def count(self, engine: LLMEngine | None, command: m.CountTokens) -> None:
        """None without a model, or where the text is too much for the tokenizer."""
        key = command.key
        if engine is None:
            self._emit(m.TokensCounted(key, None))
            return
        try:
            future = engine.count_tokens(command.text, command.client)
        except BaseException as error:
            info = _refusal(error)
            if info is None:
                raise
            log.warning("Counting tokens failed: %s", info.cause)
            self._emit(m.TokensCounted(key, None))
            return
        future.add_done_callback(lambda _: self._submit(Counted(key, future)))

    def counted(self, counted: Counted) -> None:
        try:
            number: int | None = len(counted.token_ids.result())
        except (InferdeckError, CancelledError) as error:
            log.warning("Counting tokens failed: %s", error)
            number = None
        self._emit(m.TokensCounted(counted.key, number))

    def _add(self, engine: LLMEngine, encoded: Encoded) -> None:
        request, params, future = encoded
        try:
            engine.add_request(
                future.result(), params, request.request_id, request.begin_with,
                arrival=request.arrival,
            )  # fmt: skip
        except BaseException as error:
            self._refuse(request.request_id, error)

    def _refuse(self, request_id: str, error: BaseException) -> None:
        info = _refusal(error)
        if info is None:
            raise error
        self._emit(m.RequestFailed(request_id, info))


def replaced_by(config: EngineConfig) -> ErrorInfo:
    """Why requests end at a change of model. Clients read it: no path, only the folder's name."""
    name = os.path.basename(os.path.abspath(config.model))
    return ErrorInfo(f"The model was unloaded to load {name}.", "Send the request again.")


def _refusal(error: BaseException) -> ErrorInfo | None:
    """Why a text cannot be encoded; None if the fault is not the text's."""
    if is_panic(error):
        return ErrorInfo(
            f"The tokenizer cannot encode this text: {panic_text(error)}.",
            "Shorten the text, and remove long runs of whitespace or of one character.",
            type(error).__name__,
        )
    if isinstance(error, MemoryError):
        return ErrorInfo(
            "Out of memory while encoding the text.", "Shorten the text, or close other programs.",
            "MemoryError",
        )  # fmt: skip
    return error.info() if isinstance(error, InferdeckError) else None

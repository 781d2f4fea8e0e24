"""Texts to tokens and back, for the loaded model, without holding up the server's loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TypeVar

from app.server.errors import ApiError, bad_request, refused, unavailable
from engine.errors import CheckpointError, InferdeckError
from engine.messages import Prompt
from engine.sampling_params import SamplingParams
from engine.snapshot import ModelInfo
from engine.text.chat import Messages
from engine.text.tokenizer import EncodedPrompt, PromptWork, Tokenizer, chat, prompt_work
from engine.text.work import Work

T = TypeVar("T")


class TokenizerWorker:
    """Encodes in the tokenizer's processes, where clients take turns; decodes on threads. Its
    methods raise ApiError: 400 for what cannot be encoded, 503 without a tokenizer."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="server-tokenizer")
        self._tokenizer: Tokenizer | None = None
        self._model: weakref.ref[ModelInfo] | None = None

    async def tokenizer(self, model: ModelInfo) -> Tokenizer:
        """The model's own, read on first use, and kept as long as the model's description."""
        known = self._tokenizer
        if known is not None and self._model is not None and self._model() is model:
            return known
        read = partial(Tokenizer.from_folder, model.path, allow_missing=model.is_dummy)
        try:
            tokenizer = self._tokenizer = await self.run(read)
        except CheckpointError as error:
            raise _as_api_error(error) from None
        self._model = weakref.ref(model, self._forget)
        return tokenizer

    def _forget(self, model: weakref.ref[ModelInfo]) -> None:
        if model is self._model:
            self._tokenizer = None

    async def encode(
        self,
        model: ModelInfo,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        context: int | None,
        client: str,
    ) -> tuple[list[EncodedPrompt], Tokenizer]:
        """The prompts of one call. context: as for `prompt_work`. client: whose turn it takes."""
        tokenizer = await self.tokenizer(model)
        works = [_work(prompt, tokenizer, params, context) for prompt in prompts]
        futures = [work.submit(tokenizer, client) for work in works]
        try:
            token_ids = [await _result(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()  # after an error; those that are done stay as they are
        pairs = zip(token_ids, works, strict=True)
        return [EncodedPrompt(ids, work.params) for ids, work in pairs], tokenizer

    async def token_ids(self, tokenizer: Tokenizer, work: Work, client: str) -> list[int]:
        return await _result(tokenizer.submit(work, client))

    async def run(self, work: Callable[[], T]) -> T:
        """`work` on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._tokenizer = None


def _work(
    prompt: Prompt, tokenizer: Tokenizer, params: SamplingParams, context: int | None
) -> PromptWork:
    try:
        return prompt_work(prompt, tokenizer, params, context)
    except InferdeckError as error:
        raise refused(error.info()) from None


def chat_work(messages: Messages) -> Work:
    try:
        return chat(messages)
    except InferdeckError as error:
        raise refused(error.info()) from None


async def _result(future: Future[list[int]]) -> list[int]:
    try:
        return await asyncio.wrap_future(future)
    except InferdeckError as error:
        raise _as_api_error(error) from None
    finally:
        # A variable with the future, or with an exception, would be a cycle through the traceback:
        # the texts in its frames would stay until the next collection.
        del future


def _as_api_error(error: InferdeckError) -> ApiError:
    if isinstance(error, CheckpointError):
        return unavailable(f"{error.cause} {error.remedy}")
    return refused(error.info())


def decode_all(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones by their names."""
    parts: list[str] = []
    for is_silent, group in groupby(token_ids, tokenizer.is_silent):
        run = list(group)
        parts += map(tokenizer.token_text, run) if is_silent else [tokenizer.decode(run)]
    return "".join(parts)


def check_token_ids(token_ids: Sequence[int], vocab_size: int, name: str) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"{name} contains token id {token_id}. Valid ids are 0 to {vocab_size - 1}.", name
            )

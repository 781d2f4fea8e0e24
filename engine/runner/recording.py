"""Steps on the CPU, recorded once for each number of tokens and replayed: decode steps, and what
one request computes alone, be it a short prompt, the end of one that is cached, or drafts.

Between its matmuls a step of a small model spends its time in Python: modules, checks, views. With
Qwen3-0.6B that was 6.4 of 22.4 ms per token in int4, and 17 of 83 ms of a prompt of 32 tokens in
bfloat16. A recording keeps the calls that compute it (`engine.runner.recorder`), those of compiled
code without Python between them (`engine.kernels.cpu.replay`).

    2nd step of n requests that decode; a prompt of n tokens that comes again and again
                 launched, and listened to
    later ones   [ inputs copied ] [ call | compiled calls | ... ] [ logits ]

Prompts have any number of tokens. Where products compute in tiles, they are padded to whole ones
(`filled_size`), so that a few recordings serve all. A mixture of experts is not recorded: Python
may choose its experts.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionBackend
from engine.batch.batch import Batch, Span, pack, pad
from engine.batch.transfer import CPU, Staging, capacity_for
from engine.errors import is_out_of_memory
from engine.kernels.cpu.check import library
from engine.kernels.cpu.dequantized import MANY_ROWS
from engine.kernels.cpu.workspace import Workspace
from engine.kernels.registry import choose_linear
from engine.runner.recorder import UnrecordableError, record
from engine.units import bytes_text

MOST_ROWS = 64
"""Of a recorded decode step: beyond, Python takes a small part of it and memory grows."""

MOST_TOKENS = 128
"""Of one request in a recorded step."""

MOST_BYTES = 64 * 2**20
"""Of all recordings of a model, without their workspace; the one that was used least recently goes
first. A step that needs more is not recorded."""

PREPARE_S = 1.0
"""After which no more prompts are recorded when a model is loaded. 0.9 s for Qwen3-0.6B."""

_TILE = 32  # rows that are multiplied together: tiled.c

_Key = tuple[int, int, bool]  # tokens, sampled rows, and whether they decode


class Recording:
    """The step of one batch, as `compute` did it: its logits, and the same for batches of as many
    tokens and sampled rows. workspace: of its compiled calls. Raises UnrecordableError."""

    def __init__(
        self,
        compute: Callable[[Batch], Tensor],
        backend: AttentionBackend,
        batch: Batch,
        workspace: Workspace,
    ) -> None:
        self._backend, self._workspace = backend, workspace
        self._staging = Staging(CPU, capacity_for(batch.num_tokens))
        staged = self._staging.copy(batch)
        backend.begin_step(staged)
        self.logits, self._calls, self._memory = record(
            lambda: compute(staged), backend, workspace
        )
        self.nbytes = sum(one.nbytes for one in self._memory)

    def replay(self, batch: Batch) -> Tensor:
        """Logits [R, vocab], until the next call."""
        self._backend.begin_step(self._staging.copy(batch))
        backend = self._backend
        self._workspace.prepare(
            backend.scratch_bytes() if isinstance(backend, CPUAttention) else 0
        )
        for function, args, kwargs in self._calls:
            function(*args, **kwargs)
        return self.logits


def launched_first(dtype: torch.dtype) -> int:
    """Prompts of a length before one is recorded, by a model in `dtype`: many lengths never come
    again. About as many as it takes for replays to save what listening costs. In bfloat16:
    Qwen3-0.6B in int8, 128 tokens, 45 ms, then 130 instead of 141; the starter model, 48 tokens,
    5 ms, then 3.1 instead of 5.2. In float32, whose steps have more and longer calls: the starter
    model, 24 tokens, 12 ms, then 4.8 instead of 6.4."""
    return 2 if dtype is torch.bfloat16 else 8


def filled_size(num_tokens: int, dtype: torch.dtype) -> int:
    """Tokens of the recording for a prompt of `num_tokens` by a model in `dtype`: as many, or whole
    tiles of rows where the same code multiplies these, and no result depends on other rows."""
    size = -(-num_tokens // _TILE) * _TILE
    compiled = library()
    has_tiles = compiled is not None and compiled.has_tiles and dtype is torch.bfloat16
    if not has_tiles or num_tokens <= _TILE // 2 or (num_tokens < MANY_ROWS <= size):
        return num_tokens
    used = {choose_linear(dtype, "cpu", rows) for rows in (num_tokens, size)}
    return size if used in ({"tiles"}, {"native"}) else num_tokens


class StepRecordings:
    """The recordings of one model, which computes in `dtype`, over one cache: by number of tokens
    and of sampled rows, and whether they decode; for any thread count."""

    def __init__(
        self, compute: Callable[[Batch], Tensor], backend: AttentionBackend, dtype: torch.dtype
    ) -> None:
        self._compute, self._backend, self._dtype = compute, backend, dtype
        self._workspace = Workspace()
        self._recordings: dict[_Key, Recording] = {}  # the one used last is the last
        self._last: _Key | None = None  # of decode steps
        self._launched: Counter[_Key] = Counter()  # of the others
        # tokens, by whether the step decodes
        self._most = {True: MOST_ROWS, False: MOST_TOKENS}
        self.problem = ""

    @torch.inference_mode()
    def prepare(self, block_size: int, max_model_len: int) -> None:
        """Record short prompts before there is one, the shortest first, for PREPARE_S: those of
        whole tiles, if all that attention computes is recorded with them. Writes no keys and
        values."""
        own = _TILE // 2 + 1  # tokens, fewer of which are not padded
        if max_model_len < own or filled_size(own, self._dtype) != _TILE:
            return
        backend, began = self._backend, time.perf_counter()
        some = pack([Span([0] * own, 0, [0] * own, 1)], block_size)
        for size in range(_TILE, self._most[False] + 1, _TILE):
            batch = pad(some, size)
            batch = dataclasses.replace(batch, slot_mapping=torch.full((size,), -1))
            backend.begin_step(batch)
            if not isinstance(backend, CPUAttention) or not backend.are_all_repeatable:
                return
            try:
                self._recorded(key := (size, 1, False), batch)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                return  # it may suffice for other steps
            made = self._recordings.get(key)
            if made is None or time.perf_counter() - began > PREPARE_S:
                return
            if self.nbytes + made.nbytes * (size + _TILE) // size > MOST_BYTES:
                return

    def fits(self, batch: Batch) -> bool:
        is_alone = batch.is_decode or batch.num_requests == 1
        return is_alone and batch.num_tokens <= self._most[batch.is_decode]

    @torch.inference_mode()
    def execute(self, batch: Batch) -> Tensor | None:
        """Logits [R, vocab] of a batch that fits; None where it is to be launched."""
        if not batch.is_decode:
            size = filled_size(batch.num_tokens, self._dtype)
            if size > self._most[False]:  # too large once it is padded
                return None
            batch = batch if size == batch.num_tokens else pad(batch, size)
        key = batch.num_tokens, len(batch.logits_indices), batch.is_decode
        if (found := self._recordings.pop(key, None)) is not None:
            self._recordings[key] = found
            return found.replay(batch)
        return self._recorded(key, batch) if self._pays(key, batch.is_decode) else None

    def _pays(self, key: _Key, is_decode: bool) -> bool:
        """Whether a step comes again. Listening takes time: too much for a number of requests that
        is passed on the way to another."""
        if is_decode:
            last, self._last = self._last, key
            return key == last
        self._launched[key] += 1
        return self._launched[key] > launched_first(self._dtype)

    def _recorded(self, key: _Key, batch: Batch) -> Tensor | None:
        try:
            made = Recording(self._compute, self._backend, batch, self._workspace)
        except UnrecordableError as error:
            self._refuse(batch.is_decode, 1, str(error))
            return None
        if made.nbytes > MOST_BYTES:
            why = f"a step takes {bytes_text(made.nbytes)}"
            self._refuse(batch.is_decode, batch.num_tokens, why)
        else:
            self._recordings[key] = made
            while self.nbytes > MOST_BYTES:
                del self._recordings[next(iter(self._recordings))]
        return made.logits

    def _refuse(self, is_decode: bool, num_tokens: int, why: str) -> None:
        """Steps of so many tokens, and of more."""
        self._most[is_decode] = min(self._most[is_decode], num_tokens - 1)
        self.problem = why

    def __len__(self) -> int:
        return len(self._recordings)

    @property
    def nbytes(self) -> int:
        return sum(recording.nbytes for recording in self._recordings.values())


def can_record(model: nn.Module) -> bool:
    """Whether what a step of `model` computes is the same for all tokens."""
    return not any("experts" in module._modules for module in model.modules())

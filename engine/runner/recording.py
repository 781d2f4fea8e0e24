"""Steps on the CPU, recorded and replayed: those that decode, once for each number of requests, and
those with prompts or drafts.

Between its matmuls a step of a small model spends its time in Python: modules, checks, views. With
Qwen3-0.6B that was 6.4 of 22.4 ms per token in int4, and 17 of 83 ms of a prompt of 32 tokens in
bfloat16. A recording keeps the calls that compute it (`engine.runner.recorder`), those of compiled
code without Python between them (`engine.kernels.cpu.replay`).

    2nd step of n requests that decode; a prompt of n tokens that comes again and again
                 launched, and listened to
    later ones   [ inputs copied ] [ call | compiled calls | ... ] [ logits ]

Where the same code multiplies rows however many there are, steps of any requests are recorded when
a model is loaded: a compiled call computes as many of a recording's tokens as there are, and those
for requests with few tokens and with many follow each other. Other calls compute all tokens; where
a step has many such calls, a recording serves few numbers of tokens. A mixture of experts is not
recorded: Python may choose its experts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionBackend, before_layer
from engine.batch.batch import Batch, Span, pack, with_room
from engine.batch.transfer import CPU, Staging, capacity_for
from engine.errors import is_out_of_memory
from engine.kernels.cpu.check import library
from engine.kernels.cpu.dequantized import MANY_ROWS
from engine.kernels.cpu.replay import Counts
from engine.kernels.cpu.workspace import Workspace
from engine.kernels.registry import choose_linear
from engine.runner.recorder import UnrecordableError, is_compiled, record
from engine.units import bytes_text

MOST_ROWS = 64
"""Of a recorded decode step: beyond, Python takes a small part of it and memory grows."""

MOST_TOKENS = 128
"""Of one request in a step that is recorded because it came again."""

MOST_BYTES = 64 * 2**20
"""Of all recordings of a model but those that are prepared, without their workspace; the one that
was used least recently goes first. A step that needs more is not recorded."""

PREPARED_BYTES = 128 * 2**20
"""At most, of the memory of a step that is recorded when a model is loaded, which is the system's
until a prompt needs it. 104 MB for 2,048 tokens of Qwen3-0.6B."""

SHORT_SIZES, LONG_SIZES = (31, 61, 89, 113, 127), (257, 521, 1031, 2053)
"""Tokens of these steps, below MANY_ROWS and from there on. Primes: a number of rows that is no
multiple of one is that of sampled rows."""

_NEAR = 32  # tokens fewer than those of a recording with many calls that compute them all
_MANY_CALLS = 32  # that are not compiled

_Key = tuple[int, int, bool]  # tokens, sampled rows, and whether they decode


class Recording:
    """The step of one batch, as `compute` did it: its logits, and the same for batches of as many
    tokens and sampled rows, or fewer. workspace: of its compiled calls.
    is_dry: its own logits are not computed. other: a recording whose memory serves this one as
    well: its logits are good until either is replayed. Raises UnrecordableError."""

    def __init__(
        self,
        compute: Callable[[Batch], Tensor],
        backend: AttentionBackend,
        batch: Batch,
        workspace: Workspace,
        is_dry: bool = False,
        other: Recording | None = None,
    ) -> None:
        self._backend, self._workspace = backend, workspace
        self.num_tokens, self.num_rows = batch.num_tokens, len(batch.logits_indices)
        self._counts = Counts(self.num_tokens, self.num_rows)  # of a replay
        self._staging = Staging(CPU, capacity_for(batch.num_tokens))
        staged = self._staging.copy(batch)
        backend.begin_step(staged)
        self.memory: list[Tensor]
        shared: Sequence[Tensor] = () if other is None else other.memory
        self.logits, self._calls, self.memory = record(
            lambda: compute(staged), backend, workspace, self._counts, is_dry, shared
        )
        self.nbytes = sum(one.nbytes for one in self.memory)
        # calls that compute all tokens, however few there are
        others = [one for one in self._calls if not is_compiled(one)]
        self.num_others = sum(function is not before_layer for function, _, _ in others)
        self.takes_fewer_rows = bool(self._calls) and is_compiled(self._calls[-1])

    def replay(self, batch: Batch) -> Tensor:
        """Logits [R, vocab], until the next call."""
        rows = len(batch.logits_indices)
        self._counts.tokens.value, self._counts.sampled.value = batch.num_tokens, rows
        batch = with_room(batch, self.num_tokens, self.num_rows)
        self._backend.begin_step(self._staging.copy(batch))
        backend = self._backend
        self._workspace.prepare(
            backend.scratch_bytes() if isinstance(backend, CPUAttention) else 0
        )
        for function, args, kwargs in self._calls:
            function(*args, **kwargs)
        return self.logits[:rows] if rows < self.num_rows else self.logits


def launched_first(dtype: torch.dtype) -> int:
    """Prompts of a length before one is recorded, by a model in `dtype`: many lengths never come
    again. About as many as it takes for replays to save what listening costs. In bfloat16:
    Qwen3-0.6B in int8, 128 tokens, 45 ms, then 130 instead of 141; the starter model, 48 tokens,
    5 ms, then 3.1 instead of 5.2. In float32, whose steps have more and longer calls: the starter
    model, 24 tokens, 12 ms, then 4.8 instead of 6.4."""
    return 2 if dtype is torch.bfloat16 else 8


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
        self._prepared: list[Recording] = []  # of prompts, the shortest first
        self.problem = ""

    @torch.inference_mode()
    def prepare(self, block_size: int, max_model_len: int) -> None:
        """Record steps of prompts before there is one, if all that attention computes is recorded
        with them. Writes no keys and values."""
        *shorter, short = SHORT_SIZES
        if not (made := self._dry(short, block_size)):
            return
        if made[0].num_others > _MANY_CALLS:
            for size in shorter:
                self._prepared += self._dry(size, block_size)
            self._prepared += made
            return
        self._prepared = made
        each, longest = (made[-1].nbytes - made[-1].logits.nbytes) / short, short
        for size in LONG_SIZES:
            is_small = size * each <= PREPARED_BYTES and self._are_alike(MANY_ROWS, size)
            if longest < max_model_len and is_small:
                longest = size
        if longest > short:
            self._prepared += self._dry(longest, block_size)

    def _dry(self, size: int, block_size: int) -> list[Recording]:
        """Of any step of up to `size` tokens, one for each way in which sampled rows are computed;
        where more than compiled calls follow upon these, for one row and for none."""
        backend = self._backend
        if not self._are_alike(size - 1, size) or not isinstance(backend, CPUAttention):
            return []

        def one(rows: int, other: Recording | None) -> Recording:
            blocks = [0] * -(-size // block_size)
            batch = pack([Span([0] * size, 0, blocks, rows)], block_size)
            batch = dataclasses.replace(batch, positions=torch.zeros_like(batch.positions))
            return Recording(self._compute, backend, batch, self._workspace, True, other)

        try:
            with backend.for_any_step() as can_be_any:
                if not can_be_any:
                    return []
                shorter = self._prepared[-1] if self._prepared else None
                many = one(most := min(MOST_ROWS, size - 1), shorter)
                if many.takes_fewer_rows:
                    ways = [n for n in range(1, most) if self._product(n) != self._product(n + 1)]
                    return [*(one(rows, many) for rows in ways), many]
                alone = one(1, shorter)
                return [alone, one(0, alone)]
        except UnrecordableError as error:
            self._refuse(False, 1, str(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise  # it may suffice for other steps
        return []

    def _product(self, rows: int) -> str:
        return choose_linear(self._dtype, "cpu", rows)

    def _are_alike(self, tokens: int, others: int) -> bool:
        """Whether the same code computes a row of a step of so many tokens, without a look at the
        other rows."""
        compiled = library()
        has_tiles = compiled is not None and compiled.has_tiles and self._dtype is torch.bfloat16
        if not has_tiles or (tokens < MANY_ROWS) != (others < MANY_ROWS):
            return False
        used = {self._product(tokens), self._product(others)}
        return used in ({"tiles"}, {"native"})

    @property
    def summary(self) -> str:
        """Which steps with prompts are replayed."""
        if self._prepared:
            most = self._prepared[-1].num_tokens
            most -= most % MOST_ROWS if most in LONG_SIZES else 0  # a round number
            return f"Replayed for up to {most:,} tokens"
        return f"Replayed for up to {self._most[False]} tokens of one request"

    def fits(self, batch: Batch) -> bool:
        """Whether a step may get a recording of its own."""
        is_alike = batch.is_decode or batch.num_requests == 1
        return is_alike and batch.num_tokens <= self._most[batch.is_decode]

    @torch.inference_mode()
    def execute(self, batch: Batch) -> Tensor | None:
        """Logits [R, vocab]; None of a batch that is to be launched."""
        key, fits = (batch.num_tokens, len(batch.logits_indices), batch.is_decode), self.fits(batch)
        if fits and (found := self._recordings.pop(key, None)) is not None:
            self._recordings[key] = found
            return found.replay(batch)
        prepared = self._serving(batch)
        if fits and (batch.is_decode or prepared is None) and self._pays(key, batch.is_decode):
            return self._recorded(key, batch)
        return None if prepared is None else prepared.replay(batch)

    def _serving(self, batch: Batch) -> Recording | None:
        """The prepared recording for a step, the smallest."""
        return next((one for one in self._prepared if self._serves(one, batch)), None)

    def _serves(self, made: Recording, batch: Batch) -> bool:
        """Whether `made` computes the same as the launched step, and little more."""
        size, rows = batch.num_tokens, len(batch.logits_indices)
        if size > made.num_tokens or rows > made.num_rows:
            return False
        if not self._are_alike(size, made.num_tokens):
            return False
        if made.num_others > _MANY_CALLS and made.num_tokens - size >= _NEAR:
            return False
        are_alike = rows == 0 or self._product(rows) == self._product(made.num_rows)
        return rows == made.num_rows or (made.takes_fewer_rows and are_alike)

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
        return len(self._recordings) + len(self._prepared)

    @property
    def nbytes(self) -> int:
        return sum(recording.nbytes for recording in self._recordings.values())


def can_record(model: nn.Module) -> bool:
    """Whether what a step of `model` computes is the same for all tokens."""
    return not any("experts" in module._modules for module in model.modules())

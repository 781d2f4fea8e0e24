"""A text as tokens, and the hidden states that a model computes for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.batch.batch import Span, pack
from engine.errors import InferdeckError
from engine.evaluate.head import Head
from engine.evaluate.task import Cancelled, check
from engine.evaluate.windows import Cut, Window
from engine.llm_engine import LLMEngine
from engine.units import bytes_text


class StateFile:
    """A temporary file of rows [hidden] in one dtype, appended once and read back bit by bit in any
    order. It has no name and is gone when closed, however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="inferdeck-states-")  # noqa: SIM115 - closed by close
        self._width = 0
        self._dtype = torch.float32

    def append(self, states: Tensor) -> None:
        """Add the rows of states [R, hidden]."""
        self._width, self._dtype = states.shape[1], states.dtype
        plain = states.detach().contiguous().cpu().view(torch.uint8)
        try:
            self._file.write(plain.numpy().data)
        except OSError as error:
            raise InferdeckError(
                f"Cannot write the reference hidden states ({bytes_text(self._file.tell())} "
                f"so far) to {tempfile.gettempdir()}: {error.strerror}.",
                "Free up space there, evaluate fewer tokens (max_tokens), or set TMPDIR to "
                "another disk.",
            ) from error

    def read(self, start: int, end: int) -> Tensor:
        """Rows start..end-1."""
        row_bytes = self._width * self._dtype.itemsize
        self._file.seek(start * row_bytes)
        data = bytearray(self._file.read((end - start) * row_bytes))
        return torch.frombuffer(data, dtype=self._dtype).view(end - start, self._width)

    def close(self) -> None:
        self._file.close()


class EncodedText(NamedTuple):
    """Tokens of a text, and the tokenizer's prefix (BOS). `counts`: for each token whether it is
    scored (None: all are); the others are context only."""

    token_ids: Sequence[int]
    prefix: Sequence[int]
    cut: Cut
    counts: Sequence[bool] | None = None

    @property
    def windows(self) -> list[Window]:
        return list(self.cut.windows(len(self.token_ids)))

    @property
    def scored(self) -> list[int]:
        """Positions of the tokens that are scored, in the order in which they are read."""
        return self.scored_within(0 if self.prefix else 1, len(self.token_ids))

    def scored_within(self, start: int, end: int) -> list[int]:
        return [i for i in range(start, end) if self.counts is None or self.counts[i]]


def encode_parts(
    text: str, spans: Sequence[tuple[int, int]], encode: Callable[[str], list[int]]
) -> tuple[list[int], list[bool]]:
    """(tokens, whether each is in one of the spans) of a text. `spans`: characters start..end-1,
    in order and apart; their ends are ends of tokens, because the parts are encoded one by one."""
    ids: list[int] = []
    counts: list[bool] = []
    done = 0
    for start, end in (*spans, (len(text), len(text))):
        for part, is_scored in ((text[done:start], False), (text[start:end], True)):
            found = encode(part) if part else []
            ids += found
            counts += [is_scored] * len(found)
        done = end
    return ids, counts


def split_specials(ids: Sequence[int], empty: Sequence[int]) -> tuple[list[int], list[int]]:
    """(prefix, tokens of the text) of an encoded text, where `empty` is the empty text encoded:
    what a tokenizer puts before every text (BOS) and after it (EOS, which is left out)."""
    same = 0
    while same < min(len(empty), len(ids)) and empty[same] == ids[same]:
        same += 1
    rest, suffix = list(ids[same:]), list(empty[same:])
    if suffix and rest[-len(suffix) :] == suffix:
        rest = rest[: -len(suffix)]
    return list(ids[:same]), rest


def read_states(
    engine: LLMEngine,
    head: Head,
    text: EncodedText,
    progress: Callable[[int, int], None],
    cancelled: Cancelled,
) -> Iterator[Tensor]:
    """The states [R, hidden] that predict the scored tokens, in the order of the text, as many at
    a time as one chunk gives. No request may be in the engine, and no prefix cached."""
    chunk, block_size = engine.config.token_budget, engine.config.block_size
    total, done = len(text.scored), 0
    progress(0, total)
    for window in text.windows:
        # the last token predicts nothing that is scored here
        ids = [*text.prefix, *text.token_ids[window.start : window.end - 1]]
        # the row of a token is that of the token before it
        before = len(text.prefix) - window.start - 1
        rows = [before + i for i in text.scored_within(window.first_scored, window.end)]
        for begin in range(0, len(ids), chunk):
            check(cancelled)
            part = ids[begin : begin + chunk]
            blocks = range(-(-(begin + len(part)) // block_size))
            batch = pack([Span(part, begin, blocks, num_rows=1)], block_size)
            engine.runner.execute_eagerly(batch)  # the head listens
            states = head.take_states()
            useful = [row - begin for row in rows if begin <= row < begin + chunk]
            if useful:
                yield states[useful]
                done += len(useful)
            progress(done, total)

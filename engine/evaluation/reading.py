"""A model reads a text: window by window through the paged cache, chunk by chunk.

window   p t t t t t t t t t t t     p: the tokenizer's beginning (BOS), t: tokens of the text
chunks   [-------][-------][---]     as a long prompt is computed: the cache's dtype counts
rows         x x x x x x x x x x     states that predict the scored tokens
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from engine.batch import Span, pack
from engine.evaluation.head import Head
from engine.evaluation.stages import Cancelled, check
from engine.evaluation.windows import Cut, Window
from engine.llm_engine import LLMEngine


class EncodedText(NamedTuple):
    """Tokens of a text, and what the tokenizer puts before them. `counts`: of each token whether it
    is scored (None: all are); the others are read as context alone."""

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
    """(tokens, whether each lies in one of the spans) of a text. `spans`: characters start..end-1,
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
    chunk = engine.config.max_num_batched_tokens
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
            states = _compute(engine, head, ids[begin : begin + chunk], begin)
            useful = [row - begin for row in rows if begin <= row < begin + chunk]
            if useful:
                yield states[useful]
                done += len(useful)
            progress(done, total)


def _compute(engine: LLMEngine, head: Head, ids: Sequence[int], start: int) -> Tensor:
    """States [T, hidden] of tokens that stand at positions from `start` on in blocks 0, 1, ..."""
    block_size = engine.config.block_size
    blocks = range(-(-(start + len(ids)) // block_size))
    engine.runner.execute(pack([Span(ids, start, blocks, num_rows=1)], block_size))
    return head.take_states()

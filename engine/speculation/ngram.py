"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the latest n-gram."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.scheduling.request import Grant
from engine.speculation.proposer import NOTHING, Proposal, Proposer


class NgramProposer(Proposer):
    """Drafts from the request's own tokens (Saxena 2023, "prompt lookup decoding").

    The longest suffix of `shortest` to `longest` tokens that occurred before proposes the tokens
    after its most recent occurrence. Needs no model and hardly any memory.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._texts: dict[str, _Text] = {}
        self.update(config)

    def update(self, config: EngineConfig) -> None:
        self._longest = config.prompt_lookup_max
        self._shortest = min(config.prompt_lookup_min, self._longest)

    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        return [self._propose(grant) for grant in grants]

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def _propose(self, grant: Grant) -> Proposal:
        request = grant.request
        text = self._texts.setdefault(request.request_id, _Text())
        tokens = text.follow(request.token_ids)
        found = continuation(tokens, grant.num_draft_places, self._shortest, self._longest)
        return Proposal(tuple(found)) if found else NOTHING


class _Text:
    """A request's tokens as a growing array: converting them in every step would cost more than the
    search."""

    def __init__(self) -> None:
        self._tokens = np.empty(0, dtype=np.int32)
        self._length = 0

    def follow(self, token_ids: list[int]) -> NDArray[np.int32]:
        count = len(token_ids)
        if count > len(self._tokens):
            grown = np.empty(max(256, 2 * count), dtype=np.int32)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : count] = token_ids[self._length :]
        self._length = count
        return self._tokens[:count]


def continuation(
    tokens: NDArray[np.int32], count: int, shortest: int, longest: int
) -> list[int]:
    """Up to `count` tokens that followed the longest repeated suffix of `tokens`; [] if no suffix
    of `shortest` tokens or more occurred before. An occurrence that reaches into the suffix goes on
    with the proposal itself, so that a period is continued however short it is."""
    end = len(tokens)
    if count < 1 or end < shortest + 1:
        return []
    ends = np.flatnonzero(tokens[: end - 1] == tokens[end - 1])  # where an occurrence may end
    best = ends if shortest <= 1 else ends[:0]
    for length in range(2, min(longest, end - 1) + 1):
        ends = ends[ends >= length - 1]
        ends = ends[tokens[ends - (length - 1)] == tokens[end - length]]
        if not len(ends):
            break
        if length >= shortest:
            best = ends
    if not len(best):
        return []
    start = int(best[-1]) + 1
    text = tokens[start:].tolist()
    period = len(text)
    return [text[i % period] for i in range(count)]

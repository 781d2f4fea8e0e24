"""`replay`: a recorded load at other settings, on a simulated engine. No torch."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from engine.errors import ConfigError
from engine.sampling_params import SamplingParams
from engine.simulate.engine import SimulatedEngine
from engine.simulate.step_time import StepTimes
from engine.simulate.traffic import Load, Sent
from engine.snapshot import EngineSnapshot

LOOK_S = 0.5
"""Between two snapshots."""


def replay(
    like: EngineSnapshot, times: StepTimes, load: Load, changes: Mapping[str, Any]
) -> Iterator[EngineSnapshot]:
    """Snapshots of the load's time, on its clock, from an engine like that of `like` with changed
    settings. It begins with the requests that were in flight, and the prefixes that were cached.
    Raises ConfigError for a setting that cannot be predicted, ContextLengthError for a request that
    no longer fits."""
    if like.config.speculative_method != "off":
        raise ConfigError("Speculative decoding cannot be predicted.", "Turn it off first.")
    engine = SimulatedEngine(like, times, **changes)
    engine.sleep(load.start)
    prompts = _Prompts(load)
    for tokens in prompts.cached_before():
        engine.remember(tokens)
    in_flight = [sent for sent in load.requests if sent.num_done]
    coming = [sent for sent in load.requests if not sent.num_done]
    for sent in in_flight:
        engine.resume(
            prompts.of(sent), _params(sent), sent.num_done, sent.arrival.time, sent.last_token
        )
    if load.concurrency is None:
        due = [sent.arrival.time for sent in coming]
        following = iter([(0, sent) for sent in coming])
    else:  # the same requests again and again
        due = [load.start] * (load.concurrency - len(in_flight))
        following = ((n, sent) for n in itertools.count() for sent in coming or in_flight)
    look = load.start + LOOK_S
    while (now := engine.now()) < load.end:
        while due and due[0] <= now:
            number, sent = next(following)
            engine.add_request(prompts.of(sent, number), _params(sent), heapq.heappop(due))
        until = min(*due[:1], look, load.end)
        if engine.has_unfinished:
            engine.expect(until)
            ended = sum(event.finish_reason is not None for event in engine.step())
            if load.concurrency is not None:
                for _ in range(ended):
                    heapq.heappush(due, engine.now() + load.gap_s)
        else:
            engine.sleep(until - now)
        if engine.now() >= look:
            yield engine.snapshot()
            look = engine.now() + LOOK_S
    yield engine.snapshot()


def _params(sent: Sent) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=sent.num_output, ignore_eos=True)


class _Prompts:
    """Token ids in place of the prompts, which are not recorded: alike as far as their prefixes
    are, and otherwise all different."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._first: dict[tuple[int, int], int] = {}  # token of a block, by round and number
        self._free = 0
        uses = Counter(n for sent in load.requests for n in set(sent.arrival.prefix))
        self._shared = {number for number, count in uses.items() if count > 1}
        for sent in load.requests:
            self._shared.update(_cached(sent))

    def of(self, sent: Sent, number: int = 0) -> list[int]:
        """In round `number` of the load: what no two requests share is new in each."""
        prefix, size = sent.arrival.prefix, sent.arrival.block_size
        tokens: list[int] = []
        for one in prefix:
            first = self._block(0 if one in self._shared else number, one, size)
            tokens += range(first, first + size)
        rest = sent.arrival.num_prompt_tokens - len(tokens)
        return tokens + list(range(self._take(rest), self._free))

    def cached_before(self) -> Iterator[list[int]]:
        """Cached prefixes that no request of the load has computed before."""
        computed: set[int] = set()
        for sent in self._load.requests:
            cached = _cached(sent)
            if not computed.issuperset(cached):
                yield self.of(sent)[: len(cached) * sent.arrival.block_size]
            computed.update(sent.arrival.prefix)

    def _block(self, number: int, one: int, size: int) -> int:
        if (number, one) not in self._first:
            self._first[number, one] = self._take(size)
        return self._first[number, one]

    def _take(self, count: int) -> int:
        self._free += count
        return self._free - count


def _cached(sent: Sent) -> tuple[int, ...]:
    return sent.arrival.prefix[: sent.num_cached // sent.arrival.block_size]

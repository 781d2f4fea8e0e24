"""Measures the steps that a prediction needs: a short load of all batch sizes, contexts and budgets
that a workload and its settings can bring about.

    decodes    1, 2, 4, ... requests at once, whose prompts are cached but for their last tokens:
               each its own, and all the same
    prompts    new ones, with every token budget; some of them while others decode
    workload   its own prompts, with what they share: one after the other, and while others decode
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from app.bench.load import Clock, Pace, run_load
from app.bench.runner import Plan, vocabulary_of, warm_batches
from app.bench.workload import BenchRequest
from engine.config import EngineConfig
from engine.simulate.engine import Encode, as_it_is
from engine.simulate.step_time import Measured, measured

if TYPE_CHECKING:
    from app.bench.runner import SettableEngine

LEAST_S = 4.0
MOST_ROUNDS = 3
OUTPUT = 12  # tokens of a reply: steps of one batch size
PROMPTS = 2  # new ones, for each budget
JOINING = 4  # new ones whose prompts are computed while others decode
ALONE = 3  # prompts of the workload, one after the other
SMALL_BUDGET = 64

CHANGED = (
    "block_size", "enable_prefix_caching", "batching", "enable_chunked_prefill", "max_num_seqs",
    "max_num_batched_tokens",
)  # fmt: skip
"""Settings that a calibration changes and puts back."""

Progress = Callable[[str, int, int], None]


class Request(NamedTuple):
    """Of the workload. output: tokens of the reply."""

    prompt: Sequence[int]
    output: int


@dataclass(frozen=True)
class Calibration:
    """Steps with blocks of each size, and seconds that they took."""

    samples: list[Measured]
    seconds: float


def calibrate(
    engine: SettableEngine,
    plan: Plan,
    changes: Sequence[Mapping[str, Any]] = (),
    encode: Encode = as_it_is,
    progress: Progress = lambda stage, done, total: None,
    least_s: float = LEAST_S,
    clock: Clock = Clock(),  # noqa: B008 - immutable
) -> Calibration:
    """For a plan on an engine without requests. changes: the settings that are to be predicted;
    those of the engine are put back. encode: the prompts of the workload to token ids. A
    measurement of less than `least_s` is repeated."""
    before: EngineConfig = engine.config
    after = [before.replace(**change) for change in changes]
    sizes = {config.block_size for config in (before, *after)}
    sizes = {min(sizes), before.block_size, max(sizes)}
    batch = max(config.max_num_seqs for config in (before, *after))
    batch = min(batch, plan.pace.concurrency or batch, plan.workload.num_requests)
    budgets = {config.token_budget for config in (before, *after)} | {SMALL_BUDGET}
    workload = plan.workload.for_model(engine.model_info.has_chat_template)
    vocabulary = vocabulary_of(engine)
    variant = next(iter(workload.variants))
    context = min(engine.model_info.max_model_len, engine.plan.num_blocks * before.block_size)
    samples: list[Measured] = []
    began = clock.now()
    rounds, index, done = MOST_ROUNDS, 0, 0
    with _restored(engine, before):
        while index < rounds:
            salt = f"calibration-{index}"
            requests = [
                Request(encode(one.prompt or one.prompt_token_ids), one.output_len)
                for one in workload.requests(variant, vocabulary, plan.seed, salt)
            ]
            loads = list(_loads(requests, batch, sorted(budgets), context, vocabulary, salt))
            for size in sorted(sizes):
                engine.reconfigure(
                    block_size=size, enable_prefix_caching=True, batching="continuous",
                    enable_chunked_prefill=True, max_num_seqs=batch,
                    max_num_batched_tokens=before.max_num_batched_tokens,
                )  # fmt: skip
                if len(sizes) > 1 or not index:  # a new KV cache, in no processor's cache
                    replayed, evicted = _Replayed(), 0.0
                    run_load(engine, warm_batches(1, vocabulary), Pace(), clock=clock)
                for budget, chosen, pace in loads:
                    progress("calibrating", done, rounds * len(sizes) * len(loads))
                    done += 1
                    if budget is not None:
                        engine.reconfigure(max_num_batched_tokens=budget)
                    run = run_load(engine, chosen, pace, clock=clock)
                    found = measured(
                        run.observed.steps, size, engine.plan.num_blocks, evicted=evicted
                    )
                    samples += replayed.of(found)
                    evicted = found[-1].work.evicted_next if found else evicted
            index += 1
            if clock.now() - began >= least_s:
                rounds = index
    return Calibration(samples, clock.now() - began)


class _Replayed:
    """Leaves out steps that are slower than later ones: on a CPU, decode steps of a number of
    requests are launched until two of them come in a row, and listened to then
    (`engine.runner.recording`)."""

    def __init__(self) -> None:
        self._recorded: set[int] = set()
        self._last = 0

    def of(self, found: Iterable[Measured]) -> Iterator[Measured]:
        for one in found:
            count = one.work.requests
            if one.work.chunks or count in self._recorded:
                yield one
            elif count == self._last:
                self._recorded.add(count)
            if not one.work.chunks:
                self._last = count


def _loads(
    requests: Sequence[Request],
    batch: int,
    budgets: Sequence[int],
    context: int,
    vocabulary: list[int],
    salt: str,
) -> Iterator[tuple[int | None, list[BenchRequest], Pace]]:
    """Token budget (None: as before), requests, and how they are sent."""
    rng = random.Random(salt)
    longest = max(len(request.prompt) + request.output for request in requests)
    texts = [rng.choices(vocabulary, k=min(longest, context - OUTPUT - 1)) for _ in range(batch)]

    def sent(prompt: Sequence[int]) -> BenchRequest:
        return BenchRequest(tuple(prompt), OUTPUT, OUTPUT)

    def new(count: int) -> list[BenchRequest]:
        """With prompts that are not cached."""
        lengths = [len(request.prompt) for request in rng.choices(requests, k=count)]
        return [sent(rng.choices(vocabulary, k=length)) for length in lengths]

    def cached(texts: Sequence[list[int]], count: int) -> list[BenchRequest]:
        """Somewhere in their replies."""
        found = []
        for request, text in zip(rng.choices(requests, k=count), texts, strict=False):
            length = len(request.prompt) + rng.randrange(request.output)
            found.append(sent(text[:length]))
        return found

    at_once = Pace()
    for budget in budgets:
        yield budget, new(PROMPTS), at_once
    yield max(budgets), [BenchRequest(tuple(text), 1, 1) for text in texts], at_once
    for count in batch_sizes(batch):
        yield None, cached(texts, count), at_once
        if count > 1:  # KV that several requests read stays in the CPU's cache
            yield None, cached([texts[0]] * count, count), at_once
    own = [sent(request.prompt) for request in requests[: ALONE + batch]]
    yield None, own[:ALONE], Pace(1)
    if batch > 1:
        lengths = range(2, 2 * min(batch, JOINING + 1), 2)
        for joining in (new(batch), own[ALONE:]):
            prompts = (request.prompt_token_ids for request in new(len(lengths)))
            short = list(map(BenchRequest, prompts, lengths, lengths))
            yield None, short + joining, Pace(batch)


def batch_sizes(most: int) -> list[int]:
    """Powers of two, and `most`."""
    return [*(1 << n for n in range(most.bit_length()) if 1 << n < most), most]


@contextmanager
def _restored(engine: SettableEngine, config: EngineConfig) -> Iterator[None]:
    try:
        yield
    finally:
        engine.reconfigure(**{name: getattr(config, name) for name in CHANGED})

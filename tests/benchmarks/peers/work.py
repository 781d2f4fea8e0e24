"""What the engines are asked to do, and what this one is to reach."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from engine.telemetry.step_cost import Counts

BITS = (16, 8, 4)
TTFT, ITL, OUTPUT = "ttft_ms", "itl_ms", "tokens_per_s"
DECODE_OF_BANDWIDTH = {16: 0.8, 8: 0.65, 4: 0.5}
PROMPT_OF_RATE = 0.7
ITL_16_BITS = 0.95
"""In 16 bits a peer is at the memory's limit too: either this ratio, or the bandwidth's share."""


@dataclass(frozen=True, slots=True)
class Work:
    """`num_requests` prompts, `num_output` tokens each. shared: tokens that all prompts begin with;
    these prompts come one after the other, and the first is not counted. measure: what engines are
    compared by. goal: ours over the best peer's, at least for rates and at most for times."""

    name: str
    num_input: int
    num_output: int
    num_requests: int
    measure: str
    goal: float
    shared: int = 0

    @property
    def is_rate(self) -> bool:
        return self.measure == OUTPUT

    def prompts(self, vocab_size: int, salt: object) -> list[list[int]]:
        """Seeded token ids away from both ends of the vocabulary, where special tokens are. No two
        salts or works share a prefix."""
        rng = random.Random(f"{self.name} {salt}")
        usable = range(300, vocab_size - 1000)
        prefix = rng.choices(usable, k=self.shared)
        tails = self.num_input - self.shared
        return [prefix + rng.choices(usable, k=tails) for _ in range(self.num_requests)]


WORKS = (
    Work("decode-1", 128, 64, 1, ITL, 0.8),
    Work("decode-8", 128, 64, 8, OUTPUT, 1.3),
    Work("decode-16", 128, 64, 16, OUTPUT, 1.3),
    Work("decode-32", 128, 64, 32, OUTPUT, 1.3),
    Work("prompt-128", 128, 1, 1, TTFT, 0.8),
    Work("prompt-1024", 1024, 1, 1, TTFT, 0.8),
    Work("prompt-4096", 4096, 1, 1, TTFT, 0.8),
    Work("shared-prefix", 800, 1, 8, TTFT, 0.7, shared=768),
    Work("long-1", 4096, 64, 1, OUTPUT, 1.2),
    Work("long-4", 4096, 64, 4, OUTPUT, 1.2),
)
MAX_LEN = max(work.num_input + work.num_output for work in WORKS)
MAX_REQUESTS = max(work.num_requests for work in WORKS)
MAX_TOKENS = max(work.num_requests * (work.num_input + work.num_output) for work in WORKS)
"""In the KV cache at once."""


class Steps(NamedTuple):
    """The steps that a work needs at least: one over its prompts, then one per further token."""

    prompt: Counts
    decode: tuple[Counts, ...]

    @classmethod
    def of(cls, work: Work, num_output: int) -> Steps:
        count = 1 if work.shared else work.num_requests
        new = work.num_input - work.shared
        pairs = new * work.num_input - new * (new - 1) // 2
        prompt = Counts(count * new, count, count * work.num_input, count * pairs)
        contexts = range(work.num_input + 1, work.num_input + num_output)
        decode = tuple(Counts(count, count, count * c, count * c) for c in contexts)
        return cls(prompt, decode)


def figures(work: Work, runs: Sequence[Sequence[Sequence[float]]]) -> dict[str, float]:
    """Of the times of every token, by run and request: means in milliseconds, and tokens per second
    of the whole run. A shared prefix has a run for each request."""
    counted = [times for run in runs[work.shared > 0 :] for times in run]
    gaps = [b - a for times in counted for a, b in pairwise(times)]
    found = {TTFT: 1000 * sum(times[0] for times in counted) / len(counted)}
    if gaps:
        found[ITL] = 1000 * sum(gaps) / len(gaps)
        span = max(times[-1] for times in counted)
        found[OUTPUT] = sum(map(len, counted)) / span
    return found

"""Rounds in which the engines take turns, and what follows from their medians."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.benchmarks.peers.floors import of_floor
from tests.benchmarks.peers.peer import OURS
from tests.benchmarks.peers.work import (
    DECODE_OF_BANDWIDTH,
    ITL,
    ITL_16_BITS,
    OUTPUT,
    PROMPT_OF_RATE,
    TTFT,
    Work,
    figures,
)
from tests.benchmarks.report import Goal, at_least, at_most, print_table

SETTLE_S = 0.3
"""Before a run: threads of the engine before spin for a while before they sleep."""
WARM_UP_OUTPUT = 2
FILLING = Work("filling", 4096, 1, 1, TTFT, 0.0)
TITLES = {TTFT: "TTFT, ms", ITL: "ITL, ms", OUTPUT: "tokens/s"}
Figures = dict[str, float]


class Runs(Protocol):
    name: str

    def run(self, prompts: Sequence[Sequence[int]], num_output: int) -> list[list[float]]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One work in one precision: medians by engine, ours over theirs, and the floor's fraction."""

    work: Work
    bits: int
    rounds: Mapping[str, Sequence[Figures]]
    medians: Mapping[str, Figures]
    of_floor: Mapping[str, float]

    @property
    def ratios(self) -> dict[str, float]:
        """Ours over theirs, of the work's measure."""
        ours = self.medians[OURS][self.work.measure]
        return {
            name: ours / found[self.work.measure]
            for name, found in self.medians.items()
            if name != OURS
        }

    def best_peer(self) -> str | None:
        choose: Callable[..., str] = min if self.work.is_rate else max
        return choose(self.ratios, key=self.ratios.__getitem__) if self.ratios else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "measure": self.work.measure, "medians": dict(self.medians),
            "ratios": self.ratios, "best_peer": self.best_peer(),
            "of_floor": dict(self.of_floor), "rounds": dict(self.rounds),
        }  # fmt: skip


def fill_caches(engines: Sequence[Runs], vocab_size: int, num_tokens: int) -> None:
    """Have every engine write to its whole KV cache once: memory that a process touches for the
    first time costs a virtual machine more than the prompt that needs it (a cache of 117 MB, the
    K and V of 1,024 tokens: 150 to 200 ms, with pages of 4 KB and of 2 MB alike)."""
    for engine in engines:
        print(f"{engine.name}: filling its KV cache", file=sys.stderr)
        for salt in range(-(-num_tokens // FILLING.num_input)):
            engine.run(FILLING.prompts(vocab_size, salt), 1)


def compare(
    work: Work, bits: int, engines: Sequence[Runs], vocab_size: int, num_output: int, rounds: int
) -> dict[str, list[Figures]]:
    """Figures of each round by engine. Every round starts with another engine, so that a drift of
    the machine meets all of them, and has prompts of its own. One run of each goes before."""
    found: dict[str, list[Figures]] = {engine.name: [] for engine in engines}
    for index in range(-1, rounds):
        prompts = work.prompts(vocab_size, index)
        turn = index % len(engines)
        for engine in (*engines[turn:], *engines[:turn]):
            print(f"{bits} bits, {work.name}, {engine.name}, round {index}", file=sys.stderr)
            time.sleep(SETTLE_S)
            wanted = num_output if index >= 0 else min(num_output, WARM_UP_OUTPUT)
            sent = [[prompt] for prompt in prompts] if work.shared else [prompts]
            times = [engine.run(each, wanted) for each in sent]
            if index >= 0:
                found[engine.name].append(figures(work, times))
    return found


def row(
    work: Work, bits: int, rounds: Mapping[str, list[Figures]], floor: Mapping[str, float],
    num_output: int,
) -> Row:  # fmt: skip
    medians = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    }
    share = {name: of_floor(work, num_output, floor, found) for name, found in medians.items()}
    return Row(work, bits, rounds, medians, share)


def goals(found: Row) -> list[Goal]:
    """Against the best peer of the same bits, and of the floor."""
    work, bits = found.work, found.bits
    label, share = f"{bits} bits, {work.name}", found.of_floor[OURS]
    of_bandwidth = f"{DECODE_OF_BANDWIDTH[bits]:.0%} of memory bandwidth"
    result = []
    best = found.best_peer()
    if best is not None:
        ratio, name = found.ratios[best], TITLES[work.measure].partition(",")[0]
        if work.is_rate:
            text = f"{label}: {name} at least {work.goal:g}x {best}"
            result.append(at_least(text, ratio, work.goal))
        elif work.measure == ITL and bits == 16:
            text = f"{label}: {name} at most {ITL_16_BITS:g}x {best}, or {of_bandwidth}"
            met = ratio <= ITL_16_BITS or share >= DECODE_OF_BANDWIDTH[16]
            result.append(Goal(text, f"{ratio:.2f}x, {share:.0%}", met))
        else:
            text = f"{label}: {name} at most {work.goal:g}x {best}"
            result.append(at_most(text, ratio, work.goal, "x"))
    if work.measure == ITL:
        met = share >= DECODE_OF_BANDWIDTH[bits]
        result.append(Goal(f"{label}: {of_bandwidth}", f"{share:.0%}", met))
    elif work.measure == TTFT and not work.shared:
        text = f"{label}: {PROMPT_OF_RATE:.0%} of the rate of products"
        result.append(Goal(text, f"{share:.0%}", share >= PROMPT_OF_RATE))
    return result


def print_row(found: Row) -> None:
    work = found.work
    columns = [c for c in (TTFT, ITL, OUTPUT) if c in found.medians[OURS]]
    print(f"{work.name}, {found.bits} bits: {work.num_requests} x {work.num_input} tokens in")
    ratio = f"ours/theirs ({TITLES[work.measure]})"
    print_table(
        ("", *(TITLES[c] for c in columns), ratio, "of the floor"),
        [
            (
                name,
                *(f"{medians[c]:.1f}" for c in columns),
                f"{found.ratios[name]:.2f}" if name in found.ratios else "",
                f"{found.of_floor[name]:.0%}",
            )
            for name, medians in found.medians.items()
        ],
    )

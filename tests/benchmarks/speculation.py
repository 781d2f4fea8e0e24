"""Speculative decoding: what the drafts of the starter model gain, and what the engine adds to it.

    python -m tests.benchmarks.speculation [--part replay|starter ...] [--shape NAME] [--quick]

replay: a real shape with random weights and a proposer whose drafts are right with a set
probability (one token is forced by its logit bias, so what is right is known). So the engine's
overhead is measured apart from the quality of a draft: against the ideal, which is the tokens of a
round, (1 - a^(k+1)) / (1 - a), times the measured cost of a pass of one token over that of k + 1.
Also what a proposer costs that never proposes anything.

starter: the starter pair on the built-in prompts, every method against none, taking turns.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.features.chat.labels import long_prompts, suggestions_for
from app.paths import shapes_dir, starter_draft, starter_head, starter_model
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.hardware.machine import default_threads
from engine.scheduling.request import Grant
from engine.snapshot import StepRecord
from engine.speculation.proposer import NOTHING, Proposal, Proposer
from engine.speculation.statistics import expected_tokens
from tests.benchmarks.report import (
    Goal,
    arguments,
    at_least,
    at_most,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)
from tests.engine.speculation.runs import use_proposer

RIGHT, WRONG = 11, 12
DRAFTS = 4
ACCEPTANCES = (0.6, 0.8, 0.95)
GOAL_ACCEPTANCE, GOAL_SHARE, GOAL_IDLE = 0.8, 0.8, 0.02
PROMPT_TOKENS, OUTPUT_TOKENS, QUICK_OUTPUT = 128, 96, 40
PLAIN, IDLE = "off", "idle"


class Replay(Proposer):
    """Drafts that stand with probability `acceptance`, each if the one before it stood; None never
    drafts anything."""

    def __init__(self, acceptance: float | None) -> None:
        self._acceptance = acceptance
        self._random = random.Random(0)

    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        if self._acceptance is None:
            return [NOTHING] * len(grants)
        return [Proposal(tuple(self._drafts(grant.num_draft_places))) for grant in grants]

    def forget(self, request_id: str) -> None:
        pass

    def _drafts(self, count: int) -> Iterator[int]:
        for _ in range(count):
            yield RIGHT if self._random.random() < (self._acceptance or 0.0) else WRONG


@dataclass
class Runs:
    """What was measured of one way to decode, over all rounds. `passes`: seconds of the model by
    the number of tokens in a step that only decodes."""

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    passes: dict[int, list[float]] = field(default_factory=dict)
    durations: list[float] = field(default_factory=list)

    def add(self, steps: Sequence[StepRecord], tokens: int) -> None:
        decoding = [s for s in steps if all(e.kind == "decode" for e in s.entries)]
        self.seconds += sum(step.duration for step in decoding)
        self.durations += [step.duration for step in decoding]
        self.tokens += tokens
        for step in decoding:
            entries = step.entries
            count = sum(e.num_tokens + e.num_draft for e in entries)
            self.passes.setdefault(count, []).append(step.model_s)
            self.drafted += sum(e.num_draft for e in entries)
            self.accepted += sum(e.num_accepted for e in entries)
            self.rounds += sum(e.num_draft > 0 for e in entries)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        return {
            "decode_tokens_per_s": self.speed,
            "acceptance_length": 1 + self.accepted / self.rounds if self.rounds else None,
            "acceptance_rate": self.accepted / self.drafted if self.drafted else None,
            "model_ms": {n: 1e3 * statistics.median(s) for n, s in sorted(self.passes.items())},
        }


# -- replay ---------------------------------------------------------------------------------


def replay(shape: str, concurrency: int, rounds: int, output: int, threads: int) -> dict[str, Any]:
    engine = LLMEngine(
        EngineConfig(
            model=str(shapes_dir() / shape), load_format="dummy", dtype="bfloat16",
            max_model_len=1024, num_threads=threads, speculative_adaptive=False,
            enable_prefix_caching=False, num_speculative_tokens=DRAFTS,
        )
    )  # fmt: skip
    ways: dict[str, Proposer | None] = {PLAIN: None, IDLE: Replay(None)}
    ways |= {f"{a:g}": Replay(a) for a in ACCEPTANCES}
    params = SamplingParams(
        temperature=0, max_tokens=output, ignore_eos=True, logit_bias={RIGHT: 1e9}
    )
    prompts = [list(range(20 + i, 20 + i + PROMPT_TOKENS)) for i in range(concurrency)]
    runs = {name: Runs() for name in ways}
    order = list(ways.items())
    for number in range(rounds + 1):
        order = [*order[1:], order[0]]  # nobody always follows the same: the machine drifts
        for name, proposer in order:
            use_proposer(engine, proposer)
            engine.snapshot()
            outputs = engine.generate(prompts, params)
            steps = engine.snapshot().steps
            if number:  # the first round warms up
                runs[name].add(steps, sum(len(o.token_ids) - 1 for o in outputs))
            print(f"\r{shape}, {concurrency} at once: round {number} of {rounds}, {name}   ",
                  end="", file=sys.stderr, flush=True)  # fmt: skip
    print(file=sys.stderr)
    engine.shutdown()
    return summarise(runs, concurrency)


def summarise(runs: dict[str, Runs], concurrency: int) -> dict[str, Any]:
    """Figures of every way, and the speed-ups beside the ideal ones."""
    plain = runs[PLAIN]
    one = statistics.median(plain.passes[concurrency])
    found: dict[str, Any] = {name: run.as_dict() for name, run in runs.items()}
    full = concurrency * (DRAFTS + 1)
    for acceptance in ACCEPTANCES:
        run = runs[f"{acceptance:g}"]
        cost = statistics.median(run.passes[full]) / one
        ideal = expected_tokens(acceptance, DRAFTS) / cost
        gain = run.speed / plain.speed
        found[f"{acceptance:g}"] |= {
            "pass_cost": cost, "ideal_speed_up": ideal, "speed_up": gain, "share": gain / ideal,
        }  # fmt: skip
    # of medians: a drift of the machine between two runs is larger than what is looked for
    idle, own = (statistics.median(run.durations) for run in (runs[IDLE], plain))
    found[IDLE]["overhead"] = idle / own - 1
    rest = [
        statistics.median(run.durations) - statistics.median(run.passes[concurrency])
        for run in (runs[IDLE], plain)
    ]
    found[IDLE]["overhead_outside_the_model"] = (rest[0] - rest[1]) / own
    return found


def print_replay(found: dict[str, Any]) -> None:
    rows = []
    for name, figures in found.items():
        length = figures["acceptance_length"]
        rows.append(
            [
                name,
                f"{figures['decode_tokens_per_s']:.2f}",
                "-" if length is None else f"{length:.2f}",
                *(
                    f"{figures[key]:.2f}" if key in figures else "-"
                    for key in ("pass_cost", "ideal_speed_up", "speed_up", "share")
                ),
            ]
        )
    header = ["acceptance", "tokens/s", "a round", "cost of 5", "ideal", "measured", "share"]
    print_table(header, rows)


def replay_goals(found: dict[str, Any], concurrency: int) -> list[Goal]:
    share = found[f"{GOAL_ACCEPTANCE:g}"]["share"]
    text = f"of the ideal speed-up at {GOAL_ACCEPTANCE:g}, {concurrency} at once, at least 0.8"
    idle = f"an idle proposer costs at most 2 %, {concurrency} at once"
    return [
        at_least(text, share, GOAL_SHARE, ""),
        at_most(idle, 100 * found[IDLE]["overhead"], 100 * GOAL_IDLE, " %"),
    ]


# -- the starter pair -----------------------------------------------------------------------


def starter_ways(threads: int) -> dict[str, EngineConfig]:
    base = EngineConfig(
        model=str(starter_model()), max_model_len=1024, num_threads=threads,
        enable_prefix_caching=False,
    )  # fmt: skip
    draft = base.replace(speculative_method="draft_model", speculative_model=str(starter_draft()))
    head = base.replace(speculative_method="eagle3", speculative_model=str(starter_head()))
    ngram = base.replace(speculative_method="ngram")
    return {
        PLAIN: base,
        "draft model, 4 fixed": draft.replace(speculative_adaptive=False),
        "draft model, adaptive to 8": draft.replace(num_speculative_tokens=8),
        "EAGLE-3, 4 fixed": head.replace(speculative_adaptive=False),
        "EAGLE-3, adaptive to 8": head.replace(num_speculative_tokens=8),
        "n-gram, 4 fixed": ngram.replace(speculative_adaptive=False),
        "n-gram, adaptive to 8": ngram.replace(num_speculative_tokens=8),
    }


def starter(concurrency: int, rounds: int, threads: int) -> dict[str, Any]:
    texts = [text for _, text in (*suggestions_for(str(starter_model())), *long_prompts())]
    prompts = [[{"role": "user", "content": text}] for text in texts]
    params = SamplingParams(temperature=0, max_tokens=160)
    engines = {name: LLMEngine(config) for name, config in starter_ways(threads).items()}
    runs = {name: Runs() for name in engines}
    said: dict[str, list[list[int]]] = {}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            for start in range(0, len(prompts), concurrency):
                engine.snapshot()
                outputs = engine.generate(prompts[start : start + concurrency], params)
                said.setdefault(name, []).extend(o.token_ids for o in outputs)
                if number:
                    tokens = sum(len(o.token_ids) - 1 for o in outputs)
                    runs[name].add(engine.snapshot().steps, tokens)
    for engine in engines.values():
        engine.shutdown()
    found: dict[str, Any] = {}
    for name, run in runs.items():
        found[name] = run.as_dict() | {
            "speed_up": run.speed / runs[PLAIN].speed,
            "same_tokens": said[name] == said[PLAIN],
        }
    return found


def print_starter(found: dict[str, Any]) -> None:
    rows = [
        [
            name,
            f"{figures['decode_tokens_per_s']:.0f}",
            "-" if figures["acceptance_length"] is None else f"{figures['acceptance_length']:.2f}",
            "-" if figures["acceptance_rate"] is None else f"{figures['acceptance_rate']:.0%}",
            f"{figures['speed_up']:.2f}",
            "yes" if figures["same_tokens"] else "NO",
        ]
        for name, figures in found.items()
    ]
    print_table(["method", "tokens/s", "a round", "accepted", "speed-up", "same tokens"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--part", action="append", choices=("replay", "starter"))
    parser.add_argument("--shape", default="llama-3.2-1b")
    args = parser.parse_args(argv)
    parts = args.part or ["replay", "starter"]
    threads = args.num_threads or default_threads()
    rounds, output = (1, QUICK_OUTPUT) if args.quick else (3, OUTPUT_TOKENS)
    report: dict[str, Any] = context() | {"num_threads": threads}
    goals: list[Goal] = []
    with watch_others() as others:
        if "replay" in parts:
            for concurrency in (1,) if args.quick else (1, 4):
                found = replay(args.shape, concurrency, rounds, output, threads)
                print(f"{args.shape}, bfloat16, {concurrency} at once, {DRAFTS} drafts a round")
                print_replay(found)
                report[f"replay-{concurrency}"] = found
                goals += replay_goals(found, concurrency)
        if "starter" in parts:
            for concurrency in (1, 4):
                found = starter(concurrency, rounds, threads)
                print(f"starter model, {concurrency} at once")
                print_starter(found)
                report[f"starter-{concurrency}"] = found
                same = all(figures["same_tokens"] for figures in found.values())
                text = f"the same tokens by every method, {concurrency} at once"
                goals.append(Goal(text, "yes" if same else "no", same))
    report["others_share"] = others.share
    report["goals"] = [goal.as_dict() for goal in goals]
    print_goals(goals)
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

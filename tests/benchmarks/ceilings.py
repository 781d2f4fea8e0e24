"""What settings are estimated to gain, against what they gain.

    python -m tests.benchmarks.ceilings [--model DIR] [--minutes 11] [--quick]

Thirty changes of one setting on one model with random weights. Before each change a load runs, and
the estimate is made from its steps, as the window makes it. Then the same load runs changed and
unchanged in turns, so that a slow state of the machine meets both. The gain is the time before over
the time after; its noise is half the spread of the repeats. A change of weights reloads the model:
all loads run once for each precision, and unchanged before and after these.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.features.inspect.step_breakdown import StepTracker
from app.paths import shapes_dir
from engine import EngineConfig, LLMEngine, SamplingParams
from engine.telemetry.gain import GainEstimate
from engine.units import duration_text, factor_text
from tests.benchmarks.report import (
    Goal,
    arguments,
    at_least,
    at_most,
    context,
    print_goals,
    print_table,
    write_json,
)

REPEATS = 3
_SALT = itertools.count()


class Load(NamedTuple):
    """`num_requests` at once, each with a prompt of `length` tokens (`shared` of them the same),
    and `num_output` generated. `rounds`: so many for each of them, one after the other: a load that
    goes on, as in the window."""

    num_requests: int
    length: int
    num_output: int
    shared: int = 0
    rounds: int = 1

    def prompts(self, vocab_size: int) -> Iterator[list[int]]:
        """New ones at each call: nothing is found in the prefix cache but what is shared."""
        salt = next(_SALT)
        for place in range(self.num_requests * self.rounds):
            start = [_token(salt, 0, i, vocab_size) for i in range(self.shared)]
            own = range(self.length - self.shared)
            yield start + [_token(salt, place + 1, i, vocab_size) for i in own]


def _token(salt: int, place: int, index: int, vocab_size: int) -> int:
    return 1 + (salt * 7919 + place * 104_729 + index * 1_299_709) % (vocab_size - 2)


class Change(NamedTuple):
    """`setting` from its value in `base` to `value` (None: what the estimate names) under a
    load."""

    setting: str
    load: Load
    base: dict[str, Any]
    value: Any = None
    shown: str = ""  # the value in the estimate, where there are several of one setting


@dataclass
class Outcome:
    change: Change
    estimate: GainEstimate
    before: list[float]
    after: list[float]

    @property
    def gain(self) -> float:
        return statistics.median(self.before) / statistics.median(self.after)

    @property
    def noise(self) -> float:
        """Relative."""
        return sum(
            (max(times) - min(times)) / 2 / statistics.median(times)
            for times in (self.before, self.after)
        )

    @property
    def is_exceeded(self) -> bool:
        return self.gain * (1 - self.noise) > self.estimate.high

    @property
    def is_within(self) -> bool:
        """Whether the gain, give or take its noise, is in the range."""
        low = 0.0 if self.estimate.is_bound else self.estimate.low
        return not self.is_exceeded and self.gain * (1 + self.noise) >= low

    def figures(self) -> dict[str, Any]:
        return {
            "setting": self.change.setting, "value": self.estimate.value,
            "load": self.change.load._asdict(), "base": self.change.base,
            "low": self.estimate.low, "high": self.estimate.high,
            "is_bound": self.estimate.is_bound, "gain": self.gain, "noise": self.noise,
            "exceeded": self.is_exceeded, "within": self.is_within,
            "before_s": self.before, "after_s": self.after, "why": self.estimate.why,
        }  # fmt: skip


def changes() -> list[Change]:
    """Thirty: of weights last, in the order of their reloads."""
    short = [Load(n, 48, 24) for n in (1, 2, 4, 8, 16)]
    kv = [Load(1, 64, 16), Load(1, 1500, 16), Load(4, 64, 16), Load(4, 700, 16)]
    slots = [(Load(8, 32, 12, rounds=3), limit) for limit in (1, 2, 4)]
    slots += [(Load(16, 32, 12, rounds=3), limit) for limit in (2, 4, 8)]
    prefixes = [Load(4, 256, 8, 240), Load(4, 512, 8, 400), Load(2, 800, 8, 784)]
    drafting = [Load(n, 64, 24) for n in (1, 2, 4, 8)]
    budget = [(Load(2, 512, 8), 32), (Load(2, 512, 8), 64), (Load(4, 256, 8), 128)]
    return [
        *(Change("kv_cache_dtype", load, {}, "int8") for load in kv),
        *(Change("max_num_seqs", load, {"max_num_seqs": limit}) for load, limit in slots),
        *(Change("enable_prefix_caching", load, {"enable_prefix_caching": False}, True)
          for load in prefixes),
        *(Change("speculative_method", load, {}, "ngram") for load in drafting),
        *(Change("max_num_batched_tokens", load, {"max_num_batched_tokens": tokens}, 1024)
          for load, tokens in budget),
        *(Change("quantization", load, {}, value, value) for value in ("int8", "int4")
          for load in short),
    ]  # fmt: skip


class Bench:
    """Runs loads on one engine. `repeats`: how often now."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = LLMEngine(config)
        self.base = self.engine.config
        self.peaks = self.engine.measure_peaks()
        self.repeats = REPEATS

    def set(self, **values: Any) -> None:
        """These settings, all others as at the beginning."""
        wanted = self.base.replace(**values)
        differing = wanted.differences(self.engine.config)
        if differing:
            self.engine.reconfigure(**{name: getattr(wanted, name) for name in differing})

    def warm_up(self, load: Load) -> None:
        self.once(load._replace(num_output=2, rounds=1))

    def run(self, load: Load, tracker: StepTracker | None = None) -> list[float]:
        """Seconds of each repeat; the first run warms up and is not counted."""
        self.warm_up(load)
        return [self.once(load, tracker) for _ in range(self.repeats)]

    def once(self, load: Load, tracker: StepTracker | None = None) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=load.num_output, ignore_eos=True)
        prompts = load.prompts(self.engine.model_info.vocab_size)
        for prompt in itertools.islice(prompts, load.num_requests):
            self.engine.add_request(prompt, params)
        self.engine.snapshot()  # steps from here on
        began, looking = time.perf_counter(), 0.0
        while self.engine.has_unfinished:
            ended = sum(event.finish_reason is not None for event in self.engine.step())
            for prompt in itertools.islice(prompts, ended):
                self.engine.add_request(prompt, params)
            if tracker is not None:
                now = time.perf_counter()
                tracker.update(self.engine.snapshot())
                looking += time.perf_counter() - now
        return time.perf_counter() - began - looking

    def estimated(self, change: Change) -> Outcome:
        """Without times after the change."""
        self.set(**change.base)
        # as the panel does while the window is open
        self.peaks = self.engine.measure_peaks().with_best_of(self.peaks)
        tracker = StepTracker()
        tracker.update(self.engine.snapshot())
        tracker.peaks = self.peaks
        before = self.run(change.load, tracker)
        breakdown = tracker.breakdown()
        assert breakdown is not None
        estimate = next(
            one for one in breakdown.estimates
            if one.setting == change.setting and change.shown in ("", one.value)
        )  # fmt: skip
        return Outcome(change, estimate, before, [])

    def apply(self, outcome: Outcome) -> None:
        change, value = outcome.change, outcome.change.value
        if value is None:
            named = outcome.estimate.value
            value = int(named) if named.isdigit() else 16
        self.set(**{**change.base, change.setting: value})

    def in_turns(self, outcome: Outcome) -> None:
        """Add times after the change, and before it between these."""
        change = outcome.change
        for turn in range(self.repeats):
            if turn:
                self.set(**change.base)
                self.warm_up(change.load)
                outcome.before.append(self.once(change.load))
            self.apply(outcome)
            self.warm_up(change.load)
            outcome.after.append(self.once(change.load))


def measure_all(bench: Bench, planned: Sequence[Change], minutes: float) -> list[Outcome]:
    """As many as the time allows, with fewer repeats when it gets short."""
    began, outcomes = time.monotonic(), []
    weights = [change for change in planned if change.setting == "quantization"]
    others = [change for change in planned if change.setting != "quantization"]

    def pressed(done: int) -> bool:
        bench.repeats = REPEATS if _share(began, minutes) <= done / len(planned) + 0.1 else 2
        return _share(began, minutes) >= 1

    for change in others:
        if pressed(len(outcomes)):
            return outcomes
        outcomes.append(bench.estimated(change))
        bench.in_turns(outcomes[-1])
        _say(outcomes[-1])
    measured = list[Outcome]()
    for outcome in [bench.estimated(change) for change in weights]:
        if pressed(len(outcomes) + len(measured)):
            break
        bench.apply(outcome)
        outcome.after = bench.run(outcome.change.load)
        measured.append(outcome)
    bench.set()
    for outcome in measured:
        outcome.before += bench.run(outcome.change.load)
        _say(outcome)
    return outcomes + measured


def _share(began: float, minutes: float) -> float:
    return (time.monotonic() - began) / (60 * minutes)


def _say(outcome: Outcome) -> None:
    load = outcome.change.load
    print(
        f"{outcome.change.setting} {outcome.estimate.value}, {load.num_requests} requests of "
        f"{load.length}: {outcome.estimate.text}; measured {factor_text(outcome.gain)} "
        f"± {factor_text(outcome.noise)}{'  EXCEEDED' if outcome.is_exceeded else ''}",
        flush=True,
    )


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """over_gain: the median of the upper end over what was gained, a loss counting as no gain."""
    return {
        "num_changes": len(outcomes),
        "num_exceeded": sum(one.is_exceeded for one in outcomes),
        "num_within": sum(one.is_within for one in outcomes),
        "over_gain": statistics.median(one.estimate.high / max(1.0, one.gain) for one in outcomes),
    }


def goals_of(found: Mapping[str, Any]) -> list[Goal]:
    most = found["num_changes"]
    return [
        at_most("gains above the estimate by more than the noise", found["num_exceeded"], 0, ""),
        at_least("gains within the estimated range and the noise", found["num_within"], most, ""),
        at_most("upper end of the estimate over the gain, median", found["over_gain"], 1.5, "x"),
    ]


def main() -> int:
    parser = arguments("Estimated gains of settings against measured ones.")
    parser.add_argument("--model", default=str(shapes_dir() / "qwen3-0.6b"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--minutes", type=float, metavar="N", help="of measuring; default: 11, 4")
    parser.add_argument("--changes", type=int, nargs="*", help="only these, by place from 0")
    args = parser.parse_args()
    began = time.perf_counter()
    bench = Bench(EngineConfig(
        model=args.model, load_format="dummy", dtype=args.dtype, max_model_len=2048,
        max_num_seqs=16, kv_cache_memory_bytes=2**30, enable_prefix_caching=False,
        num_threads=args.num_threads,
    ))  # fmt: skip
    planned = changes()
    chosen = planned if args.changes is None else [planned[place] for place in args.changes]
    outcomes = measure_all(bench, chosen, args.minutes or (4.0 if args.quick else 11.0))
    found = summary(outcomes)
    print_table(
        ["setting", "value", "requests", "estimate", "gain", "exceeded"],
        [
            [
                one.change.setting, one.estimate.value, str(one.change.load.num_requests),
                one.estimate.text, factor_text(one.gain), "yes" if one.is_exceeded else "",
            ]
            for one in outcomes
        ],
    )  # fmt: skip
    goals = goals_of(found)
    print_goals(goals)
    print(f"took {duration_text(time.perf_counter() - began)}, machine busy with "
          f"{bench.peaks.busy_cores:.1f} cores during the measurement of peaks")  # fmt: skip
    bench.engine.shutdown()
    report = {**context(), **found, "changes": [one.figures() for one in outcomes]}
    write_json(args.output_json, report | {"goals": [one.as_dict() for one in goals]})
    return 0 if all(one.met for one in goals) else 1


if __name__ == "__main__":
    sys.exit(main())

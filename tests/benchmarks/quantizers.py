"""AWQ and GPTQ against those of other programs: same model, text, bits, groups and symmetry.

    python -m tests.benchmarks.quantizers --peer NAME=PYTHON ... [--seeds N] [--keep FOLDER]

The starter model, and the same with planted outliers (`outliers.py`), quantized by each with its
own defaults for all that is not said to be equal; each result is read by our engine, which computes
in float32, and compared with the model it was made of, on conversations that nobody calibrated on.
Every seed is another text to calibrate on, which all of them read, so that merit can be told from
chance: a figure is the mean over the seeds with the standard deviation, and ours is compared with
theirs text by text. A goal is missed where ours is above another by more than twice the error of
the mean of those differences; of one text there is no error, and no verdict.

With `--keep` figures are written as they come, and what is there is not made again: after
`--minutes` no further case is begun, and the same command goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from app.features.quantize.texts import builtin_text
from app.paths import starter_model
from engine import EngineConfig
from engine.evaluate import EvaluationTask, plain, run
from engine.hardware.machine import default_threads
from engine.quantize.calibration import make_sequences
from engine.quantize.quantize import quantize
from engine.quantize.recipe import Recipe
from engine.text.tokenizer import Tokenizer
from tests.benchmarks.outliers import plant_outliers
from tests.benchmarks.peer_quantizers import PEERS, peer_argument, run_peer
from tests.benchmarks.quality import calibration_text, measured_text
from tests.benchmarks.report import (
    Goal,
    arguments,
    context,
    print_goals,
    print_table,
    write_json,
)

OURS, ROUNDED = "inferdeck", "rounded"
MODELS = ("starter", "outliers")
FIGURES = {"kl": "KL", "perplexity": "perplexity", "top1": "top-1", "similarity": "similarity"}
SEQUENCES, LENGTH = 12, 512
"""To calibrate on: few, for the time goes into other programs; and the same for all."""
CONVERSATIONS = 150
"""Measured on: their text moves all figures alike, for it is the same for all."""


class Case(NamedTuple):
    """`method` at `group_size` on `model` by `maker`, calibrated on the text of `seed`."""

    model: str
    method: str
    group_size: int
    maker: str
    seed: int

    @property
    def setting(self) -> str:
        return f"{self.model}, {self.method}, groups of {self.group_size}"

    @property
    def name(self) -> str:
        return f"{self.setting}, {self.maker}, seed {self.seed}"

    @property
    def recipe(self) -> Recipe:
        symmetric = False if self.maker == ROUNDED and self.method == "awq" else None
        method = "rtn" if self.maker == ROUNDED else self.method
        return Recipe(method, 4, self.group_size, symmetric,
                      num_sequences=SEQUENCES, sequence_length=LENGTH)  # fmt: skip


def cases(
    models: Sequence[str], methods: Sequence[str], sizes: Sequence[int], seeds: int,
    peers: Sequence[str],
) -> Iterator[Case]:  # fmt: skip
    """All of one seed before the next, so that what ended early compares like with like."""
    for seed in range(seeds):
        for model, size, method in itertools.product(models, sizes, methods):
            if seed == 0:
                yield Case(model, method, size, ROUNDED, seed)
            for maker in (OURS, *(p for p in peers if method in PEERS[p])):
                yield Case(model, method, size, maker, seed)


def measure(case: Case, model: Path, folder: Path, peers: Mapping[str, str], threads: int
            ) -> dict[str, float]:  # fmt: skip
    """Make what `case` says in `folder`, and measure it. Raises RuntimeError of a program that
    failed."""
    output = folder / "made"
    shutil.rmtree(output, ignore_errors=True)
    began = time.perf_counter()
    text = calibration_text(str(case.seed))
    if case.maker in (OURS, ROUNDED):
        quantize(model, case.recipe, output, [text])
    else:
        tokenizer = Tokenizer.from_folder(model, allow_missing=False)
        tokens = make_sequences([text], tokenizer, length=LENGTH, count=SEQUENCES)
        run_peer(case.maker, peers[case.maker], model, case.recipe, output, tokens)
    seconds = time.perf_counter() - began
    base = EngineConfig(num_threads=threads, kv_cache_memory_bytes=2**26, dtype="float32")
    text = measured_text(CONVERSATIONS)
    report = run(
        EvaluationTask(
            base.replace(model=str(output)),
            reference=plain(base, dtype="float32").replace(model=str(model)),
            text=text, scored=builtin_text("starter").scored(text),
        )
    )  # fmt: skip
    found, loss = report.divergence, report.candidate_loss
    assert found is not None and found.similarity is not None and loss is not None
    return {"kl": found.kl.mean, "perplexity": loss.perplexity, "top1": found.top1_agreement,
            "similarity": found.similarity.mean, "seconds": seconds}  # fmt: skip


Found = dict[str, dict[str, float]]


Figures = Mapping[str, float]
ByMaker = Mapping[str, Mapping[int, Figures]]
"""Of one setting: what each maker reached, by the seed."""


def by_maker(found: Found, wanted: Sequence[Case]) -> dict[str, dict[str, dict[int, Figures]]]:
    """What was found of each setting."""
    settings: dict[str, dict[str, dict[int, Figures]]] = {}
    for case in wanted:
        if case.name in found:
            makers = settings.setdefault(case.setting, {})
            makers.setdefault(case.maker, {})[case.seed] = found[case.name]
    return settings


class Paired(NamedTuple):
    """Ours over theirs, less 1: the mean over the texts, and its standard error, of two and more
    texts."""

    mean: float
    error: float | None

    @property
    def is_worse(self) -> bool:
        """By more than chance explains; of one text nobody can tell."""
        return self.error is not None and self.mean > 2 * self.error

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2%}"
        return f"{self.mean:+.2%}{error}"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Figures of the same texts in the same order."""
    ratios = [a / b - 1 for a, b in zip(ours, theirs, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None
    return Paired(statistics.mean(ratios), error)


COMPARED = ("kl", "perplexity")


def compared(makers: ByMaker) -> dict[str, dict[str, Paired]]:
    """Ours against each other program on the texts that both have read, by its name and by
    figure."""
    ours = makers.get(OURS, {})
    differences: dict[str, dict[str, Paired]] = {}
    for maker, theirs in makers.items():
        both = sorted(ours.keys() & theirs.keys())
        if maker not in (OURS, ROUNDED) and both:
            differences[maker] = {
                key: paired([ours[s][key] for s in both], [theirs[s][key] for s in both])
                for key in COMPARED
            }
    return differences


def print_found(settings: Mapping[str, ByMaker]) -> None:
    for setting, makers in settings.items():
        rows, differences = [], compared(makers)
        for maker, figures in makers.items():
            cells = [_mean_and_spread([f[key] for f in figures.values()]) for key in FIGURES]
            found = differences.get(maker, {})
            cells += [str(found[key]) if key in found else "" for key in COMPARED]
            rows.append([maker, str(len(figures)), *cells])
        against = [f"our {FIGURES[key]} is" for key in COMPARED]
        print_table([setting, "seeds", *FIGURES.values(), *against], rows)


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.5f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.5f}{spread}"


def goals_of(settings: Mapping[str, ByMaker]) -> list[Goal]:
    """Of what was measured on two texts and more."""
    return [
        Goal(f"{setting}: {FIGURES[key]} no worse than {maker}'s", str(found), not found.is_worse)
        for setting, makers in settings.items()
        for maker, figures in compared(makers).items()
        for key, found in figures.items()
        if found.error is not None
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--peer", action="append", type=peer_argument, default=[],
                        metavar="NAME=PYTHON", help=f"{', '.join(PEERS)}")  # fmt: skip
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--method", action="append", choices=("awq", "gptq"))
    parser.add_argument("--group-size", action="append", type=int, choices=(64, 128))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="figures stay there")
    parser.add_argument("--minutes", type=float, help="begin no case after so many")
    args = parser.parse_args(argv)
    peers = dict(args.peer)
    threads = args.num_threads or default_threads()
    torch.set_num_threads(threads)
    wanted = list(
        cases(args.model or MODELS, args.method or ("awq", "gptq"), args.group_size or (128, 64),
              1 if args.quick else args.seeds, list(peers))
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        found = _measured(wanted, args, Path(made), peers, threads)
    settings = by_maker(found, wanted)
    print_found(settings)
    goals = goals_of(settings)
    print_goals(goals)
    left = [case.name for case in wanted if case.name not in found]
    if left:
        print(f"{len(left)} of {len(wanted)} cases are not measured.")
    report = context() | {
        "benchmark": "quantizers", "sequences": SEQUENCES, "length": LENGTH, "figures": found,
        "compared": {
            setting: {maker: {key: one._asdict() for key, one in figures.items()}
                      for maker, figures in compared(makers).items()}
            for setting, makers in settings.items()
        },
        "not_measured": left, "goals": [goal.as_dict() for goal in goals],
    }  # fmt: skip
    write_json(args.output_json, report)
    return 0


def _measured(
    wanted: Sequence[Case], args: argparse.Namespace, made: Path, peers: Mapping[str, str],
    threads: int,
) -> Found:  # fmt: skip
    began = time.monotonic()
    kept = args.keep or made
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / "quantizers.json"
    found: Found = json.loads(file.read_text()) if file.is_file() else {}
    models = {"starter": starter_model()}
    for number, case in enumerate(wanted, start=1):
        if case.name in found:
            continue
        if args.minutes is not None and time.monotonic() - began > 60 * args.minutes:
            break
        print(f"{number} of {len(wanted)}: {case.name}", file=sys.stderr, flush=True)
        if case.model not in models:
            models[case.model] = plant_outliers(starter_model(), made / "outliers")
        try:
            found[case.name] = measure(case, models[case.model], made, peers, threads)
        except RuntimeError as error:
            print(f"{case.name} could not be made: {error}", file=sys.stderr)
            continue
        file.write_text(json.dumps(found, indent=2) + "\n")
    return found


if __name__ == "__main__":
    sys.exit(main())

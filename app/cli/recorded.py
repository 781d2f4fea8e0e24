"""`inferdeck predict --recording`: a recorded load at other settings. No model is loaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from app.cli.options import check_writable, write_report
from app.units import setting_value
from engine.config import SETTINGS, differences_text
from engine.errors import ConfigError
from engine.units import counted, duration_text, number, percent_text

# What follows needs numpy, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.simulate.traffic import Load
    from engine.snapshot import EngineSnapshot

_OF_A_RUN = ("workload", "prompts", "input_len", "compare", "measure")
LAST_S = 60.0


def predict_recording(args: argparse.Namespace) -> int:
    """Figures as recorded, and as predicted at the settings of the recording and at those that are
    set."""
    from app.features.recording import file
    from engine import messages
    from engine.simulate.replay import replay
    from engine.simulate.settings import check_replayed
    from engine.simulate.traffic import Traffic

    if args.recording is None:
        raise ConfigError("--set and --last require --recording.", "Add --recording FILE.")
    if given := [name for name in _OF_A_RUN if getattr(args, name)]:
        flag = "--" + given[0].replace("_", "-")
        raise ConfigError(f"--recording and {flag} exclude each other.", f"Omit {flag}.")
    changes = dict(map(_setting, args.set))
    check_replayed(list(changes))
    if args.output_json:
        check_writable(args.output_json)
    traffic = Traffic()
    snapshots: list[EngineSnapshot] = []
    for frame in file.read(args.recording).frames:
        if isinstance(frame.event, messages.SnapshotEvent):
            snapshots.append(frame.event.snapshot)
            traffic.update(snapshots[-1])
    load, times = traffic.load(seconds=args.last or LAST_S), traffic.times()
    like = snapshots[-1]
    runs = {"recorded": _figures(snapshots, load)}
    for name, some in {"predicted": {}, "changed": changes}.items():
        if some or name == "predicted":
            runs[name] = _figures(replay(like, times, load, some), load)
    report = {
        "recording": str(args.recording), "set": changes, "config": like.config.as_dict(),
        "seconds": load.end - load.start, "requests": len(load.requests),
        "concurrency": load.concurrency, "steps": len(traffic.samples()),
        "median_error": times.spread, "runs": runs,
    }  # fmt: skip
    if args.json:
        print(json.dumps(report))
    else:
        print(_text(report, like, load, changes))
    if args.output_json:  # after printing: a full disk loses no figures
        write_report(args.output_json, report)
    return 0


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if name not in SETTINGS or not value.strip():
        raise ConfigError(f"--set {text}: no setting and value.", "Write max_num_seqs=8.")
    return name, setting_value(SETTINGS[name], value.strip())


def _figures(snapshots: Iterable[EngineSnapshot], load: Load) -> dict[str, Any]:
    """Of the load's time."""
    from app.bench.report import latency

    found = list(snapshots)
    inside = lambda samples: [one.value for one in samples if load.start < one.time <= load.end]
    ttft = [value for s in found for value in inside(s.ttft)]
    itl = [value for s in found for value in inside(s.itl)]
    steps = [step for s in found for step in s.steps if load.start < step.end <= load.end]
    return {
        "ttft_ms": latency(ttft),
        "itl_ms": latency(itl),
        "output_tokens_per_s": (len(ttft) + len(itl)) / (load.end - load.start),
        "peak_kv_usage": max((step.kv_usage or 0.0 for step in steps), default=0.0),
        "preemptions": sum(len(step.preempted) for step in steps),
    }


def _text(report: dict[str, Any], like: EngineSnapshot, load: Load, changes: dict[str, Any]) -> str:
    from app.bench.report import aligned

    kind = f"{load.concurrency} concurrent" if load.concurrency else "arrivals as recorded"
    requests = counted(len(load.requests), "request")
    lines = [
        like.model.name,
        f"Last {duration_text(report['seconds'])}: {requests}, {kind}",
        f"{counted(report['steps'], 'measured step')}; median error of a step: "
        f"{percent_text(report['median_error'])}",
    ]  # fmt: skip
    if changes:
        pairs = {name: (getattr(like.config, name), value) for name, value in changes.items()}
        lines.append(differences_text(pairs))
    runs: dict[str, dict[str, Any]] = report["runs"]
    rows: list[list[str]] = [["", *runs]]
    for title, key, statistic, unit in _ROWS:
        cells: Sequence[Any] = [
            one[key][statistic] if statistic else one[key] for one in runs.values()
        ]
        if any(value is not None for value in cells):
            texts = ["-" if v is None else f"{number(v, 1)} {unit}" for v in cells]
            rows.append([title, *texts])
    for title, key, text in (("Peak KV usage", "peak_kv_usage", percent_text),
                             ("Preemptions", "preemptions", str)):  # fmt: skip
        rows.append([title, *(text(one[key]) for one in runs.values())])
    return "\n".join(lines) + "\n\n" + aligned(rows)


_ROWS = (
    ("TTFT, p50", "ttft_ms", "p50", "ms"), ("TTFT, p99", "ttft_ms", "p99", "ms"),
    ("TTFT, max", "ttft_ms", "max", "ms"), ("ITL, p50", "itl_ms", "p50", "ms"),
    ("ITL, p99", "itl_ms", "p99", "ms"), ("Output", "output_tokens_per_s", "", "tok/s"),
)  # fmt: skip

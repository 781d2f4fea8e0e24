"""Tries every causal-LM class of transformers: `python -m tests.architectures [--only TYPE ...]`.

Each class is built small with random weights, saved, opened by the engine and compared with
transformers' eager attention in float32: prompts of 3 to 129 tokens in batches and chunks, and a
second turn on the prefix cache. `--write` makes resources/docs/architectures.md of the outcomes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.architectures import table
from tests.architectures.sweep import SECONDS, class_names, sweep
from tests.architectures.trial import SUPPORTED, Outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="TYPE", choices=sorted(class_names()))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for each class")
    parser.add_argument("--write", action="store_true", help=f"write {table.FILE.name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="outcomes as JSON")
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write needs every class: leave out --only")
    outcomes: list[Outcome] = []
    for outcome in sweep(args.only or sorted(class_names()), args.seconds):
        outcomes.append(outcome)
        number = "" if outcome.difference is None else f"{outcome.difference:.1e}"
        print(
            f"{outcome.model_type:28} {outcome.outcome:10} {number:8} {outcome.detail}", flush=True
        )
        if args.json:
            args.json.write_text(json.dumps(table.as_json(outcomes), indent=1), "utf-8")
    if args.write:
        table.FILE.write_text(table.as_markdown(outcomes), "utf-8")
    print(table.summary(outcomes))
    return 0 if all(outcome.outcome in SUPPORTED for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

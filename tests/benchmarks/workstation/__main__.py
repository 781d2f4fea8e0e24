"""The workstation window under everything that it must bear, as numbers.

    python -m tests.benchmarks.workstation [--part NAME ...] [--quick] [--minutes M]

views     a frame of every view with 100,000 KV blocks, 256 requests and 10,000 steps of history
messages  a conversation of 1,000 messages: opening it, scrolling through it
reply     a reply of 20,000 tokens at 200 tokens/s: its frames at the beginning and at the end
sidebar   ten thousand conversations: the window opens, the list scrolls, finds, and a chat is sent
look      another theme, and another size of all text, while a reply is written
memory    what the process holds over a run of generation
engine    throughput with all docks open against headless in its own process (gui_overhead)

Each part runs in a process of its own. A frame is the GUI thread's own time for everything that
follows from one change: layout and painting included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any

from tests.benchmarks.gui_overhead import Worker
from tests.benchmarks.report import (
    Goal,
    arguments,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)
from tests.benchmarks.workstation import engine

PARTS = ("views", "messages", "reply", "sidebar", "look", "memory", "engine")


def run_part(name: str, args: argparse.Namespace) -> dict[str, Any]:
    environment = {"QT_NO_GLIB": "1"}  # see meter.LoopMeter
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        environment["QT_QPA_PLATFORM"] = os.environ.get("QT_QPA_PLATFORM", "offscreen")
    if name == "engine":  # it starts processes of its own
        with tempfile.TemporaryDirectory() as folder:
            places = {"INFERDECK_DATA_DIR": folder, "INFERDECK_CONFIG_DIR": folder}
            return engine.measure(args.quick, args.num_threads, environment | places)
    options = json.dumps({"quick": args.quick, "minutes": args.minutes})
    with Worker(f"tests.benchmarks.workstation.{name}", options, environment) as worker:
        return worker.answer()


def print_part(found: dict[str, Any]) -> None:
    print(found["title"])
    print(f"Data: {found['origin']}")
    print_table(found["header"], found["rows"])
    for note in found["notes"]:
        print(f"  {note}")
    print(flush=True)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--minutes", type=float, help="of part memory; default: 30, or 1 if quick")
    args = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "workstation", **context(), "quick": args.quick,
                              "parts": {}, "goals": []}  # fmt: skip
    with watch_others() as others:
        for name in args.part or PARTS:
            print(f"part {name}", file=sys.stderr)
            report["parts"][name] = found = run_part(name, args)
            report["goals"] += found["goals"]
            print_part(found)
    print_goals([Goal(g["goal"], g["measured"], g["met"]) for g in report["goals"]])
    report["cpu_taken_by_others"] = others.share
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the soak: see the package."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.text.pool import MAX_PROCESSES
from tests.soak.changes import PER_ROUND, Controller
from tests.soak.ledger import Ledger, asks
from tests.soak.process import Server, Usage
from tests.soak.streams import PER_WINDOW, run_http, run_windows

NUM_ASKS = 96
GROWTH_BYTES = 32 * 2**20
WARM_UP = 0.2
"""Of the time."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N")
    parser.add_argument("--streams", type=int, default=64, metavar="N")
    parser.add_argument("--pause", type=float, default=5.0, metavar="S", help="between changes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="inferdeck-soak-") as folder:
        log = Path(folder) / "server.log"
        report = soak(args.minutes * 60, args.streams, args.pause, log)
        report["log"] = log.read_text(errors="replace")[-4000:]
    text = json.dumps(report, indent=1)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")
    return 1 if report["faults"] else 0


def soak(seconds: float, streams: int, pause_s: float, log: Path) -> dict[str, Any]:
    server, ledger = Server(log), Ledger()
    try:
        threads = _clients(server.url, ledger, streams)
        controller = Controller(server.url, ledger)
        steps, usage = controller.steps(), list[Usage]()
        until = time.monotonic() + seconds
        while time.monotonic() < until and server.is_running:
            for _ in range(PER_ROUND):
                next(steps)
                ledger.is_over.wait(min(pause_s, max(0.0, until - time.monotonic())))
            _measure(server, ledger, usage)
        if not server.is_running:
            ledger.fault("the server ended")
        ledger.is_over.set()
        for thread in threads:
            thread.join(120)
        if alive := sum(thread.is_alive() for thread in threads):
            ledger.fault(f"{alive} clients did not end")
        if server.is_running:
            usage.append(server.usage())
        growth = _growth(usage, seconds, ledger)
    finally:
        ledger.is_over.set()
        code = server.stop()
    if code != 0:
        ledger.fault(f"the server ended with exit code {code}")
    return {
        "seconds": seconds, "streams": streams, "ended": dict(ledger.ended),
        "changes": controller.done, "model_changes": ledger.num_changes,
        "usage": [one._asdict() for one in usage], "growth": growth,
        "num_faults": ledger.num_faults, "faults": ledger.faults,
    }  # fmt: skip


def _clients(url: str, ledger: Ledger, streams: int) -> list[threading.Thread]:
    """An eighth of the streams comes from windows, the others over HTTP."""
    wanted = asks(NUM_ASKS)
    num_windows = streams // 8 // PER_WINDOW
    work: list[Callable[..., None]] = [run_windows] * num_windows
    work += [run_http] * (streams - num_windows * PER_WINDOW)
    threads = [
        threading.Thread(target=one, args=(url, ledger, wanted, seed), daemon=True)
        for seed, one in enumerate(work)
    ]
    for thread in threads:
        thread.start()
    return threads


def _measure(server: Server, ledger: Ledger, usage: list[Usage]) -> None:
    with ledger.closed():
        if not ledger.wait_quiet(300):
            ledger.fault("requests did not end within 300 s")
        elif server.is_running:
            usage.append(server.usage())


def _growth(usage: list[Usage], seconds: float, ledger: Ledger) -> dict[str, int]:
    """Of memory, descriptors and threads between the first quiet point after the warm-up and the
    largest or last one. Only with as many processes as at the end: they start when texts wait."""
    if len(usage) < 2:
        ledger.fault(f"{len(usage)} quiet points: too few to compare")
        return {}
    begun, last = usage[0].at, usage[-1]
    warm = [u for u in usage if u.at - begun >= WARM_UP * seconds] or [last]
    after = [u for u in warm if u.num_processes == last.num_processes] or [last]
    first = after[0]
    growth = {
        "resident_bytes": max(u.resident_bytes for u in after) - first.resident_bytes,
        "num_fds": last.num_fds - first.num_fds,
        "num_threads": last.num_threads - first.num_threads,
        "num_processes": last.num_processes - 1 - MAX_PROCESSES,
    }
    for name in growth:
        if growth[name] > (GROWTH_BYTES if name == "resident_bytes" else 0):
            ledger.fault(f"{name} grew by {growth[name]:,}")
    return growth


if __name__ == "__main__":
    sys.exit(main())

"""Whether `inferdeck bench` reports what passes on the line: a relay times the same bytes.

    bench  <-- HTTP -->  relay, a process of its own  <-- HTTP -->  server
                         notes when a request came, and each part of its reply

The relay knows nothing of the client but the bytes: TTFT is from the head of a request to the first
bytes of a choice in its stream, ITL from one to the next, OUTPUT tokens in all. Leave the server
one core less than the machine has: where it computes on all, the client wakes up milliseconds later
than the relay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.bench.client import ClientRun
from app.bench.load import Pace
from app.bench.remote import RemoteBench
from app.bench.runner import Plan
from app.bench.workload import fixed
from app.clients.target import Target
from engine.units import duration_text

CLOSE_MS, CLOSE_SHARE = 1.0, 0.01
"""Figures agree within the larger of these."""
PROMPT, OUTPUT = 64, 48
"""Tokens of each request."""
Seen = tuple[float, list[float]]
"""Of a stream: when its request came, and when its choices passed."""


class _Line:
    """One connection through the relay."""

    def __init__(self, client: socket.socket, port: int, found: list[Seen]) -> None:
        self._client, self._found = client, found
        self._server = socket.create_connection(("127.0.0.1", port))
        for end in (self._client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked = 0.0
        self._parts: list[float] = []
        for work in (self._up, self._down):
            threading.Thread(target=work, daemon=True).start()

    def _up(self) -> None:
        while data := self._client.recv(65536):
            if data.startswith(b"POST"):
                self._asked, self._parts = time.perf_counter(), []
            self._server.sendall(data)
        self._server.close()

    def _down(self) -> None:
        rest = b""
        while data := self._server.recv(65536):
            now = time.perf_counter()
            self._client.sendall(data)
            *events, rest = (rest + data).split(b"\n\n")
            self._parts += [now] * sum(b'"choices":[{' in event for event in events)
            if any(event.endswith(b"data: [DONE]") for event in events):
                self._found.append((self._asked, self._parts))


def relay(port: int, pipe: Connection) -> None:
    """Serve until `pipe` says anything, then answer with what was seen."""
    found: list[Seen] = []
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])

    def accept() -> None:
        while True:
            _Line(listener.accept()[0], port, found)

    threading.Thread(target=accept, daemon=True).start()
    pipe.recv()
    pipe.send(found)


def figures(ttft: Sequence[float], gaps: Sequence[float]) -> dict[str, float]:
    """Milliseconds, of seconds."""
    return {
        f"{name}_{kind}": 1e3 * of(values)
        for name, values in (("ttft", ttft), ("itl", gaps))
        for kind, of in (("p50", statistics.median), ("mean", statistics.fmean))
    }


def measure(url: str, concurrency: int, num_requests: int) -> dict[str, Any]:
    """Run the load once through the relay; both sides' figures."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=relay, args=(urlsplit(url).port, theirs), daemon=True)
    process.start()
    try:
        target = Target(f"http://127.0.0.1:{ours.recv()}/v1")
        plan = Plan(fixed(PROMPT, OUTPUT, num_requests), Pace(concurrency), num_warmups=2)
        bench = RemoteBench(target, plan)
        run = bench.measure({}, Pace(concurrency), num_requests, "")
        assert isinstance(run, ClientRun)
        ours.send("end")
        seen: list[Seen] = ours.recv()[-len(run.requests) :]  # without the warm-up
    finally:
        process.terminate()
        process.join()
    told = figures(
        [times.ttft_s for times in run.requests if times.ttft_s is not None],
        [gap for times in run.requests for gap in times.itl_s],
    )
    outside = figures(
        [parts[0] - asked for asked, parts in seen],
        [b - a for _, parts in seen for a, b in itertools.pairwise(parts)],
    )
    # a part may have two tokens
    outside["itl_mean"] = statistics.fmean(
        1e3 * (parts[-1] - parts[0]) / (OUTPUT - 1) for _, parts in seen
    )
    apart = {key: abs(told[key] - outside[key]) for key in told}
    agree = all(apart[key] <= max(CLOSE_MS, CLOSE_SHARE * outside[key]) for key in told)
    return {"concurrency": concurrency, "requests": len(seen), "bench_ms": told,
            "outside_ms": outside, "agree": agree}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", required=True, help="of a server on this machine")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--num-requests", type=int, default=16)
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    rows = [measure(args.base_url, count, args.num_requests) for count in args.concurrency]
    for row in rows:
        print(f"{row['concurrency']} concurrent, {row['requests']} requests")
        for key, told in row["bench_ms"].items():
            seen = row["outside_ms"][key]
            print(f"  {key:10} bench {duration_text(told / 1e3):>9}"
                  f"  outside {duration_text(seen / 1e3):>9}")  # fmt: skip
    if args.output_json:
        args.output_json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0 if all(row["agree"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

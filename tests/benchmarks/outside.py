"""Whether `inferdeck bench` reports what passes on the line: a relay times the same bytes.

    bench  <-- HTTP -->  relay, a process of its own  <-- HTTP -->  server
                         notes when a request came, and each part of its reply

The relay knows nothing of the client but the bytes: TTFT is from the head of a request to the first
bytes of a choice in its stream, ITL from one read to the next, OUTPUT tokens in all. Where the
server computes on every core, the client and the relay wait for one, each for itself: run it with
`chrt --rr 1` before it, or leave the server one core less. The share of that wait is printed.
"""

from __future__ import annotations

import argparse
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
from app.bench.report import ratio
from app.bench.runner import Plan
from app.bench.workload import fixed
from app.clients.target import Target
from engine.snapshot import RequestTimes, TokenEvent
from engine.units import duration_text

CLOSE_MS, CLOSE_SHARE = 1.0, 0.01
"""Figures agree within the larger of these."""
PROMPT, OUTPUT = 64, 48
"""Tokens of each request."""


class _Line:
    """One connection through the relay."""

    def __init__(self, client: socket.socket, port: int, found: list[RequestTimes]) -> None:
        self._client, self._found = client, found
        self._server = socket.create_connection(("127.0.0.1", port))
        for end in (self._client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked = 0.0
        self._parts: list[TokenEvent] = []
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
            if count := sum(b'"choices":[{' in event for event in events):
                self._parts.append(TokenEvent(now, count))
            if any(event.endswith(b"data: [DONE]") for event in events):
                self._found.append(RequestTimes(self._asked, None, tuple(self._parts)))


def relay(port: int, pipe: Connection) -> None:
    """Serve until `pipe` says anything, then answer with what was seen."""
    found: list[RequestTimes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])

    def accept() -> None:
        while True:
            _Line(listener.accept()[0], port, found)

    threading.Thread(target=accept, daemon=True).start()
    pipe.recv()
    pipe.send(found)


def figures(requests: Sequence[RequestTimes]) -> dict[str, float]:
    """Milliseconds."""
    ttft = [times.ttft_s for times in requests if times.ttft_s is not None]
    gaps = [gap for times in requests for gap in times.itl_s]
    return {
        f"{name}_{kind}": 1e3 * of(values)
        for name, values in (("ttft", ttft), ("itl", gaps))
        for kind, of in (("p50", statistics.median), ("mean", statistics.fmean))
        if values
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
        seen: list[RequestTimes] = ours.recv()[-len(run.requests) :]  # without the warm-up
    finally:
        process.terminate()
        process.join()
    told, outside = figures(run.requests), figures(seen)
    # a choice may have two tokens
    span = sum(times.tokens[-1].time - times.tokens[0].time for times in seen)
    later = sum(OUTPUT - times.tokens[0].num_tokens for times in seen)
    outside["itl_mean"] = 1e3 * span / max(later, 1)
    agree = all(
        key in told and abs(told[key] - value) <= max(CLOSE_MS, CLOSE_SHARE * value)
        for key, value in outside.items()
    )
    return {"concurrency": concurrency, "requests": len(seen), "bench_ms": told,
            "outside_ms": outside, "agree": agree,
            "core_wait": ratio(run.core_wait_s, run.duration_s)}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", required=True, help="of a server on this machine")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--num-requests", type=int, default=16)
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    rows = [measure(args.base_url, count, args.num_requests) for count in args.concurrency]
    for row in rows:
        waited = "not reported" if row["core_wait"] is None else f"{row['core_wait']:.1%}"
        print(f"{row['concurrency']} concurrent, {row['requests']} requests, "
              f"waited for a core: {waited}")  # fmt: skip
        for key in row["bench_ms"] | row["outside_ms"]:
            told, seen = (
                duration_text(row[side][key] / 1e3) if key in row[side] else "–"
                for side in ("bench_ms", "outside_ms")
            )
            print(f"  {key:10} bench {told:>9}  outside {seen:>9}")
    if args.output_json:
        args.output_json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0 if all(row["agree"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

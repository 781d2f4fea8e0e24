"""Prints the recorded log, then routes in turn to the replicas that are healthy.

SCRIPTED_FAIL: a log that it prints before it exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vllm_router.router_args import RouterArgs

LOGS = Path(__file__).resolve().parents[2] / "logs"
HEALTH_S = 0.05


class Worker:
    def __init__(self, url: str) -> None:
        self.url = url
        self.is_healthy = False
        self.load = self.routed = 0

    def look(self) -> None:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                self.is_healthy = True
        except OSError:
            self.is_healthy = False


class Exchange(BaseHTTPRequestHandler):
    workers: list[Worker]

    def do_GET(self) -> None:
        healthy = [one for one in self.workers if one.is_healthy]
        if self.path == "/liveness":
            self._send(200, "OK")
        elif self.path == "/workers":
            self._send(200, json.dumps({
                "workers": [
                    {"url": one.url, "model_id": "unknown", "worker_type": "regular",
                     "is_healthy": one.is_healthy, "load": one.load, "connection_mode": "Http",
                     "priority": 50, "cost": 1.0}
                    for one in self.workers
                ],
                "total": len(self.workers),
                "stats": {"prefill_count": 0, "decode_count": 0,
                          "regular_count": len(self.workers)},
            }))  # fmt: skip
        elif not healthy:
            self._send(503, "No workers are currently available")
        else:
            self._pass_on(healthy[0], None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        healthy = [one for one in self.workers if one.is_healthy]
        if not healthy:
            self._send(503, "No available workers (all circuits open or unhealthy)")
            return
        self._pass_on(min(healthy, key=lambda one: one.routed), body)

    def _pass_on(self, worker: Worker, body: bytes | None) -> None:
        worker.load, worker.routed = worker.load + 1, worker.routed + 1
        kind = {"content-type": "application/json"}
        asked = urllib.request.Request(worker.url + self.path, data=body, headers=kind)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                self._begin(answer.status, answer.headers["content-type"])
                while part := answer.read1():
                    self.wfile.write(part)
        except urllib.error.HTTPError as error:
            with error:
                self._send(error.code, error.read().decode())
        except OSError as error:
            self._send(500, f"Request failed: {error}")
        finally:
            worker.load -= 1

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()

    def _send(self, status: int, text: str) -> None:
        kind = "application/json" if text.startswith("{") else "text/plain; charset=utf-8"
        self._begin(status, kind)
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


class Metrics(Exchange):
    def do_GET(self) -> None:
        lines = []
        for name, read in (
            ("processed_requests_total counter", lambda one: one.routed),
            ("worker_health gauge", lambda one: int(one.is_healthy)),
            ("cb_state gauge", lambda one: 0),
            ("running_requests gauge", lambda one: one.load),
        ):
            lines.append(f"# TYPE vllm_router_{name}")
            series = f"vllm_router_{name.split()[0]}"
            lines += [f'{series}{{worker="{one.url}"}} {read(one)}' for one in self.workers]
        self._send(200, "\n".join(lines) + "\n")


def show(name: str) -> None:
    print((LOGS / f"{name}.txt").read_text(), end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    chosen = parser.parse_args()
    if failed := os.environ.get("SCRIPTED_FAIL"):
        show(failed)
        sys.exit(1)
    Exchange.workers = [Worker(url) for url in chosen.worker_urls]
    for one in Exchange.workers:
        one.look()
    show("vllm_router_0.1_start")
    metrics = ThreadingHTTPServer((chosen.prometheus_host, chosen.prometheus_port), Metrics)
    threading.Thread(target=metrics.serve_forever, args=(0.05,), daemon=True).start()
    threading.Thread(target=watch, daemon=True).start()
    server = ThreadingHTTPServer((chosen.host, chosen.port), Exchange)
    try:
        server.serve_forever(0.05)
    except KeyboardInterrupt:
        print("INFO Received Ctrl+C, starting graceful shutdown", flush=True)


def watch() -> None:
    while True:
        time.sleep(HEALTH_S)
        for one in Exchange.workers:
            one.look()


if __name__ == "__main__":
    main()

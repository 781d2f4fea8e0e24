"""`serve MODEL`: prints a recorded log, then answers as vLLM does.

SCRIPTED_FAIL: a log that it prints before it exits with 1. SCRIPTED_STEP: seconds between lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vllm.entrypoints.openai.cli_args import make_arg_parser

TESTS = Path(__file__).resolve().parents[5]
LOGS = TESTS / "managed/logs"
METRICS = TESTS / "clients/pages/vllm_0.32.txt"


class Exchange(BaseHTTPRequestHandler):
    model = ""

    def do_GET(self) -> None:
        pages = {
            "/health": ("", "text/plain"),
            "/version": ('{"version": "0.32.0"}', "application/json"),
            "/metrics": (METRICS.read_text().replace('"starter"', f'"{self.model}"'), "text/plain"),
            "/v1/models": (json.dumps({"object": "list", "data": [
                {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": 2048}
            ]}), "application/json"),
        }  # fmt: skip
        text, kind = pages.get(self.path, ('{"detail": "Not Found"}', "application/json"))
        self.send_response(200 if self.path in pages else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/tokenize":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for number in range(5):
            text = f"word{number} "
            piece = {"delta": {"content": text}} if "chat" in self.path else {"text": text}
            self._event({**piece, "finish_reason": None}, number + 1)
        last = {"delta": {}} if "chat" in self.path else {"text": ""}
        self._event({**last, "finish_reason": "stop"}, 5)
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, choice: dict[str, object], count: int) -> None:
        usage = {"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + count}
        body = {"id": "c", "object": "chat.completion.chunk", "model": self.model,
                "choices": [{"index": 0, **choice}], "usage": usage}  # fmt: skip
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def show(name: str) -> None:
    step = float(os.environ.get("SCRIPTED_STEP", "0"))
    for line in (LOGS / f"{name}.txt").read_text().splitlines():
        print(line, flush=True)
        time.sleep(step)


def main() -> None:
    parser = make_arg_parser(argparse.ArgumentParser())
    parser.add_argument("verb")
    parser.add_argument("model")
    chosen = parser.parse_args()
    if failed := os.environ.get("SCRIPTED_FAIL"):
        show(failed)
        sys.exit(1)
    Exchange.model = chosen.model
    server = ThreadingHTTPServer((chosen.host, chosen.port), Exchange, bind_and_activate=False)
    show("vllm_0.32_start")
    server.server_bind()
    server.server_activate()
    try:
        server.serve_forever(0.05)
    except KeyboardInterrupt:
        print("INFO:     Application shutdown complete.", flush=True)


if __name__ == "__main__":
    main()

"""Servers that answer as the test says, on a port of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.clients.target import Target

PAGES = Path(__file__).parent / "pages"


class Exchange(BaseHTTPRequestHandler):
    """One request. `send` and `stream` answer it; the connection is closed behind it."""

    server: ScriptedServer

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _answer(self, body: bytes) -> None:
        self.body = json.loads(body) if body else None
        self.server.seen.append((self.path, self.body))
        if self.body is not None and "stream" in self.body:
            self.server.asked.append(self.body)
        answer = self.server.answers.get(self.path)
        try:
            if answer is None:
                self.send(404, {"detail": "Not Found"})
            elif callable(answer):
                answer(self)
            else:
                self.send(200, answer)
        except (BrokenPipeError, ConnectionResetError):
            self.server.hung_up.set()

    def send(self, status: int, value: Any, kind: str = "", headers: tuple[str, ...] = ()) -> None:
        """`value`: text, bytes, or what JSON is made of."""
        if isinstance(value, str):
            data, kind = value.encode(), kind or "text/plain"
        elif isinstance(value, bytes):
            data, kind = value, kind or "application/octet-stream"
        else:
            data, kind = json.dumps(value).encode(), kind or "application/json"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        for header in headers:
            name, _, text = header.partition(": ")
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        """The head of a stream, which ends with the connection."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

    def write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def stream(self, *values: Any) -> None:
        """A whole stream of events."""
        self.begin()
        self.events(*values)

    def events(self, *values: Any) -> None:
        """Each value as an event; a text stands for itself."""
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value)
            self.write(f"data: {text}\n\n".encode())

    def log_message(self, *_: Any) -> None:
        pass


Answer = dict[str, Any] | list[Any] | str | Callable[[Exchange], None]


class ScriptedServer(ThreadingHTTPServer):
    """answers: by path. seen: (path, body) of what came; asked: the bodies of streams."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Exchange)
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.hung_up = threading.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def target(self) -> Target:
        return Target(f"http://{self.host}/v1")

    def models(self, owner: str, *names: str, **more: Any) -> None:
        data = [{"id": name, "object": "model", "owned_by": owner, **more} for name in names]
        self.answers["/v1/models"] = {"object": "list", "data": data}


    def replica(self, model: str = "m", page: str = "") -> ScriptedServer:
        """Answer as vLLM, as a router needs it."""
        self.models("vllm", model, max_model_len=4096)
        text = page or (PAGES / "vllm_0.32.txt").read_text()
        self.answers |= {"/health": "", "/version": {"version": "0.32.0"}, "/metrics": text}
        return self


@contextmanager
def served(port: int = 0) -> Iterator[ScriptedServer]:
    made = ScriptedServer(port)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), name="scripted server")
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(10)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with served() as made:
        yield made


def chat_chunk(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A piece of a chat reply as everybody sends it."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


def usage(prompt: int, written: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": written, **details}

"""A hub on this machine: what the real one answers, as far as the program asks it.

    /api/models?search=        one page of models
    /api/models/ID             one model with its files (blobs=True: sizes and hashes)
    /api/models/ID/tree/COMMIT its files, as snapshot_download lists them
    /ID/resolve/COMMIT/FILE    a small file, or for a large one a redirect to /cdn/SHA256

`faults` makes it misbehave, so that tests reach every message.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 10_000
"""Files from this size on are "LFS": named by their sha256 and served after a redirect."""


@dataclass
class Model:
    repo_id: str
    files: dict[str, bytes]
    downloads: int = 0
    gated: bool = False
    tags: tuple[str, ...] = ("safetensors", "license:apache-2.0")
    num_parameters: int | None = None
    listed_in_search: bool = True

    @property
    def commit(self) -> str:
        names = "".join(f"{n}{sha256(c)}" for n, c in sorted(self.files.items()))
        return hashlib.sha1(f"{self.repo_id}{names}".encode()).hexdigest()

    def listed(self) -> dict[str, Any]:
        return {
            "id": self.repo_id,
            "downloads": self.downloads,
            "likes": 3,
            "gated": "manual" if self.gated else False,
            "tags": list(self.tags),
            "safetensors": {"parameters": {"BF16": self.num_parameters}, "total":
                            self.num_parameters} if self.num_parameters else None,
        }  # fmt: skip

    def described(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content),
                                     "blobId": git_hash(content)}  # fmt: skip
            if len(content) >= LARGE:
                entry["lfs"] = {"sha256": sha256(content), "size": len(content),
                                "pointerSize": 134}  # fmt: skip
            siblings.append(entry)
        return {**self.listed(), "sha": self.commit, "siblings": siblings}


@dataclass
class Faults:
    """`needs_token`: ids that ask for a token. `break_after`: bytes of a large file after which
    the connection is cut, once per entry. `corrupt`: names whose content is changed, once.
    `status`: answered to everything. `no_ranges`: Range is ignored. `hash`: stands for those of
    small files. `hold`: large files wait after their first half until it is set."""

    needs_token: set[str] = field(default_factory=set)
    break_after: list[int] = field(default_factory=list)
    corrupt: set[str] = field(default_factory=set)
    status: int = 0
    no_ranges: bool = False
    hash: str = ""
    hold: threading.Event | None = None


class HubServer:
    """Runs while the `with` lasts; `requests` has (method, path, headers) of all."""

    def __init__(self, *models: Model) -> None:
        self.models = {model.repo_id: model for model in models}
        self.faults = Faults()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, name="hub"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def cdn_url(self) -> str:
        """The same server under another name: the token must not go there."""
        return self.url.replace("127.0.0.1", "localhost")

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.faults.hold is not None:
            self.faults.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def ranges(self) -> list[str]:
        """The Range headers of the large files, in order."""
        return [h["range"] for _, path, h in self.requests if "/cdn/" in path and "range" in h]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            hub = server

        return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.hub.requests.append((self.command, self.path, headers))
        parts = unquote(url.path).strip("/").split("/")
        if self.hub.faults.status:
            self._error(self.hub.faults.status)
        elif parts[:2] == ["api", "models"]:
            self._api(parts[2:], parse_qs(url.query))
        elif parts[0] == "cdn":
            self._cdn(parts[1])
        else:
            self._resolve(parts)

    do_HEAD = do_GET  # noqa: N815

    def _api(self, parts: list[str], query: dict[str, list[str]]) -> None:
        if not parts:
            wanted = query.get("search", [""])[0].lower()
            listed = [m for m in self.hub.models.values() if m.listed_in_search]
            found = [m for m in listed if wanted in m.repo_id.lower()]
            found.sort(key=lambda m: -m.downloads)
            self._json([m.listed() for m in found[: int(query.get("limit", ["1000"])[0])]])
            return
        model = self._model("/".join(parts[:2]))
        if model is not None:
            described = model.described()
            if parts[2:3] == ["tree"]:
                self._json([_in_tree(entry) for entry in described["siblings"]])
                return
            for entry in described["siblings"] if self.hub.faults.hash else ():
                entry["blobId"] = self.hub.faults.hash
            self._json(described)

    def _resolve(self, parts: list[str]) -> None:
        model = self._model("/".join(parts[:2]))
        if model is None:
            return
        if model.gated and "Authorization" not in self.headers:
            self._error(401, "GatedRepo")
            return
        name = "/".join(parts[4:])
        if parts[3] not in ("main", model.commit) or name not in model.files:
            self._error(404, "EntryNotFound")
            return
        content = model.files[name]
        if len(content) >= LARGE:
            self._answer(302, b"", {
                "Location": f"{self.hub.cdn_url}/cdn/{sha256(content)}",
                "X-Repo-Commit": model.commit,
                "X-Linked-Etag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content)),
            })  # fmt: skip
        else:
            self._content(name, content, {"ETag": f'"{git_hash(content)}"',
                                          "X-Repo-Commit": model.commit})  # fmt: skip

    def _cdn(self, digest: str) -> None:
        for model in self.hub.models.values():
            for name, content in model.files.items():
                if sha256(content) == digest:
                    self._content(name, content, {"ETag": f'"{digest}"'})
                    return
        self._error(404)

    def _content(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        faults = self.hub.faults
        if name in faults.corrupt:
            faults.corrupt.discard(name)
            content = bytes([content[0] ^ 1]) + content[1:]
        status, start = 200, 0
        wanted = self.headers.get("Range", "")
        if wanted and not faults.no_ranges:
            status, start = 206, int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        if len(content) >= LARGE and faults.break_after:
            keep = faults.break_after.pop(0)
            self._answer(status, body, headers, send=keep)
            self.close_connection = True
        elif len(content) >= LARGE and faults.hold is not None:
            half = len(body) // 2
            self._answer(status, body, headers, send=half)
            faults.hold.wait(300)
            self._write(body[half:])
        else:
            self._answer(status, body, headers)

    def _model(self, repo_id: str) -> Model | None:
        model = self.hub.models.get(repo_id)
        if model is None:
            self._error(401, "RepoNotFound")
        elif repo_id in self.hub.faults.needs_token and "Authorization" not in self.headers:
            self._error(401, "RepoNotFound")
            return None
        return model

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        self._answer(status, b"", {**headers, "Retry-After": "7"} if status == 429 else headers)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], send: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self._write(body if send is None else body[:send])

    def _write(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client went away: it was stopped


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _in_tree(sibling: dict[str, Any]) -> dict[str, Any]:
    entry = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"],
             "oid": sibling["blobId"]}  # fmt: skip
    if "lfs" in sibling:
        entry["lfs"] = {**sibling["lfs"], "oid": sibling["lfs"]["sha256"]}
    return entry

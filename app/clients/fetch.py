"""One small request, bounded in time and size."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import httpx

from app.clients.address import Address
from app.clients.errors import TargetError, of_status, of_transport
from app.clients.target import Target

MOST_BYTES = 8 * 2**20
"""Of an answer: lists of models and metrics are smaller. What sends more is something else."""


class Answer(NamedTuple):
    """`seconds` from the request to the whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes
    seconds: float

    @property
    def is_page(self) -> bool:
        """Whether it is a web page."""
        kind = self.headers.get("content-type", "")
        return "html" in kind or self.body.lstrip()[:15].lower().startswith(
            (b"<!doctype", b"<html")
        )

    def json(self) -> Any:
        """The value, or None where it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def object(self) -> dict[str, Any]:
        """The JSON object of a success, or an empty one."""
        value = self.json() if self.status == 200 else None
        return value if isinstance(value, dict) else {}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def headers_for(target: Target) -> dict[str, str]:
    """Raises TargetError for a key that cannot be sent."""
    found = {"user-agent": "inferdeck"}
    if target.api_key:
        if not target.api_key.isascii() or not target.api_key.isprintable():
            raise TargetError(
                "The API key has invalid characters.",
                "Copy it again, without spaces and line breaks.", is_final=True,
            )  # fmt: skip
        found["authorization"] = f"Bearer {target.api_key}"
    return found


def client_options(target: Target, address: Address) -> dict[str, Any]:
    """Of httpx' clients. What runs on this machine is never asked through a proxy."""
    return {
        "headers": headers_for(target),
        "trust_env": not address.is_here,
        "follow_redirects": False,
    }


class Fetcher:
    """Requests over one kept connection. A context manager."""

    def __init__(self, target: Target, address: Address) -> None:
        self._client = httpx.Client(**client_options(target, address))
        self._address = address
        self._has_key = bool(target.api_key)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, url: str, deadline: float) -> Answer:
        """Until `deadline` (of time.perf_counter). Raises TargetError where nothing answers, or too
        much."""
        began = time.perf_counter()
        body = bytearray()
        try:
            left = max(deadline - began, 0.05)
            with self._client.stream("GET", url, timeout=left) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise self._too_long()
                    if time.perf_counter() > deadline:
                        raise httpx.ReadTimeout("the response takes too long")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise of_transport(error, self._address.host) from error
        return Answer(
            response.status_code, response.headers, bytes(body), time.perf_counter() - began
        )

    def problem(self, answer: Answer) -> TargetError:
        """An answer that is no success, as an error."""
        return of_status(
            answer.status, answer.body, answer.headers, self._address.host, self._has_key
        )

    def _too_long(self) -> TargetError:
        return TargetError(
            f"{self._address.host} answered a small query with over {MOST_BYTES // 2**20} MiB.",
            "Check the address: it is not a model server.", is_final=True,
        )  # fmt: skip

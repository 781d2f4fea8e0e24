"""Small HTTP requests, bounded in time and size."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import httpx

from app.clients.errors import TargetError, of_status, of_transport
from app.clients.target import Address, ServerType, Target
from engine.units import bytes_text

MOST_BYTES = 8 * 2**20
"""Maximum response size: model lists and metrics pages are smaller."""


class Answer(NamedTuple):
    """`seconds` from the request to the whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes
    seconds: float

    @property
    def is_page(self) -> bool:
        kind = self.headers.get("content-type", "")
        return "html" in kind or self.body.lstrip()[:15].lower().startswith(
            (b"<!doctype", b"<html")
        )

    def json(self) -> Any:
        """The value; None if the body is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def object(self) -> dict[str, Any]:
        """The JSON object of a success, or an empty one."""
        value = self.json() if self.status == 200 else None
        return value if isinstance(value, dict) else {}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def client_options(target: Target, address: Address) -> dict[str, Any]:
    """Options of httpx clients. Servers on this machine are never queried through a proxy. Raises
    TargetError for a key that cannot be sent."""
    headers = {"user-agent": "inferdeck"}
    if target.api_key:
        if not target.api_key.isascii() or not target.api_key.isprintable():
            raise TargetError(
                "The API key contains invalid characters.",
                "Copy the key again, without spaces or line breaks.", is_final=True,
            )  # fmt: skip
        headers["authorization"] = f"Bearer {target.api_key}"
    return {"headers": headers, "trust_env": not address.is_here, "follow_redirects": False}


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
        """Wait until `deadline` (time.perf_counter). Raises TargetError without a response, or if
        it is too large."""
        began = time.perf_counter()
        body = bytearray()
        try:
            left = max(deadline - began, 0.05)
            with self._client.stream("GET", url, timeout=left) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise TargetError(
                            f"{self._address.host} returned a response larger than the limit of "
                            f"{bytes_text(MOST_BYTES)}.",
                            "Check that the server is OpenAI-compatible.", is_final=True,
                        )  # fmt: skip
                    if time.perf_counter() > deadline:
                        raise httpx.ReadTimeout("response timed out")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise of_transport(error, self._address.host) from error
        seconds = time.perf_counter() - began
        return Answer(response.status_code, response.headers, bytes(body), seconds)

    def problem(self, answer: Answer) -> TargetError:
        """The error for an unsuccessful response."""
        return of_status(
            answer.status, answer.body, answer.headers, self._address.host, self._has_key
        )


TIMEOUT_S = 5.0


class TokenCounter:
    """Counts tokens with a server's endpoint; None if it has none."""

    def __init__(
        self, client: httpx.AsyncClient, address: Address, server_type: ServerType, model: str
    ) -> None:
        self._client = client
        self._address = address
        self._server_type = server_type
        self._model = model
        self._cannot = server_type is ServerType.OPENAI

    async def count(self, text: str) -> int | None:
        """Number of tokens in a text, without those that begin every prompt."""
        return _count_in(await self._asked(text))

    async def ids(self, text: str) -> list[int]:
        """The token ids of a text; none if the server does not report them."""
        value = await self._asked(text)
        tokens = value.get("tokens") if isinstance(value, dict) else value
        # llama.cpp may have {"id": 5} for 5
        found = [one.get("id") if isinstance(one, dict) else one for one in tokens or []]
        return [one for one in found if isinstance(one, int) and one >= 0]

    async def _asked(self, text: str) -> Any:
        if self._cannot:
            return None
        folder = "_internal/" if self._server_type is ServerType.TENSORRT_LLM else ""
        url = self._address.beside(f"{folder}tokenize")
        try:
            answer = await self._client.post(url, json=self._body(text), timeout=TIMEOUT_S)
            if answer.status_code in (404, 405, 501):
                self._cannot = True
            return answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def _body(self, text: str) -> dict[str, Any]:
        match self._server_type:
            case ServerType.TGI:
                return {"inputs": text, "add_special_tokens": False}
            case ServerType.LLAMA_CPP:
                return {"content": text, "add_special": False}
            case ServerType.TENSORRT_LLM:
                return {"model": self._model, "prompt": text}
        return {"model": self._model, "prompt": text, "add_special_tokens": False}


def _count_in(value: Any) -> int | None:
    """{"count": n}, {"tokens": [...]}, or a list with one entry a token (TGI)."""
    if isinstance(value, list):
        return len(value)
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("count"), int):
        return int(value["count"])
    return len(value["tokens"]) if isinstance(value.get("tokens"), list) else None

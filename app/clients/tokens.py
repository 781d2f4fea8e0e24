"""Counts tokens with the tokenizer endpoint of a server."""

from __future__ import annotations

from typing import Any

import httpx

from app.clients.address import Address
from app.clients.target import Dialect

TIMEOUT_S = 5.0

_PATHS = {
    Dialect.INFERDECK: "tokenize",
    Dialect.VLLM: "tokenize",
    Dialect.SGLANG: "tokenize",
    Dialect.TENSORRT_LLM: "_internal/tokenize",
    Dialect.TGI: "tokenize",
    Dialect.LLAMA_CPP: "tokenize",
}


class TokenCounter:
    """Counts with a server's endpoint; None where it has none."""

    def __init__(
        self, client: httpx.AsyncClient, address: Address, dialect: Dialect, model: str
    ) -> None:
        self._client = client
        self._address = address
        self._dialect = dialect
        self._model = model
        self._cannot = dialect not in _PATHS

    async def count(self, text: str) -> int | None:
        """Tokens of a text, without those that stand at the beginning of every prompt."""
        return _count_in(await self._asked(text))

    async def ids(self, text: str) -> list[int]:
        """The token ids of a text; none where they are not told."""
        return _ids_in(await self._asked(text))

    async def _asked(self, text: str) -> Any:
        if self._cannot:
            return None
        url = self._address.beside(_PATHS[self._dialect])
        try:
            answer = await self._client.post(url, json=self._body(text), timeout=TIMEOUT_S)
            if answer.status_code in (404, 405, 501):
                self._cannot = True
            return answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def _body(self, text: str) -> dict[str, Any]:
        match self._dialect:
            case Dialect.TGI:
                return {"inputs": text, "add_special_tokens": False}
            case Dialect.LLAMA_CPP:
                return {"content": text, "add_special": False}
            case Dialect.TENSORRT_LLM:
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


def _ids_in(value: Any) -> list[int]:
    """{"tokens": [5, 6]}, or as llama.cpp may have it, [{"id": 5}, ...]."""
    tokens = value.get("tokens") if isinstance(value, dict) else value
    found = [one.get("id") if isinstance(one, dict) else one for one in tokens or []]
    return [one for one in found if isinstance(one, int) and one >= 0]

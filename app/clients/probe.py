"""Identifies the server at an address by its endpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from app.clients.errors import TargetError, is_timeout
from app.clients.http import Answer, Fetcher
from app.clients.metric_names import TABLES
from app.clients.metrics import scrape_with
from app.clients.metrics_page import Exposition
from app.clients.router import NO_NAME, WORKERS, RouterLook, read_workers
from app.clients.target import Address, Probe, ServerType, Target, parse_address

OWNERS: Mapping[str, ServerType] = {
    "inferdeck": ServerType.INFERDECK,
    "vllm": ServerType.VLLM,  # vllm/entrypoints/openai/protocol.py: ModelCard
    "sglang": ServerType.SGLANG,  # sglang/srt/entrypoints/openai/protocol.py
    "tensorrt_llm": ServerType.TENSORRT_LLM,  # tensorrt_llm/serve/openai_protocol.py
    "llamacpp": ServerType.LLAMA_CPP,  # llama.cpp tools/server
}
"""owned_by in the list of models. TGI puts the model's name there, proxies anything."""


class _Facts(NamedTuple):
    """What a server's own pages report; None or "" if they do not."""

    version: str = ""
    max_model_len: int | None = None
    models: tuple[str, ...] = ()


def probe(target: Target, timeout_s: float = 5.0) -> Probe:
    """Identify the server; blocks for about `timeout_s` at most. Raises TargetError with cause and
    remedy."""
    address = parse_address(target.base_url)
    with Fetcher(target, address) as fetcher:
        return _Prober(fetcher, address, time.perf_counter() + timeout_s).run()


class _Prober:
    def __init__(self, fetcher: Fetcher, address: Address, deadline: float) -> None:
        self._fetcher = fetcher
        self._address = address
        self._deadline = deadline
        self._round_trips: list[float] = []

    def run(self) -> Probe:
        answer = self._get(self._address.api("models"))
        if answer.status in (500, 502, 503, 504):
            answer = self._of_a_replica() or answer
        if answer.status not in (200, 404):
            raise self._fetcher.problem(answer)
        if isinstance(answer.object().get("data"), list):
            cards = _cards(answer)
            server_type, facts = self._recognised(cards)
            if server_type is ServerType.ROUTER and all(one["id"] == NO_NAME for one in cards):
                cards = _cards(self._of_a_replica()) or cards
        else:  # early versions of TGI have no list of models
            cards, server_type, facts = [], ServerType.TGI, self._tgi()
            if not facts.models:
                raise self._no_list(answer)
        models = tuple(str(card["id"]) for card in cards) or facts.models
        return Probe(
            server_type, facts.version, models, facts.max_model_len or _longest(cards),
            self._has_metrics(server_type), min(self._round_trips),
        )  # fmt: skip

    def _has_metrics(self, server_type: ServerType) -> bool:
        """One that does not answer in time may have some: it is busy."""
        try:
            if server_type is ServerType.ROUTER:
                look = RouterLook(self._address, 0.0)
                return look.look(self._fetcher, self._deadline) is not None
            scrape_with(self._fetcher, self._address, server_type, self._deadline)
        except TargetError as error:
            return is_timeout(error)
        return True

    def _of_a_replica(self) -> Answer | None:
        """The list of models of a replica: a router passes this on to one that died a moment ago,
        and does not try another."""
        for one in read_workers(self._object(WORKERS)):
            with suppress(TargetError):
                answer = self._get(f"{one.url}/v1/models")
                if answer.status == 200:
                    return answer
        return None

    def _no_list(self, answer: Answer) -> TargetError:
        host = self._address.host
        if answer.status == 404 and not answer.is_page:
            return self._fetcher.problem(answer)
        what = (
            "an HTML page" if answer.is_page
            else "JSON without a model list" if answer.json() is not None
            else "a non-JSON response"
        )  # fmt: skip
        return TargetError(
            f"{host} returned {what}: not an OpenAI-compatible server, or the wrong path.",
            "Use the API base URL, such as http://host:8000/v1.", is_final=True,
        )  # fmt: skip

    # -- server types ---------------------------------------------------------------------------

    def _recognised(self, cards: list[dict[str, Any]]) -> tuple[ServerType, _Facts]:
        if read_workers(self._object(WORKERS)):  # before the replica whose pages it passes on
            return ServerType.ROUTER, _Facts()
        owners = {str(card.get("owned_by", "")).lower() for card in cards}
        named = next((OWNERS[owner] for owner in owners if owner in OWNERS), None)
        if named is not None:
            return named, self._facts(named)
        for server_type in (ServerType.TGI, ServerType.SGLANG, ServerType.LLAMA_CPP):
            facts = self._facts(server_type)
            if facts != _Facts():
                return server_type, facts
        server_type = self._by_metrics()
        return server_type, self._facts(server_type)

    def _by_metrics(self) -> ServerType:
        """From the names on the page of metrics."""
        for path in ("metrics", "prometheus/metrics"):
            answer = self._try(path)
            if answer is None or answer.status != 200:
                continue
            with suppress(ValueError):
                page = Exposition(answer.text)
                for server_type, table in TABLES.items():
                    if page.is_of(table):
                        return server_type
        return ServerType.OPENAI

    def _facts(self, server_type: ServerType) -> _Facts:
        match server_type:
            case ServerType.OPENAI:
                return _Facts()
            case ServerType.SGLANG:
                return self._sglang()
            case ServerType.TGI:
                return self._tgi()
            case ServerType.LLAMA_CPP:
                return self._llama_cpp()
        return _Facts(_text(self._object("version"), "version"))

    def _sglang(self) -> _Facts:
        for path in ("server_info", "get_server_info"):  # the older name second
            found = self._object(path)
            if "model_path" in found:
                return _Facts(_text(found, "version"), _number(found, "context_length"))
        return _Facts()

    def _tgi(self) -> _Facts:
        found = self._object("info")
        if "max_total_tokens" not in found or "model_id" not in found:
            return _Facts()
        model = _text(found, "model_id")
        return _Facts(
            _text(found, "version"), _number(found, "max_total_tokens"), (model,) if model else ()
        )

    def _llama_cpp(self) -> _Facts:
        found = self._object("props")
        if "default_generation_settings" not in found and "build_info" not in found:
            return _Facts()
        settings = found.get("default_generation_settings")
        length = _number(settings, "n_ctx") if isinstance(settings, dict) else None
        return _Facts(_text(found, "build_info"), length)

    # -- asking -----------------------------------------------------------------------------

    def _get(self, url: str) -> Answer:
        answer = self._fetcher.get(url, self._deadline)
        self._round_trips.append(answer.seconds)
        return answer

    def _try(self, path: str) -> Answer | None:
        """None without a response: the page may not exist."""
        if time.perf_counter() > self._deadline:
            return None
        try:
            return self._get(self._address.beside(path))
        except TargetError:
            return None

    def _object(self, path: str) -> dict[str, Any]:
        answer = self._try(path)
        return answer.object() if answer is not None else {}


def _cards(answer: Answer | None) -> list[dict[str, Any]]:
    """Of a list of models."""
    listed = answer.object().get("data") if answer is not None else None
    if not isinstance(listed, list):
        return []
    return [card for card in listed if isinstance(card, dict) and card.get("id")]


def _longest(cards: list[dict[str, Any]]) -> int | None:
    """Context length of the first model: max_model_len in vLLM, SGLang and Inferdeck; other servers
    have other names."""
    for card in cards[:1]:
        for key in ("max_model_len", "context_length", "context_window"):
            if (found := _number(card, key)) is not None:
                return found
        meta = card.get("meta")  # llama.cpp
        if isinstance(meta, dict):
            return _number(meta, "n_ctx") or _number(meta, "n_ctx_train")
    return None


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value[:100] if isinstance(value, str) else ""


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

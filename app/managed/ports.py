"""Ports of this machine's loopback beside a managed server's own.

    port        the server
    port + 1 .. the metrics of a router, or the KV events of each data-parallel rank, forwarded
    then one    where this window receives the traces of a vLLM
"""

from __future__ import annotations

import json
from typing import Any

from app.managed.launch import Launch, Place

KV_EVENTS, RANKS = "--kv-events-config", "--data-parallel-size"
DEFAULT_ENDPOINT = "tcp://*:5557"
"""Of vLLM's KVEventsConfig."""
MAX_RANKS = 64


def num_served(launch: Launch) -> int:
    """Of the ports that the server or its connection listens at."""
    return 2 if launch.is_router else 1 + len(_endpoints(launch))


def traces_port(launch: Launch, port: int) -> int:
    """0 where it sends no traces to this window."""
    return port + num_served(launch) if launch.is_traced else 0


def kv_forwards(launch: Launch, port: int) -> tuple[tuple[str, int], ...]:
    """Endpoints of KV events as the server reports them, and where they are here; none for a server
    of this machine."""
    return tuple((one, port + 1 + rank) for rank, one in enumerate(_endpoints(launch)))


def _endpoints(launch: Launch) -> list[str]:
    """One for each data-parallel rank, as vLLM counts them (vllm/distributed/kv_events.py). It
    connects to an endpoint without "*": a collector. Of port 0 it chooses another address."""
    if launch.place is Place.HERE or KV_EVENTS not in launch.settings:
        return []
    try:
        given: Any = json.loads(launch.settings[KV_EVENTS])
        ranks = min(int(launch.settings.get(RANKS, 1)), MAX_RANKS)
    except ValueError:
        return []  # vLLM complains
    if not isinstance(given, dict) or not given.get("enable_kv_cache_events"):
        return []
    endpoint = str(given.get("endpoint", DEFAULT_ENDPOINT))
    start, _, number = endpoint.rpartition(":")
    if start != "tcp://*" or not number.isdecimal() or not int(number):
        is_reached = is_socket(endpoint) and launch.place is Place.SSH
        return [endpoint] if is_reached else []
    return [f"{start}:{int(number) + rank}" for rank in range(ranks)]


def is_socket(endpoint: str) -> bool:
    """Whether it is a Unix socket."""
    return endpoint.startswith("ipc://")

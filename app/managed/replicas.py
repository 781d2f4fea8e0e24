"""`check`: whether servers can be the replicas of one router."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from app.clients.probe import probe
from app.clients.target import Probe, ServerType, Target, TargetError
from engine.errors import ErrorInfo, InferdeckError

PROBE_S = 5.0


def check(targets: Sequence[Target]) -> None:
    """One that does not respond is not an error while another one does: a router takes it in when
    it is back. Blocks for some seconds at most. Raises InferdeckError."""
    if len({one.api_key or "" for one in targets}) > 1:  # nor is a key sent to one without
        raise InferdeckError(
            "The replicas have different API keys; a router passes on the one of its client.",
            "Start them with the same key, and enter it in each connection.",
        )
    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        found = list(pool.map(_probe, targets))
    named = list(zip((one.name or one.base_url for one in targets), found, strict=True))
    there = [(name, one) for name, one in named if isinstance(one, Probe)]
    if not there:
        causes = [f"{name}: {one.cause}" for name, one in named if isinstance(one, ErrorInfo)]
        raise InferdeckError(
            f"None of the router's {len(targets)} replicas responds. {' '.join(causes)}",
            "Start a replica, then the router.",
        )
    for name, one in there:
        if one.server_type is ServerType.ROUTER:
            raise InferdeckError(f"{name} is a router itself.", "Choose servers.")
    common = set.intersection(*(set(one.models) for _, one in there))
    if not common:
        lists = "; ".join(f"{name} has {', '.join(one.models) or 'none'}" for name, one in there)
        raise InferdeckError(
            f"The replicas have no model in common: {lists}.",
            "Choose servers of the same model, under one name (--served-model-name).",
        )


def _probe(target: Target) -> Probe | ErrorInfo:
    try:
        return probe(target, PROBE_S)
    except TargetError as error:
        return error.info()

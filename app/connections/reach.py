"""Whether an engine elsewhere can be used as it is named, asked before anything is given up for it.
No Qt."""

from __future__ import annotations

import time

from app.connections.target import Dialect, Probe, Target

TIMEOUT_S = 5.0
OUR_PATH = "inferdeck/v1"


def reach(target: Target, dialect: Dialect | None) -> Probe | None:
    """Who answers there; None where it is an engine of ours, as before, whether a model is open in
    it or not. Blocks for some seconds at most; raises TargetError with cause and remedy."""
    from app.dialects.probe import probe

    if dialect is Dialect.INFERDECK and _is_ours(target):
        return None
    return probe(target, TIMEOUT_S)


def _is_ours(target: Target) -> bool:
    """False where another server listens there by now. Raises TargetError: wrong key, nobody."""
    from app.dialects.address import parse_address
    from app.dialects.fetch import Fetcher

    address = parse_address(target.base_url)
    with Fetcher(target, address) as fetcher:
        answer = fetcher.get(address.beside(OUR_PATH), time.perf_counter() + TIMEOUT_S)
        if answer.status in (401, 403):
            raise fetcher.problem(answer)
        return answer.status == 200 and "protocol" in answer.object()

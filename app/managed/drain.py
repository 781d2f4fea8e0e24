"""`drain`: waits for the requests of a server before it is restarted."""

from __future__ import annotations

import time

from app.clients.look import Looker
from app.clients.target import ServerType, Target

POLL_S = 0.25
SPAN_S = 1.0


def drain(target: Target, server_type: ServerType, limit_s: float) -> int:
    """The requests that are left when there are none, or after `limit_s`. 0 where the server does
    not report them. Blocks. Raises InferdeckError where it does not answer."""
    looker, end = Looker(target, server_type, SPAN_S, SPAN_S), time.monotonic() + limit_s
    try:
        while True:
            figures = looker.look()
            left = (figures.running or 0) + (figures.waiting or 0)
            if not left or time.monotonic() >= end:
                return left
            time.sleep(POLL_S)
    finally:
        looker.close()

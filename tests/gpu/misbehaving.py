"""Cells that go wrong, for the tests of what runs them. None needs a device."""

from __future__ import annotations

import os
import time
from typing import Any


def good(bench: Any, *, value: int = 1) -> dict[str, Any]:
    return {"value": value, "process": os.getpid()}


def raises(bench: Any) -> dict[str, Any]:
    raise RuntimeError("the kernel is wrong")


def hangs(bench: Any) -> dict[str, Any]:
    time.sleep(600)
    return {}


def dies(bench: Any) -> dict[str, Any]:
    os._exit(9)


def never_loads(bench: Any) -> dict[str, Any]:
    bench.say("loading")
    os._exit(7)

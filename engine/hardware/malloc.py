"""Tunes glibc's malloc: memory freed by a step is kept for the next one, memory freed by a model
goes back to the system.

By default glibc returns freed buffers of a few megabytes to the system and maps them again, page by
page, in every step; on threads other than the first, nearly all of them. A step of 8 requests with
1,000 tokens each took 328,000 page faults, and three times as long.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

# <malloc.h>: option, value, and the variable by which a user sets the same. The threads share one
# arena, because the others cannot grow beyond 64 MiB and so fall back to the system.
_OPTIONS = (
    (-8, 1, "MALLOC_ARENA_MAX"),
    (-3, 2**27, "MALLOC_MMAP_THRESHOLD_"),
    (-1, 2**31 - 1, "MALLOC_TRIM_THRESHOLD_"),
    (-2, 2**26, "MALLOC_TOP_PAD_"),
)


capturing = threading.RLock()
"""Held by the thread that captures a step on a GPU. To give memory back meanwhile would be an error
of torch's, in whichever thread."""


@cache
def keep_freed() -> None:
    """Let this process keep freed memory, until `give_back`. Best called before threads start.
    Settings in the user's environment have priority; without glibc nothing happens."""
    mallopt = _function("mallopt")
    for option, value, variable in _OPTIONS:
        if mallopt is not None and variable not in os.environ:
            mallopt(option, value)


def give_back() -> None:
    """Return all freed memory to the system, and cached GPU memory to other programs."""
    torch: Any = sys.modules.get("torch")  # not imported for this
    if torch is not None and torch.cuda.is_initialized():
        with capturing:
            torch.cuda.empty_cache()
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Callable[..., Any] | None:
    """A function that only glibc has."""
    if sys.platform != "linux":
        return None
    found: Callable[..., Any] | None = getattr(ctypes.CDLL(None), name, None)
    return found

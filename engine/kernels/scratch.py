"""Buffers that a thread uses again: a fresh large one costs page faults in every step."""

from __future__ import annotations

import threading

import torch

_held = threading.local()


def scratch(name: str, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`size` elements under a name, until this thread asks for that name again."""
    key = f"{name} {dtype}"
    found: torch.Tensor | None = getattr(_held, key, None)
    if found is None or found.numel() < size:
        # not an inference tensor, so that it can be written inside and outside inference mode
        with torch.inference_mode(False):
            found = torch.empty(size, dtype=dtype)
        setattr(_held, key, found)
    return found[:size]

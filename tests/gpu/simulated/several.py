"""For tests of several GPUs: two of them, and threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def ones(device: object, count: int = 4) -> torch.Tensor:
    return torch.ones(count, device=device)  # type: ignore[call-overload, no-any-return]


def in_threads(*runs: Callable[[], object]) -> list[object]:
    """What each gives that is run in a thread of its own, all at once."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [future.result() for future in [pool.submit(run) for run in runs]]

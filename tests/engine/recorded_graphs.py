"""Stands in for CUDA graphs where there is no GPU: what was captured is run again."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Recorded:
    """A graph that runs what it captured. It sees what a real one would: the same tensors."""

    def __init__(self, run: Callable[[], None], log: list[str]) -> None:
        self._run = run
        self._log = log

    def replay(self) -> None:
        self._log.append("replay")
        with torch.inference_mode():
            self._run()

    def reset(self) -> None:
        self._log.append("reset")
        self._run = self._gone

    def _gone(self) -> None:
        raise AssertionError("a graph was replayed after it was given back")


class Recording:
    """Stands in for CUDA's capture. Its `fail` decides by the number of the capture."""

    def __init__(self, fail: Callable[[int], None] = lambda index: None) -> None:
        self.log: list[str] = []
        self.held_bytes = 3 * 2**20
        self._fail = fail
        self._count = 0

    def __call__(self, run: Callable[[], None]) -> Recorded:
        self._count += 1
        self._fail(self._count - 1)
        run()
        return Recorded(run, self.log)

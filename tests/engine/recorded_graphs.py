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
    """Stands in for CUDA's capture. Its `fail` decides by the number of the capture. launched_s,
    replayed_s: what any step is said to take."""

    def __init__(
        self,
        fail: Callable[[int], None] = lambda index: None,
        launched_s: float = 0.003,
        replayed_s: float = 0.001,
    ) -> None:
        self.log: list[str] = []
        self.launched_s, self.replayed_s = launched_s, replayed_s
        self.graph_bytes = 3 * 2**20
        self._fail = fail
        self._count = 0

    def __call__(self, run: Callable[[], None]) -> Recorded:
        self._count += 1
        self._fail(self._count - 1)
        run()
        return Recorded(run, self.log)

    def seconds(self, run: Callable[[], object]) -> float:
        """Runs nothing."""
        is_replay = isinstance(getattr(run, "__self__", None), Recorded)
        return self.replayed_s if is_replay else self.launched_s

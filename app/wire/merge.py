"""Several snapshots as one, for whoever reads them more slowly than they come. No Qt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from engine.snapshot import EngineSnapshot


def merge_snapshots(
    snapshots: Sequence[EngineSnapshot], most: int | None = None
) -> EngineSnapshot:
    """The last of `snapshots` with the steps and samples of all of them, the newest `most` of
    each."""
    first = 0 if most is None else -most
    return dataclasses.replace(
        snapshots[-1],
        steps=tuple(step for s in snapshots for step in s.steps)[first:],
        ttft=tuple(sample for s in snapshots for sample in s.ttft)[first:],
        itl=tuple(sample for s in snapshots for sample in s.itl)[first:],
    )

"""Which colour a request has, for as long as it holds blocks. No Qt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class OwnerSlots:
    """Gives each request the colour that the fewest others have, and keeps it."""

    def __init__(self, num_colors: int) -> None:
        self._num_colors = num_colors
        self._slots: dict[str, int] = {}

    def update(self, owners: Sequence[str]) -> NDArray[np.int64]:
        """The colours of `owners`, in their order; those of all others are given back."""
        self._slots = {name: self._slots[name] for name in owners if name in self._slots}
        used = [0] * self._num_colors
        for slot in self._slots.values():
            used[slot] += 1
        for name in owners:
            if name not in self._slots:
                slot = used.index(min(used))
                used[slot] += 1
                self._slots[name] = slot
        return np.array([self._slots[name] for name in owners], np.int64)

    def slot(self, owner: str) -> int | None:
        return self._slots.get(owner)

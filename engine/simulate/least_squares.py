"""Least squares with coefficients of at least 0, by the active set of Lawson and Hanson on the
normal equations (R. Bro and S. de Jong, "A fast non-negativity-constrained least squares
algorithm", 1997)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_TOLERANCE = 1e-10


def non_negative(normal: Floats, target: Floats) -> Floats:
    """x >= 0 that minimizes x' normal x / 2 - target' x. normal: [k, k], positive semidefinite;
    target: [k]."""
    size = len(target)
    # columns of one length: their units differ by many orders of magnitude
    scale = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    matrix, wanted = normal / np.outer(scale, scale), target / scale
    found, free = np.zeros(size), np.zeros(size, dtype=bool)
    limit = _TOLERANCE * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    for _ in range(3 * size):
        slack = np.where(free, -np.inf, wanted - matrix @ found)
        if free.all() or slack.max() <= limit:
            break
        free[int(np.argmax(slack))] = True
        while True:
            trial = np.zeros(size)
            places = np.flatnonzero(free)
            trial[places] = np.linalg.lstsq(
                matrix[np.ix_(places, places)], wanted[places], rcond=1e-12
            )[0]
            falling = free & (trial <= 0)
            if not falling.any():
                break
            # go as far as the first coefficient allows, and leave it at 0
            steps = np.full(size, np.inf)
            steps[falling] = found[falling] / np.maximum(found[falling] - trial[falling], 1e-300)
            found = found + steps.min() * (trial - found)
            free &= found > _TOLERANCE
            free[int(np.argmin(steps))] = False
            found[~free] = 0.0
        found = trial
    return found / scale

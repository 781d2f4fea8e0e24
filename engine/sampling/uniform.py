"""Random numbers keyed by (seed, position): no state, hence no order to depend on.

SplitMix64 (Steele, Lea and Flood 2014) run as a counter-based generator: the seed is mixed into
the start of a stream, the position is the index in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MASK = 2**64 - 1


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) per (seed, position), with 53 random bits. Seeds: any integers, taken
    modulo 2**64."""
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    position = np.array([p & _MASK for p in positions], dtype=np.uint64)
    bits = _mix(_mix(seed + _GAMMA) + (position + np.uint64(1)) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53

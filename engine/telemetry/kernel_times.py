"""What the linear layers of recent steps would take with other weights, or with more rows: from
measured rates of the kernels (`engine.kernels.weight_rates`), which compute few rows far below the
peak rate. No torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.telemetry.situation import Situation

QUANTIZED = ("int8", "int4", "nf4", "fp8")
CERTAIN, POSSIBLE = 0.7, 1.4
"""Of a time that was computed from measured kernels: the products of a model are not those of the
measurement."""


class Saving(NamedTuple):
    """Seconds that the linear layers would take less in all steps: at least, at most, and if all of
    the model's time that may be theirs is; their time after over that before."""

    least: float
    most: float
    possible: float
    quotient: float


def kernel_saving(
    situation: Situation, before: str, after: str, bits_before: float, bits_after: float
) -> Saving | None:
    """From measured rates of the kernels, None without. They are those of one thread: a large
    matrix is computed by all threads, a small one by one of them (MKL's products of one row)."""
    count = situation.model.flops_per_token / 2
    splits = situation.splits
    fixed = situation.works[:, 1] / situation.peaks.read_bytes_per_s * situation.speeds
    # at most the time of the forward pass, less that of KV reads and the LM head
    available = np.maximum(0.0, splits.floor + splits.launch - splits.kv - fixed)
    found = []
    for used in (_threads(situation), 1):
        old = _seconds_per_weight(situation, before, bits_before, used)
        new = _seconds_per_weight(situation, after, bits_after, used)
        if old is None or new is None:
            return None
        linear, share = np.minimum(count * old, available), 1 - new / old
        saved, total = float(np.sum(linear * share)), float(np.sum(linear))
        possible = float(np.sum(available * share))
        found.append(Saving(saved, saved, possible, (total - saved) / total if total else 1.0))
    whole, alone = found
    least, most = sorted((whole.least, alone.least))
    return Saving(least, most, max(whole.possible, alone.possible), whole.quotient)


def more_with_rows(situation: Situation, growth: float) -> tuple[float, float]:
    """Seconds that the linear layers take longer in all steps with `growth` times the rows, at
    least and at most: from measured rates of the kernels, which compute few rows far below the peak
    rate; (0, 0) without these."""
    model = situation.snapshot.model
    method: str = getattr(situation.snapshot.config, "quantization", "none")
    method = method if method in QUANTIZED else "none"
    bits = 8.0 * model.weights_bytes / max(1, model.num_parameters)
    splits, count = situation.splits, situation.model.flops_per_token / 2
    available = np.asarray(splits.floor + splits.launch - splits.kv)
    found = []
    for used in (_threads(situation), 1):
        old = _seconds_per_weight(situation, method, bits, used)
        new = _seconds_per_weight(situation, method, bits, used, growth)
        if old is None or new is None:
            return 0.0, 0.0
        found.append(float(np.sum(np.minimum(count * old, available) * (new / old - 1))))
    least, most = sorted(max(0.0, more) for more in found)
    return CERTAIN * least, POSSIBLE * most


def _threads(situation: Situation) -> int:
    return situation.peaks.num_threads if situation.snapshot.model.device == "cpu" else 1


def _seconds_per_weight(
    situation: Situation, method: str, bits: float, threads: int, growth: float = 1.0
) -> NDArray[np.float64] | None:
    """In each step, with `growth` times its rows: the longer of computing, on so many threads, and
    reading at the peak rate."""
    peaks = situation.peaks
    known = sorted((r.rows, r.seconds) for r in peaks.weight_rates if r.method == method)
    if not known:
        return None
    rows, seconds = np.array(known).T
    own = np.maximum(1.0, situation.rows * growth)
    computed = np.interp(np.log(own), np.log(rows), seconds / threads)
    beyond = np.maximum(1.0, own / rows[-1])  # compute-bound from there on
    return np.maximum(computed * beyond, bits / 8 / peaks.read_bytes_per_s)

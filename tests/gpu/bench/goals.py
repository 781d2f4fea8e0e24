"""What was wanted, and whether it was reached. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MET, MISSED, UNKNOWN = "met", "missed", "not measured"
DECODE_GOALS = (("bf16", 1, 0.75), ("int4", 1, 0.60), ("bf16", 64, 0.70), ("int4", 64, 0.70))
PREFILL_GOAL, PEER_GOAL, PEER_MOST = 0.60, 2.0, 64

Rows = Mapping[str, Mapping[str, Any]]


class Goal(NamedTuple):
    """`measured` at least `wanted`; None where there is nothing to judge by."""

    text: str
    wanted: float
    measured: float | None

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return UNKNOWN
        return MET if self.measured >= self.wanted else MISSED

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "verdict": self.verdict}


def goals(waves: Rows, peers: Rows) -> list[Goal]:
    """Of the rows of the report by name of their cell (`report.wave_row`, `report.peer_row`)."""
    found = [
        Goal(
            f"decode, {precision}, {count} at once: share of the floor",
            wanted,
            _at(waves, _wave(precision, count), "step_fraction"),
        )
        for precision, count, wanted in DECODE_GOALS
    ]
    found.append(
        Goal(
            "prefill, bf16, one prompt: share of the matrix rate",
            PREFILL_GOAL,
            _at(waves, _wave("bf16", 1), "ttft_p50_fraction"),
        )
    )
    counts = sorted(
        row["concurrency"]
        for row in peers.values()
        if row["engine"] == "generate_batch" and row["concurrency"] <= PEER_MOST
    )
    for count in counts or (1, 8, 64):
        ours = _at(waves, _wave("bf16", count), "decode_tokens_per_s")
        theirs = _at(peers, f"peers/generate_batch/{count}", "decode_tokens_per_s")
        ratio = ours / theirs if ours and theirs else None
        found.append(Goal(f"decode, bf16, {count} at once: times generate_batch", PEER_GOAL, ratio))
    return found


def _wave(precision: str, concurrency: int) -> str:
    return f"decode/{precision}/kv-auto/unique/{concurrency}"


def _at(rows: Rows, name: str, key: str) -> float | None:
    value = rows.get(name, {}).get(key)
    return None if value is None else float(value)

"""Which rung of a ladder paid, and why, in words. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.bench.goals import Goals
from app.bench.ladder import CLEAR
from app.bench.ranking import nearest
from app.bench.rungs import Rung, State
from engine.telemetry.step_cost import verdict
from engine.units import (
    bytes_text,
    change_text,
    counted,
    factor_text,
    figure,
    percent_text,
    rate_text,
)

LITTLE = 0.01
"""Share of prompt tokens below which the prefix cache is not used."""


def why(rung: Rung, rungs: Sequence[Rung]) -> str:
    """Why a rung is faster or not, from its measurements and those of the rung below."""
    if rung.state in (State.SKIPPED, State.FAILED):
        return f"{rung.state.value.capitalize()}. {rung.reason}".strip()
    below = next((one for one in rungs if one.key == rung.below), None)
    if rung.state is State.WAITING:
        return ""
    found = [bottleneck(rung)] if below is None else [_WORDS[rung.key](rung, below)]
    if rung.reason:
        found.append(f"Left out. {rung.reason}")
    return " ".join(filter(None, (*found, rung.note)))


def bottleneck(rung: Rung) -> str:
    """ "Memory-bound: weights 71 %." """
    words = verdict(rung.split) if rung.split is not None else ""
    return f"{words[0].upper()}{words[1:]}." if words else ""


def answer(rungs: Sequence[Rung], goals: Goals) -> str:
    """From the first rung to the last kept one, and the rung that paid most."""
    kept = [rung for rung in rungs if rung.is_kept]
    if not kept:
        return next((r.reason for r in rungs if r.reason), "No rung was measured.")
    first, last = kept[0], kept[-1]
    if not last.users:
        titles = {id(rung.best): rung.title for rung in rungs}
        near = nearest([rung.best for rung in rungs if rung.best is not None], goals)
        closest = f" Nearest: {titles[id(near)]} ({goals.missed(near.figures)})." if near else ""
        return f"No rung meets {goals}.{closest}"
    by = f" ({factor_text(last.users / first.users)})" if first.users else ""
    users = f"Users under {goals}: {first.users:,} → {last.users:,}{by}"
    text = f"{users}, {rate_text(first.rate)} → {rate_text(last.rate)}."
    paid = max(kept[1:], key=lambda rung: gain(rung, rungs), default=None)
    if paid is None or max(gain(paid, rungs)) <= 1 + CLEAR:
        return f"{text} No rung paid."
    return f"{text} {paid.title} paid most. {why(paid, rungs)}".strip()


def gain(rung: Rung, rungs: Sequence[Rung]) -> tuple[float, float]:
    """Factors of users and of throughput to the rung below; 1 without one."""
    below = next((one for one in rungs if one.key == rung.below), None)
    if below is None:
        return 1.0, 1.0
    rate = rung.rate / below.rate if below.rate else 1.0
    return max(rung.users, 0.5) / max(below.users, 0.5), rate


def _of(rung: Rung, key: str) -> float | None:
    """A figure of a rung at the load of the one below, where both are compared."""
    point = rung.same or rung.best
    found: float | None = point.figures.get(key) if point is not None else None
    return found


def _at(rung: Rung, key: str) -> float | None:
    found: float | None = rung.best.figures.get(key) if rung.best is not None else None
    return found


def _continuous(rung: Rung, below: Rung) -> str:
    before, now = _at(below, "mean_batch_size"), _of(rung, "mean_batch_size")
    users = below.best.settings["concurrency"] if below.best else 0
    if before is None or now is None:
        return ""
    if now > before * (1 + CLEAR):
        return (
            f"Of {counted(users, 'user')}, static batches ran {figure(before)} per step, "
            f"continuous ones {figure(now)}."
        )
    full = f"static batches were as full ({figure(before)} per step)"
    if rung.users > below.users:
        at = counted(users, "user")
        return f"With {at}, {full}. With more, requests do not wait for a batch to end."
    return f"Not used by this load: {full}."


def _paged(rung: Rung, below: Rung) -> str:
    if _is_full(below, rung):
        now = "all users" if rung.room is None else f"{rung.room:,}"
        room = counted(below.room or 0, "request")
        return f"Contiguous allocation had room for {room}, paged for {now}."
    sizes = f": KV in use {_kv_used(rung, below)}" if rung.same is not None else ""
    return f"KV memory did not limit this load{sizes}."


def _prefix(rung: Rung, below: Rung) -> str:
    rate = _at(rung, "prefix_cache_hit_rate")
    if rate is None or rate < LITTLE:
        return f"Not used by this load: no shared prefixes, {percent_text(rate or 0.0)} hits."
    return f"{percent_text(rate)} of the prompt tokens came from the cache."


def _weights(rung: Rung, below: Rung) -> str:
    before, now = _at(below, "weights_bytes"), _at(rung, "weights_bytes")
    sizes = "" if not before or not now else f"Weights {bytes_text(before)} → {bytes_text(now)}."
    return " ".join(filter(None, (_bound(rung, below, "weights"), sizes)))


def _kv(rung: Rung, below: Rung) -> str:
    is_full = _is_full(below, rung)
    full = f"The KV cache was full with {counted(below.room or 0, 'request')}." if is_full else ""
    used = f"KV in use {_kv_used(rung, below)}." if rung.same is not None else ""
    return " ".join(filter(None, (_bound(rung, below, "kv"), full, used)))


def _is_full(below: Rung, rung: Rung) -> bool:
    """Whether the KV cache of the rung below had no room for the users of this one."""
    return below.room is not None and below.room <= rung.users


def _kv_used(rung: Rung, below: Rung) -> str:
    """Peak bytes at the same load: "4.0 MiB → 1.0 MiB"."""
    sizes = [
        bytes_text(point.figures["memory_bytes"] - point.figures["weights_bytes"])
        for point in (below.best, rung.same)
        if point is not None
    ]
    return " → ".join(sizes)


def _bound(rung: Rung, below: Rung, part: str) -> str:
    """The share of a step that the rung makes smaller, and whether it explains the gain."""
    if below.split is None:
        return ""
    share = getattr(below.split.shares(), part)
    name = {"weights": "Weights", "kv": "KV"}[part]
    text = f"{name} took {percent_text(share)} of a step before ({verdict(below.split)})."
    faster = (_of(rung, "output_tokens_per_s") or 0.0) / below.rate if below.rate else 1.0
    if rung.same is None or faster <= (1 + CLEAR) / max(1 - share, 0.01):
        return text
    return f"{text} {factor_text(faster)} at the same load is more than that: new kernels or noise."


def _drafts(rung: Rung, below: Rung) -> str:
    rate, length = _at(rung, "acceptance_rate"), _at(rung, "acceptance_length")
    if rate is None or length is None:
        return "Not used by this load: no drafts."
    return f"Acceptance rate {percent_text(rate)}, {figure(length)} tokens per round."


_WORDS: Mapping[str, Callable[[Rung, Rung], str]] = {
    "continuous": _continuous, "paged": _paged, "prefix": _prefix, "weights": _weights, "kv": _kv,
    "drafts": _drafts,
}  # fmt: skip


def gain_words(rung: Rung, rungs: Sequence[Rung]) -> str:
    """ "+50 %": tokens per second against the rung below."""
    return "" if not rung.below else change_text(gain(rung, rungs)[1] - 1)

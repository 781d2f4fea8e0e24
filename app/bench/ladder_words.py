"""Which rung of a ladder paid, and why, in words. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.bench.goals import Goals
from app.bench.ranking import nearest
from app.bench.rungs import CLEAR, Rung, State, clear_of
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
RULE = (
    "A rung is kept if it serves at least as many users and is not slower, within noise. "
    "Green: more users than the rung below; red: fewer; amber: noise; hatched: left out."
)


def why(rung: Rung, rungs: Sequence[Rung]) -> str:
    """Why a rung is faster or not, from its measurements and those of the rung below."""
    if rung.state in (State.SKIPPED, State.FAILED):
        return f"{rung.state.value.capitalize()}. {rung.reason}".strip()
    below = next((one for one in rungs if one.key == rung.below), None)
    if rung.state is State.WAITING:
        return ""
    if below is None:
        found = [bottleneck(rung)]
    else:
        found = [_WORDS[rung.key](rung, below), _noise(rung, below, clear_of(rungs))]
    if rung.reason:
        found.append(f"Left out. {rung.reason}")
    return " ".join(filter(None, (*found, rung.doubt, rung.note)))


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
    most = most_paid(rungs)
    if last.missed and last is not most:
        text += f" {last.missed}"
    if most is None:
        return f"{text} No technique has a gain beyond noise."
    return f"{text} Largest gain: {most.title}. {why(most, rungs)}".strip()


def most_paid(rungs: Sequence[Rung]) -> Rung | None:
    """The kept rung with the largest gain beyond noise, while it serves users under the goals."""
    clear = clear_of(rungs)
    kept = [rung for rung in rungs if rung.is_kept]
    paid = [r for r in kept[1:] if max(gain(r, rungs)) > 1 + clear and not is_noise(r, rungs)]
    is_met = bool(kept) and kept[-1].users > 0
    return max(paid, key=lambda rung: gain(rung, rungs), default=None) if is_met else None


def gain(rung: Rung, rungs: Sequence[Rung]) -> tuple[float, float]:
    """Factors of users and of throughput to the rung below; 1 without one."""
    below = next((one for one in rungs if one.key == rung.below), None)
    if below is None:
        return 1.0, 1.0
    rate = rung.rate / below.rate if below.rate else 1.0
    return max(rung.users, 0.5) / max(below.users, 0.5), rate


def is_noise(rung: Rung, rungs: Sequence[Rung]) -> bool:
    """Whether its difference to the rung below is no more than runs of the same settings have, or
    did not show again."""
    below = next((one for one in rungs if one.key == rung.below), None)
    return below is not None and bool(rung.doubt or _noise(rung, below, clear_of(rungs)))


def _noise(rung: Rung, below: Rung, clear: float) -> str:
    """Of a kept rung without a difference, or with one that its technique cannot have caused."""
    if not rung.is_kept:
        return ""
    users, rate = gain(rung, (rung, below))
    if users == 1 and abs(rate - 1) <= clear:
        return f"Within noise ({percent_text(clear)}): tokens/s {change_text(rate - 1)}."
    if not _USED.get(rung.key, lambda rung, below: True)(rung, below):
        now = f"{below.users:,} → {counted(rung.users, 'user')}, tokens/s {change_text(rate - 1)}"
        return f"Noise between runs, not the technique: {now}."
    if _is_full(below, rung) or rung.key == "continuous" or not _is_same(rung, below, clear):
        return ""
    at = counted(below.best.settings["concurrency"] if below.best else 0, "user")
    return f"With {at}, within noise ({percent_text(clear)}) of the rung below."


def _is_same(rung: Rung, below: Rung, clear: float) -> bool:
    """Whether throughput, TTFT and ITL at the load of the rung below are those of it."""
    if rung.same is None or below.best is None:
        return False
    for key in ("output_tokens_per_s", "ttft_ms", "itl_ms"):
        before, now = below.best.figures[key], rung.same.figures[key]
        if key.endswith("_ms"):
            before, now = before["p50"], now["p50"]
        if before and now and abs(now / before - 1) > clear:
            return False
    return True


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
            f"With {counted(users, 'user')}, static batches had {figure(before)} per step, "
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
    rate = percent_text(_at(rung, "prefix_cache_hit_rate") or 0.0)
    if not _has_hits(rung, below):
        return f"Not used by this load: {rate} of the prompt tokens hit the cache."
    return f"{rate} of the prompt tokens came from the cache."


def _has_hits(rung: Rung, below: Rung) -> bool:
    return (_at(rung, "prefix_cache_hit_rate") or 0.0) >= LITTLE


def _weights(rung: Rung, below: Rung) -> str:
    before, now = _at(below, "weights_bytes"), _at(rung, "weights_bytes")
    sizes = "" if not before or not now else f"Weights {bytes_text(before)} → {bytes_text(now)}."
    return " ".join(filter(None, (_bound(rung, below, "weights"), sizes)))


def _kv(rung: Rung, below: Rung) -> str:
    is_full = _is_full(below, rung)
    full = f"The KV cache was full with {counted(below.room or 0, 'request')}." if is_full else ""
    used = f"KV in use {_kv_used(rung, below)}." if rung.same is not None else ""
    return " ".join(filter(None, (_bound(rung, below, "kv"), full, used)))


def _reads_kv(rung: Rung, below: Rung) -> bool:
    """Whether reads of the KV cache are long enough that less of them is more than noise."""
    share = below.split.shares().kv if below.split is not None else 1.0
    return _is_full(below, rung) or 1 / max(1 - share, 0.01) > 1 + CLEAR


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
    shares = below.split.shares()
    share = getattr(shares, part)
    other = max((name for name in _PARTS if name != part), key=lambda name: getattr(shares, name))
    own, rest = percent_text(share), percent_text(getattr(shares, other))
    name = f"{_PARTS[part][0].upper()}{_PARTS[part][1:]}"
    text = f"{name} were {own} of step time; {_PARTS[other]} {rest}."
    faster = (_of(rung, "output_tokens_per_s") or 0.0) / below.rate if below.rate else 1.0
    is_more = rung.same is not None and faster > (1 + CLEAR) / max(1 - share, 0.01)
    if not is_more or not _USED[part](rung, below):
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
_USED: Mapping[str, Callable[[Rung, Rung], bool]] = {
    "paged": lambda rung, below: _is_full(below, rung),
    "prefix": _has_hits,
    "weights": lambda rung, below: True,  # its kernels differ too
    "kv": _reads_kv,
    "drafts": lambda rung, below: bool(_at(rung, "acceptance_rate")),
}
"""Whether a technique can have caused a difference, by the key of its rung."""
_PARTS = {
    "weights": "weight reads", "kv": "KV reads", "arithmetic": "compute",
    "launch": "kernel launch and other overhead", "python": "scheduling and sampling",
    "queue": "idle between steps", "draft": "drafting",
}  # fmt: skip

"""What turning a knob of the bottleneck would be as settings of the engine, or why it would do
nothing. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from engine.ceilings import DRAFT_LENGTH, Ceiling
from engine.config import SETTINGS, Change

IS_ON, NOTHING, NOT_OURS = "on already", "nothing to win", "not in this engine"
_COSTS = {
    Change.LIVE: "from the next step on",
    Change.CACHE_REBUILD: "the cache is rebuilt; requests pause and resume",
    Change.RELOAD: "the model is loaded again; requests pause and resume",
}


class Turn(NamedTuple):
    """`changes`: what to set, in the words of the engine's settings; none where `refusal` says in
    full, and `short` in a word or two, why not."""

    changes: Mapping[str, Any]
    short: str = ""
    refusal: str = ""

    @property
    def text(self) -> str:
        """What pressing the button does."""
        order = list(Change)
        cost = max((SETTINGS[name].change for name in self.changes), key=order.index)
        words = ", ".join(f"{SETTINGS[n].label} {_value(v)}" for n, v in self.changes.items())
        return f"Set {words}: {_COSTS[cost]}. Undo leads back."


def turn_of(one: Ceiling, config: Any, refuse: Callable[[str, Any], str]) -> Turn:
    """`refuse(setting, value)`: why the window cannot set it now; "" where it can."""
    if not hasattr(config, one.setting):
        return Turn({}, NOT_OURS, "This engine does not have it yet.")
    turn = _TURNS[one.setting](one, config)
    if turn.refusal:
        return turn
    if not one.is_worth_trying:
        return Turn({}, NOTHING, "There is nothing to win with it.")
    for name, value in turn.changes.items():
        if reason := refuse(name, value):
            return Turn({}, "not now", reason)
    return turn


def _weights(one: Ceiling, config: Any) -> Turn:
    if config.quantization == one.value:
        return Turn({}, IS_ON, f"The weights are held as {one.value} already.")
    return Turn({"quantization": one.value})


def _kv(one: Ceiling, config: Any) -> Turn:
    if config.kv_cache_dtype == "int8":
        return Turn({}, IS_ON, "Keys and values are held as int8 already.")
    return Turn({"kv_cache_dtype": "int8"})


def _places(one: Ceiling, config: Any) -> Turn:
    if not one.value.isdigit():
        return Turn({}, NOTHING, "Nobody waits for a place: more would stay empty.")
    wanted = min(int(one.value), int(SETTINGS["max_num_seqs"].maximum or 1024))
    if wanted <= config.max_num_seqs:
        reason = "Places are free: what waits, waits for blocks of the cache or for its batch."
        return Turn({}, "places are free", reason)
    return Turn({"max_num_seqs": wanted})


def _prefixes(one: Ceiling, config: Any) -> Turn:
    if config.enable_prefix_caching:
        reason = "It is on: more is found only where more prompts begin alike."
        return Turn({}, IS_ON, reason)
    return Turn({"enable_prefix_caching": True})


def _budget(one: Ceiling, config: Any) -> Turn:
    most = int(SETTINGS["max_num_batched_tokens"].maximum or 2**17)
    wanted = min(2 * config.max_num_batched_tokens, most)
    if wanted <= config.max_num_batched_tokens:
        return Turn({}, "at its most", f"{most:,} tokens a step are the most.")
    return Turn({"max_num_batched_tokens": wanted})


def _drafts(one: Ceiling, config: Any) -> Turn:
    """Drafts from the text itself need no other model."""
    if config.speculative_method != SETTINGS["speculative_method"].default:
        return Turn({}, IS_ON, f"Drafts come from {config.speculative_method} already.")
    return Turn({"speculative_method": "ngram", "num_speculative_tokens": DRAFT_LENGTH})


_TURNS: Mapping[str, Callable[[Ceiling, Any], Turn]] = {
    "quantization": _weights,
    "kv_cache_dtype": _kv,
    "max_num_seqs": _places,
    "enable_prefix_caching": _prefixes,
    "max_num_batched_tokens": _budget,
    "speculative_method": _drafts,
}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else f"{value}"

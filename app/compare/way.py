"""How both sides get an engine: one for both, two at once, or one after the other. No Qt.

SAME      left and right differ in sampling alone: the engine that is loaded answers for both
BESIDE    both engines are loaded at once: they fit the memory together
SWITCH    one after the other: the loaded engine changes its settings, and goes back
REPLACE   one after the other: another model is loaded in its place, and the first again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from app.models.estimate import Estimate
from app.settings_store import RecentModel
from app.units import format_bytes
from engine.config import SETTINGS, EngineConfig
from engine.sampling_params import SamplingParams
from engine.snapshot import MemoryPlan

GREEDY = SamplingParams(temperature=0.0, seed=0)


class Way(Enum):
    SAME = auto()
    BESIDE = auto()
    SWITCH = auto()
    REPLACE = auto()

    @property
    def is_in_turn(self) -> bool:
        """Whether the one engine has to change between the sides."""
        return self in (Way.SWITCH, Way.REPLACE)


@dataclass(frozen=True, slots=True)
class Setup:
    """The right side: `settings` that it has on top of `model`'s own, or of those in force where
    it is the model that is loaded (None). `sampling` and `sampling_names`: of left and right."""

    settings: Mapping[str, Any]
    name: str
    model: RecentModel | None = None
    sampling: tuple[SamplingParams, SamplingParams] = (GREEDY, GREEDY)
    sampling_names: tuple[str, str] = ("greedy", "greedy")

    def config(self, loaded: EngineConfig) -> EngineConfig:
        """What an engine of the right side runs with. Raises ConfigError."""
        base = loaded if self.model is None else self.model.config()
        return base.replace(**without_auto(self.settings))


class Decision(NamedTuple):
    """`why`: in words, with the numbers. `config`: of the engine beside, or in the place of, the
    one that is loaded."""

    way: Way
    why: str
    config: EngineConfig | None = None


def in_turn(setup: Setup, why: str, config: EngineConfig) -> Decision:
    """One after the other, because of `why`."""
    if setup.model is None:
        return Decision(Way.SWITCH, f"One engine after the other: {why}", config)
    ends = "Replies that are being written end when the other model is loaded."
    return Decision(Way.REPLACE, f"One engine after the other: {why} {ends}", config)


def decide(setup: Setup, config: EngineConfig, left: MemoryPlan, right: Estimate) -> Decision:
    """Two at once where what the left has planned and what the right needs fit together.

    The right needs its weights, its activations and a cache for one request of its context.
    """
    need = right.need
    if need is None:
        return in_turn(setup, f"what the right needs is not known. {right.problem}", config)
    taken, room = left.predicted, min(left.limit - left.predicted, need.limit)
    numbers = (
        f"the left has planned {format_bytes(taken)}, the right needs {format_bytes(need.needed)}, "
        f"and {format_bytes(left.limit)} may be used"
    )
    if need.needed > room:
        return in_turn(setup, f"they do not fit at once: {numbers}.", config)
    if config.kv_cache_memory_bytes is None or setup.model is None:
        config = config.replace(kv_cache_memory_bytes=need.kv_cache)
    return Decision(Way.BESIDE, f"Two engines at once: {numbers}.", config)


def without_auto(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the engine resolves by itself."""
    return {n: v for n, v in settings.items() if not (n == "dtype" and v == "auto")}


def agrees(config: EngineConfig, settings: Mapping[str, Any]) -> bool:
    """Whether an engine that runs with `config` has these settings."""
    plain = ("auto", "none")
    known = without_auto(settings)
    return all(
        getattr(config, n) == v or (getattr(config, n) in plain and v in plain)
        for n, v in known.items()
    )


_IN_PRECISION = ("quantization", "quantization_head", "dtype", "kv_cache_dtype")


def other_words(setup: Setup, left: EngineConfig | None) -> str:
    """What the right side sets beside its precision, in words; "" where that is nothing new."""
    base = EngineConfig() if setup.model is not None else left
    new = {n: v for n, v in setup.settings.items() if base is None or getattr(base, n) != v}
    return " · ".join(_setting_words(n, v) for n, v in new.items() if n not in _IN_PRECISION)


def _setting_words(name: str, value: Any) -> str:
    if name == "speculative_method":
        return "no drafts" if value == "off" else f"drafts by {value}"
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"{SETTINGS[name].label.lower()} {'auto' if value is None else value}"

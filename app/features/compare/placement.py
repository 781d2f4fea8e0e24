"""How both sides get an engine: one for both, two at once, or one after the other. No Qt.

SHARED         only sampling differs: the main engine runs both sides
CONCURRENT     two engines at once: both fit in memory
RECONFIGURE    one after the other: the main engine changes its settings
RELOAD         one after the other: the main engine loads the other model

If the main engine is neither side, it becomes the left one first. At the end its previous state is
restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from app.features.models.estimate import Estimate
from app.window.settings_store import RecentModel
from engine.config import SETTINGS, EngineConfig
from engine.hardware.device_map import AUTO
from engine.sampling_params import SamplingParams
from engine.snapshot import MemoryPlan
from engine.units import bytes_text

GREEDY = SamplingParams(temperature=0.0, seed=0)


class Placement(Enum):
    SHARED = auto()
    CONCURRENT = auto()
    RECONFIGURE = auto()
    RELOAD = auto()

    @property
    def is_in_turn(self) -> bool:
        """Whether the main engine switches between the sides."""
        return self in (Placement.RECONFIGURE, Placement.RELOAD)


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of a side: `settings` on top of those stored for `model`, or, where `model` is
    None, on top of those of the loaded model."""

    settings: Mapping[str, Any]
    name: str
    model: RecentModel | None = None
    sampling: SamplingParams = GREEDY
    sampling_name: str = "greedy"

    def base(self, loaded: EngineConfig) -> EngineConfig:
        """The configuration that `settings` are applied to."""
        return loaded if self.model is None else self.model.config()

    def config(self, loaded: EngineConfig) -> EngineConfig:
        """The engine configuration of this side. Raises ConfigError."""
        set_here = dict(self.settings)
        if set_here.get("dtype") == "auto":  # the engine resolves it
            del set_here["dtype"]
        return self.base(loaded).replace(**set_here)

    def is_loaded(self, loaded: EngineConfig) -> bool:
        """Whether the main engine already runs this side."""
        return self.model is None and agrees(loaded, self.settings)


def whole_settings(setups: Sequence[Setup], loaded: EngineConfig) -> list[dict[str, Any]]:
    """Settings of each side, completed with those that only the other one names."""
    names = {name for setup in setups for name in setup.settings}
    bases = [{name: getattr(setup.base(loaded), name) for name in names} for setup in setups]
    return [{**base, **setup.settings} for base, setup in zip(bases, setups, strict=True)]


def needs_one(setups: tuple[Setup, Setup], loaded: EngineConfig) -> bool:
    """Whether one engine can run both sides."""
    left, right = (setup.base(loaded) for setup in setups)
    return is_same_model(left, right) and are_alike(*whole_settings(setups, loaded))


class Decision(NamedTuple):
    """Chosen placement. `why`: the reason with its numbers. `config`: of the second engine, or of
    the one that replaces the loaded one."""

    placement: Placement
    why: str
    config: EngineConfig | None = None


def in_turn(why: str, config: EngineConfig, taken: EngineConfig) -> Decision:
    """One side after the other, because of `why`: `config` replaces `taken`."""
    if is_same_model(config, taken):
        return Decision(Placement.RECONFIGURE, f"One engine, one side at a time. {why}", config)
    ends = "Loading the other model aborts running replies."
    return Decision(Placement.RELOAD, f"One engine, one side at a time. {why} {ends}", config)


def decide(
    config: EngineConfig, taken: EngineConfig, plan: MemoryPlan, found: Estimate, side: str
) -> Decision:
    """Concurrent if the memory plan of the main engine (`taken`) and the memory that `side` needs
    with `config` fit together.

    That is its weights, its activations and KV cache for one request of full context. Layers
    offloaded to the CPU only because the GPU is full do not count as fitting."""
    need, other = found.need, "right" if side == "left" else "left"
    if need is None:
        return in_turn(f"No memory estimate for the {side} side. {found.problem}", config, taken)
    planned, room = plan.predicted, min(plan.limit - plan.predicted, need.limit)
    has, needs = bytes_text(planned), bytes_text(need.everywhere)
    numbers = f"{other} side {has}, {side} side {needs}, {bytes_text(plan.limit)} usable"
    is_squeezed = need.in_ram is not None and config.gpu_layers == AUTO
    if need.needed > room or not need.fits or is_squeezed:
        return in_turn(f"Not enough memory for both sides ({numbers}).", config, taken)
    if config.kv_cache_memory_bytes is None or is_same_model(config, taken):
        config = config.replace(kv_cache_memory_bytes=need.kv_of_all)
    return Decision(Placement.CONCURRENT, f"Two engines in parallel ({numbers}).", config)


def is_same_model(first: EngineConfig, second: EngineConfig) -> bool:
    return (first.model, first.load_format) == (second.model, second.load_format)


def agrees(config: EngineConfig, settings: Mapping[str, Any]) -> bool:
    """Whether `config` has these settings."""
    return are_alike({name: getattr(config, name) for name in settings}, settings)


def are_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two sets of settings with the same names are equivalent for the engine."""
    plain = ("auto", "none")
    return all(
        value == second[name]
        or (value in plain and second[name] in plain)
        or (name == "dtype" and "auto" in (value, second[name]))
        for name, value in first.items()
    )


_IN_PRECISION = ("quantization", "quantization_head", "dtype", "kv_cache_dtype")


def other_settings(setup: Setup, loaded: EngineConfig | None) -> str:
    """Settings of a side apart from its precision: "n-gram speculation · running requests 4"."""
    base = EngineConfig() if setup.model is not None else loaded
    new = {n: v for n, v in setup.settings.items() if base is None or getattr(base, n) != v}
    return " · ".join(_setting_text(n, v) for n, v in new.items() if n not in _IN_PRECISION)


def _setting_text(name: str, value: Any) -> str:
    if name == "speculative_method":
        return "no speculation" if value == "off" else f"{value} speculation"
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"{SETTINGS[name].label.lower()} {'auto' if value is None else value}"

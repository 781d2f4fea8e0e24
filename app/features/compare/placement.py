"""How both sides get an engine: one for both, two at once, or one after the other. No Qt.

SHARED         only sampling differs: the engine of the window runs both sides
CONCURRENT     both engines are loaded at once: they fit in memory
RECONFIGURE    one after the other: the engine of the window changes its settings
RELOAD         one after the other: another model is loaded in its place

Where neither side is what the window has loaded, its engine becomes the left side first. At the end
the previous state is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from app.features.models.estimate import Estimate
from app.features.models.placement import each_of
from app.units import format_bytes
from app.window.settings_store import RecentModel
from engine.config import SETTINGS, EngineConfig
from engine.hardware.device_map import AUTO
from engine.sampling_params import SamplingParams
from engine.snapshot import MemoryPlan

GREEDY = SamplingParams(temperature=0.0, seed=0)


class Placement(Enum):
    SHARED = auto()
    CONCURRENT = auto()
    RECONFIGURE = auto()
    RELOAD = auto()

    @property
    def is_in_turn(self) -> bool:
        """Whether the one engine has to change between the sides."""
        return self in (Placement.RECONFIGURE, Placement.RELOAD)


@dataclass(frozen=True, slots=True)
class Setup:
    """A side: `settings` that it has on top of `model`'s own, or of those in force where it is the
    model that is loaded (None)."""

    settings: Mapping[str, Any]
    name: str
    model: RecentModel | None = None
    sampling: SamplingParams = GREEDY
    sampling_name: str = "greedy"

    def base(self, loaded: EngineConfig) -> EngineConfig:
        """What its settings are set on top of."""
        return loaded if self.model is None else self.model.config()

    def config(self, loaded: EngineConfig) -> EngineConfig:
        """What an engine of this side runs with. Raises ConfigError."""
        set_here = dict(self.settings)
        if set_here.get("dtype") == "auto":  # the engine resolves it
            del set_here["dtype"]
        return self.base(loaded).replace(**set_here)

    def is_loaded(self, loaded: EngineConfig) -> bool:
        """Whether the engine of the window is this side as it is."""
        return self.model is None and agrees(loaded, self.settings)


def whole_settings(setups: Sequence[Setup], loaded: EngineConfig) -> list[dict[str, Any]]:
    """Of each side, every setting that any of them names."""
    names = {name for setup in setups for name in setup.settings}
    bases = [{name: getattr(setup.base(loaded), name) for name in names} for setup in setups]
    return [{**base, **setup.settings} for base, setup in zip(bases, setups, strict=True)]


def needs_one(setups: tuple[Setup, Setup], loaded: EngineConfig) -> bool:
    """Whether one engine is both sides."""
    left, right = (setup.base(loaded) for setup in setups)
    return is_same_model(left, right) and are_alike(*whole_settings(setups, loaded))


class Decision(NamedTuple):
    """`why`: a sentence with the numbers. `config`: of the engine beside, or in the place of, the
    one that is loaded."""

    placement: Placement
    why: str
    config: EngineConfig | None = None


def in_turn(why: str, config: EngineConfig, taken: EngineConfig) -> Decision:
    """One after the other, because of `why`: `config` takes the place of `taken`."""
    if is_same_model(config, taken):
        return Decision(Placement.RECONFIGURE, f"One engine, one side at a time: {why}", config)
    ends = "Loading the other model aborts running replies."
    return Decision(Placement.RELOAD, f"One engine, one side at a time: {why} {ends}", config)


def decide(
    config: EngineConfig, taken: EngineConfig, plan: MemoryPlan, found: Estimate, side: str
) -> Decision:
    """Two at once where the planned memory of the window's engine (`taken`) and what `side` needs
    with `config` fit together.

    It needs its weights, its activations and a cache for one request of its context. Layers
    offloaded to the CPU only because the GPU is full do not count as fitting.
    """
    need, other = found.need, "right" if side == "left" else "left"
    if need is None:
        return in_turn(f"no memory estimate for the {side} side. {found.problem}", config, taken)
    planned, room = plan.predicted, min(plan.limit - plan.predicted, need.limit)
    has = f"{format_bytes(planned)} {each_of(len(taken.devices))}".rstrip()
    needs = f"{format_bytes(need.everywhere)} {need.where}".rstrip()
    numbers = f"{other} {has}, {side} {needs}, limit {format_bytes(plan.limit)}"
    is_squeezed = need.in_ram is not None and config.gpu_layers == AUTO
    if need.needed > room or not need.fits or is_squeezed:
        return in_turn(f"not enough memory for both sides ({numbers}).", config, taken)
    if config.kv_cache_memory_bytes is None or is_same_model(config, taken):
        config = config.replace(kv_cache_memory_bytes=need.kv_of_all)
    return Decision(Placement.CONCURRENT, f"Two engines in parallel ({numbers}).", config)


def is_same_model(first: EngineConfig, second: EngineConfig) -> bool:
    return (first.model, first.load_format) == (second.model, second.load_format)


def agrees(config: EngineConfig, settings: Mapping[str, Any]) -> bool:
    """Whether `config` has these settings."""
    return are_alike({name: getattr(config, name) for name in settings}, settings)


def are_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether both, which name the same settings, mean the same to the engine."""
    plain = ("auto", "none")
    return all(
        value == second[name]
        or (value in plain and second[name] in plain)
        or (name == "dtype" and "auto" in (value, second[name]))
        for name, value in first.items()
    )


_IN_PRECISION = ("quantization", "quantization_head", "dtype", "kv_cache_dtype")


def other_settings(setup: Setup, loaded: EngineConfig | None) -> str:
    """What a side sets beside its precision: "n-gram speculation · running requests 4"."""
    base = EngineConfig() if setup.model is not None else loaded
    new = {n: v for n, v in setup.settings.items() if base is None or getattr(base, n) != v}
    return " · ".join(_setting_text(n, v) for n, v in new.items() if n not in _IN_PRECISION)


def _setting_text(name: str, value: Any) -> str:
    if name == "speculative_method":
        return "no speculation" if value == "off" else f"{value} speculation"
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"{SETTINGS[name].label.lower()} {'auto' if value is None else value}"

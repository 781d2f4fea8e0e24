"""How long a change that loads the model again will take: as last time, else estimated. No Qt.

    estimate = bytes to read / bytes that a load of this model read in a second
             + weights to round * seconds that one takes here
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from app.precision.choices import DTYPE, GROUP, HEAD, WEIGHTS, Checkpoint
from engine.config import EngineConfig

MAX_KEPT = 64
_LOAD = "load"


class Memory(Protocol):
    """Where times are kept between two runs: `app.settings_store.SettingsStore`."""

    @property
    def switch_times(self) -> Mapping[str, float]: ...
    @switch_times.setter
    def switch_times(self, times: Mapping[str, float]) -> None: ...


class Expected(NamedTuple):
    """`is_measured`: it took so long the last time."""

    seconds: float
    is_measured: bool

    @property
    def words(self) -> str:
        source = "as last time" if self.is_measured else "estimated"
        return f"about {seconds_words(self.seconds)} ({source})"


class SwitchTimes:
    """Learns from every load and every change that was measured."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def learn(self, config: EngineConfig, seconds: float) -> None:
        """Loading again with `config` took so long."""
        self._keep(_key(config), seconds)

    def learn_load(self, config: EngineConfig, seconds: float) -> None:
        """The first load with `config` took so long, from its first byte on."""
        self._keep(f"{_LOAD} {_key(config)}", seconds)

    def expected(self, config: EngineConfig, checkpoint: Checkpoint | None) -> Expected | None:
        """For loading again with `config`; None where nothing is known yet."""
        known = self._memory.switch_times
        if _key(config) in known:
            return Expected(known[_key(config)], True)
        if checkpoint is None:
            return None
        loads = [
            seconds - self._rounding(name, checkpoint)
            for name, seconds in known.items()
            if name.removeprefix(f"{_LOAD} ").startswith(f"{config.model}|")
        ]
        if not loads:
            return None
        reading = max(0.0, min(loads))
        rounding = checkpoint.held * checkpoint.rounding.get(config.quantization, 0.0)
        return Expected(reading + rounding, False)

    @staticmethod
    def _rounding(name: str, checkpoint: Checkpoint) -> float:
        method = name.rpartition("|")[2].split("/")[0]
        return checkpoint.held * checkpoint.rounding.get(method, 0.0)

    def _keep(self, name: str, seconds: float) -> None:
        known = dict(self._memory.switch_times)
        known.pop(name, None)
        known[name] = round(seconds, 3)
        self._memory.switch_times = dict(list(known.items())[-MAX_KEPT:])


def _key(config: EngineConfig) -> str:
    own: dict[str, Any] = {name: getattr(config, name) for name in (WEIGHTS, GROUP, HEAD, DTYPE)}
    if own[WEIGHTS] != "int4":
        own[GROUP] = "-"
    if own[WEIGHTS] == "none":
        own[WEIGHTS] = "auto"
    values = "/".join(str(value) for value in own.values())
    return f"{config.model}|{config.load_format}|{values}"


def seconds_words(seconds: float) -> str:
    """ "0.4 s", "12 s", "3 min"."""
    if seconds < 9.95:
        return f"{max(0.1, seconds):.1f} s"
    return f"{seconds:.0f} s" if seconds < 119.5 else f"{seconds / 60:.0f} min"

"""Precision of a model: its label, the choices of a checkpoint, and reload times. No Qt.

BF16                                       unquantized weights
BF16 · INT4 weights (groups of 128)        quantized at load, or stored quantized
BF16 · INT8 weights · INT8 head · KV FP8
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from engine.config import SETTINGS, EngineConfig
from engine.snapshot import ModelInfo
from engine.units import bytes_text, precision_name, rough_duration, weights_text


def precision_text(model: ModelInfo, config: EngineConfig) -> str:
    """Dtype, weights, output head and KV cache: all that affects the output."""
    parts = [precision_name(model.dtype), weights_text(model.quantization)]
    if config.quantization_head != "none":
        parts.append(f"{precision_name(config.quantization_head)} head")
    if config.kv_dtype.is_quantized:
        keys, values = map(precision_name, config.kv_dtype.resolved(model.dtype))
        parts.append(f"KV {keys}" if keys == values else f"K {keys}, V {values}")
    return " · ".join(filter(None, parts))


def precision_change(before: str, after: str) -> str:
    """What changed in the precision `after`: INT8 weights; unquantized weights."""
    old = before.split(" · ")
    new = [part for part in after.split(" · ") if part not in old]
    if new:
        return " · ".join(new)
    gone = [part.split()[-1] for part in old if part not in after.split(" · ")]
    return "unquantized weights" if any("weights" in part for part in old) and gone else after


WEIGHTS, GROUP, HEAD, DTYPE = (
    "quantization", "quantization_group_size", "quantization_head", "dtype",
)  # fmt: skip
ROUNDED = ("int8", "int4", "nf4", "fp8")
"""Quantizations of 16-bit weights at load."""

SOURCE, QUANTIZE = "source", "quantize"
"""Ways to make a refused choice possible: open the original model, or quantize this one."""

_TRIAL_ROWS, _TRIAL_INPUTS = 256, 2048


class Choice(NamedTuple):
    """A value of a setting. `refusal`: why it is not possible, or ""."""

    value: str
    text: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The loaded checkpoint with its possible precisions.

    stored: title of its quantization, method: its name; "" if unquantized. weights: predicted bytes
    by (method, head). held: number of quantizable weights. rounding: seconds to quantize one
    weight, by method, measured on this machine.
    """

    path: str
    dtype: str
    group_size: int
    method: str = ""
    stored: str = ""
    weights: Mapping[tuple[str, str], int] = field(default_factory=dict)
    held: int = 0
    rounding: Mapping[str, float] = field(default_factory=dict)

    def bytes_of(self, method: str, head: str) -> int | None:
        """Predicted bytes of the weights; None for an impossible method."""
        plain = "stored" if self.method else "none"
        known = {"auto": plain, "none": "none" if not self.method else "", self.method: plain}
        return self.weights.get((known.get(method, method), head))

    def of_weights(self, head: str, dtype: str) -> list[Choice]:
        """Every value of the quantization setting, with its size."""
        plain = precision_name(dtype)
        names = {"none": plain, "auto": f"auto: {self.stored}" if self.stored else "auto"}
        return [
            Choice(value, self._sized(names, value, value, head), self._refusal(value, plain))
            for value in SETTINGS[WEIGHTS].choices
        ]

    def of_head(self, method: str) -> list[Choice]:
        """Every value of the output head setting, with its size."""
        names = {"none": precision_name(self.dtype)}
        return [
            Choice(value, self._sized(names, value, method, value))
            for value in SETTINGS[HEAD].choices
        ]

    def _sized(self, names: Mapping[str, str], value: str, method: str, head: str) -> str:
        name, size = names.get(value) or precision_name(value), self.bytes_of(method, head)
        return name if size is None else f"{name} · {bytes_text(size)}"

    def _refusal(self, value: str, plain: str) -> str:
        if self.method:
            if value in ("auto", self.method):
                return ""
            if value == "none":
                return f"The checkpoint is {self.stored} and has no {plain} weights."
            return f"The checkpoint is {self.stored}: quantizing it again adds error."
        if value in ("auto", "none", *ROUNDED):
            return ""
        return f"Requires a {precision_name(value)} checkpoint."

    def seconds_to_round(self, method: str) -> float:
        """Seconds to quantize all weights at a load."""
        return self.held * self.rounding.get(method, 0.0)

    @property
    def limits(self) -> str:
        """Why other precisions are impossible, or ""."""
        if self.method:
            return f"{self.stored} checkpoint: other precisions require the original model"
        return ""

    @property
    def way_out(self) -> str:
        """SOURCE or QUANTIZE: the way to make refused choices possible."""
        return SOURCE if self.method else QUANTIZE


def look_at(config: EngineConfig) -> Checkpoint:
    """The checkpoint of `config` (its dtype resolved), with its size at each precision. Reads no
    weights. Raises InferdeckError."""
    import torch

    from engine.memory.model_sizes import predicted_bytes
    from engine.models import checkpoint as files
    from engine.models.architecture import build_on_meta
    from engine.models.layers.rotary import bytes_of_tables, table_rows
    from engine.numerics.scheme import Scheme, weights_to_hold

    opened = files.Checkpoint.open(config.model, dummy=config.load_format == "dummy")
    reference = build_on_meta(opened.config)
    stored = opened.quantization
    dtype = getattr(torch, config.dtype)
    group = config.quantization_group_size
    weights = {
        ("stored" if stored and method == "none" else method, head): sum(
            predicted_bytes(opened, reference, dtype, Scheme(method, group, head)).values()
        )
        for method in (("none",) if stored else ("none", *ROUNDED))
        for head in SETTINGS[HEAD].choices
    }
    length = config.max_model_len or opened.max_position_embeddings
    tables = bytes_of_tables(table_rows(reference, dtype), length) if length else 0
    shapes = weights_to_hold(reference).values()
    return Checkpoint(
        path=config.model,
        dtype=config.dtype,
        group_size=group,
        method=stored.method if stored else "",
        stored=stored.title if stored else "",
        weights={key: size + tables for key, size in weights.items()},
        held=sum(math.prod(shape) for shape in shapes),
        rounding={
            method: _seconds_per_weight(method, group) for method in (() if stored else ROUNDED)
        },
    )


def _seconds_per_weight(method: str, group: int) -> float:
    """Seconds to quantize one weight here: best of three on a small matrix."""
    import torch

    from engine.numerics.scheme import Scheme

    weight = torch.randn(_TRIAL_ROWS, _TRIAL_INPUTS)
    scheme, best = Scheme(method, group), float("inf")
    for _ in range(3):
        began = time.perf_counter()
        scheme.rounded(weight)
        best = min(best, time.perf_counter() - began)
    return best / weight.numel()


MAX_KEPT = 64
_FIRST, _LOAD = "first", "load"


class Memory(Protocol):
    """Stores times over a restart: `app.window.settings_store.SettingsStore`."""

    switch_times: dict[str, float]


class Expected(NamedTuple):
    """`is_measured`: from the times of such changes."""

    seconds: float
    is_measured: bool

    @property
    def words(self) -> str:
        source = "measured" if self.is_measured else "estimated"
        return f"{rough_duration(self.seconds)} ({source})"


class SwitchTimes:
    """Measured times of loads and precision changes, and predictions from them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def learn(self, config: EngineConfig, seconds: float) -> None:
        """Store the time of a reload with `config`."""
        self._keep(_key(config), seconds)

    def learn_load(self, config: EngineConfig, seconds: float) -> None:
        """Store the time of opening the model with `config`. The first one is not counted: it also
        compiles and measures kernels, which took 40 s of a load of 2 s."""
        key = _key(config)
        is_first = f"{_FIRST} {key}" not in self._memory.switch_times
        self._keep(f"{_FIRST if is_first else _LOAD} {key}", seconds)

    def expected(self, config: EngineConfig, checkpoint: Checkpoint | None) -> Expected | None:
        """Time of a reload with `config`, from other loads of its model where it was not measured;
        None without any."""
        known = self._memory.switch_times
        if _key(config) in known:
            return Expected(known[_key(config)], True)
        if checkpoint is None:
            return None
        loads = [
            seconds - checkpoint.seconds_to_round(name.rpartition("|")[2].split("/")[0])
            for name, seconds in known.items()
            if name.removeprefix(f"{_LOAD} ").startswith(f"{config.model}|")
        ]
        if not loads:
            return None
        reading = max(0.0, min(loads))
        return Expected(reading + checkpoint.seconds_to_round(config.quantization), False)

    def _keep(self, name: str, seconds: float) -> None:
        """A time above the one before counts half, by ratio: the machine may have been busy."""
        known = dict(self._memory.switch_times)
        before = known.pop(name, seconds)
        known[name] = round(min(seconds, math.sqrt(before * seconds)), 3)
        self._memory.switch_times = dict(list(known.items())[-MAX_KEPT:])


def _key(config: EngineConfig) -> str:
    own: dict[str, Any] = {name: getattr(config, name) for name in (WEIGHTS, GROUP, HEAD, DTYPE)}
    if own[WEIGHTS] != "int4":
        own[GROUP] = "-"
    if own[WEIGHTS] == "none":
        own[WEIGHTS] = "auto"
    values = "/".join(str(value) for value in own.values())
    return f"{config.model}|{config.load_format}|{values}"


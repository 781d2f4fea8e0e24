"""Row specs of the engine settings, from `engine.config.SETTINGS` and a table of refinements.

A new setting appears at the end with a control for its type; an entry here sets its section, steps
and unit.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.config import SETTINGS, Setting
from engine.hardware.device_map import ALL, AUTO
from engine.hardware.machine import free_memory
from engine.numerics.kv_dtype import NAMES as KV_DTYPES
from engine.units import setting_text
from widgets.controls.number_control import RowSpec

GIB = 2**30

SECTIONS: dict[str, tuple[str, ...]] = {
    "Batching": (
        "max_num_seqs", "max_num_batched_tokens", "batching", "enable_chunked_prefill",
    ),
    "Precision": (
        "quantization", "quantization_group_size", "quantization_head", "dtype",
    ),
    "KV cache": (
        "kv_cache_memory_bytes", "kv_cache_dtype", "block_size", "enable_prefix_caching",
        "watermark", "gpu_memory_utilization", "kv_allocation",
    ),
    "Speculative decoding": (
        "speculative_method", "speculative_model", "num_speculative_tokens",
        "speculative_adaptive", "prompt_lookup_min", "prompt_lookup_max",
    ),
    "Model": (
        "device", "gpu_layers", "max_model_len", "num_threads", "adaptive_threads",
        "enforce_eager", "seed",
    ),
}  # fmt: skip

ESSENTIAL = (
    "max_num_seqs", "max_num_batched_tokens", "batching", "enable_prefix_caching",
    "kv_cache_memory_bytes", "kv_cache_dtype", "quantization", "speculative_method",
    "speculative_model",
)  # fmt: skip
"""The settings that matter first, and the draft model that one of them may require. The panel has
the others under Advanced."""

NOT_SHOWN = ("model", "load_format")
"""Set by opening a model."""

PATHS = ("speculative_model",)
"""Folders."""

_OF_METHOD: dict[str, tuple[str, ...]] = {
    "speculative_model": ("draft_model", "eagle3"),
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "num_speculative_tokens": ("draft_model", "ngram", "eagle3"),
    "speculative_adaptive": ("draft_model", "ngram", "eagle3"),
}


_METHODS = {"draft_model": "a draft model", "eagle3": "an EAGLE-3 head", "ngram": "n-gram lookup"}
_VALUES = re.compile(r"\b(ngram|draft_model|eagle3|float32|bfloat16|float16)\b")
"""Values in the help of the command line; people read their names."""
_OF_GPU = ("gpu_layers",)
_OF_CPU = ("adaptive_threads",)  # num_threads also applies to loading


def only_with(name: str) -> str:
    """Why a setting has no effect with the current method."""
    methods = _OF_METHOD[name]
    if len(methods) == 3:
        return "Requires speculative decoding"
    return "Requires " + " or ".join(_METHODS[method] for method in methods)


def only_on(name: str, device: str, is_divided: bool = False) -> str:
    """Why a setting has no effect on `device`; "" otherwise. is_divided: with CPU offload."""
    on_gpu = device == "auto" or device.startswith("cuda")
    if name in _OF_GPU and not on_gpu:
        return "Requires an NVIDIA GPU"
    if name in _OF_CPU and device.startswith("cuda") and not is_divided:
        return "Requires CPU offload"
    return ""


def matters(name: str, speculative_method: str) -> bool:
    return speculative_method in _OF_METHOD.get(name, (speculative_method,))


@dataclass(frozen=True, slots=True)
class Machine:
    """Bounds of the rows. `gpus`: names in the driver's order."""

    memory_bytes: int = 64 * GIB
    num_cpus: int = os.cpu_count() or 1
    max_model_len: int = 131072
    gpus: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[tuple[str, str], ...]:
        """(value, text) of every GPU."""
        named = enumerate(self.gpus)
        return tuple((f"cuda:{n}", f"cuda:{n} · {name}") for n, name in named)


def this_machine() -> Machine:
    _, total = free_memory()
    return Machine(memory_bytes=total)


def _powers(first: float, limit: float) -> tuple[float, ...]:
    steps = [first]
    while steps[-1] * 2 < limit:
        steps.append(steps[-1] * 2)
    return (*steps, limit)


_MIXED_KV_DTYPES = tuple(
    (f"k={keys},v={values}", setting_text(f"k={keys},v={values}"))
    for keys, values in itertools.permutations(KV_DTYPES, 2)
)
_REFINE: dict[str, Callable[[RowSpec, Machine], RowSpec]] = {
    "max_num_seqs": lambda s, m: replace(
        s, steps=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256), unit=""
    ),
    "max_num_batched_tokens": lambda s, m: replace(
        s, steps=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384), unit=""
    ),
    "watermark": lambda s, m: replace(
        s, steps=(0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3), scale=0.01, decimals=0, unit="%"
    ),
    "block_size": lambda s, m: replace(s, steps=(1, 4, 8, 16, 32, 64, 128, 256), unit=""),
    "kv_cache_memory_bytes": lambda s, m: replace(
        s, steps=_powers(GIB / 64, m.memory_bytes), maximum=m.memory_bytes,
        scale=GIB, decimals=3, unit="GiB", auto="auto",
    ),
    "kv_cache_dtype": lambda s, m: replace(s, choices=(*s.choices, *_MIXED_KV_DTYPES)),
    "gpu_memory_utilization": lambda s, m: replace(
        s, steps=tuple(n / 100 for n in range(10, 101, 5)), scale=0.01, decimals=0, unit="%"
    ),
    "num_speculative_tokens": lambda s, m: replace(
        s, steps=tuple(float(n) for n in range(17)), unit=""
    ),
    "prompt_lookup_min": lambda s, m: replace(s, steps=(1, 2, 3, 4, 5, 6, 8), unit=""),
    "prompt_lookup_max": lambda s, m: replace(s, steps=(1, 2, 3, 4, 5, 6, 8, 12, 16), unit=""),
    "quantization_group_size": lambda s, m: replace(s, steps=(32, 64, 128, 256), unit=""),
    "max_model_len": lambda s, m: replace(
        s, steps=_powers(256, m.max_model_len), maximum=m.max_model_len, unit="",
        auto="auto",
    ),
    "num_threads": lambda s, m: replace(
        s, steps=tuple(float(n) for n in range(1, m.num_cpus + 1)), auto="auto", unit=""
    ),
    "device": lambda s, m: replace(s, choices=(*s.choices, *m.devices)),
    # the maximum comes with the model: `NumberControl.set_highest`
    "gpu_layers": lambda s, m: replace(
        s, choices=(), minimum=1, maximum=1, steps=(1.0,), is_whole=True, unit="",
        auto=AUTO, all=ALL,
    ),
}  # fmt: skip


def help_of(setting: Setting) -> str:
    """Its help, with the values as the controls show them."""
    nothing = "None" if setting.name in PATHS else setting_text(None)
    text = setting.help.replace("None:", f"{nothing}:")
    return _VALUES.sub(lambda found: setting_text(found[0]), text)


def row_spec(setting: Setting, machine: Machine) -> RowSpec:
    spec = RowSpec(
        name=setting.name,
        label=setting.label,
        help=f"{help_of(setting)}\n\n{setting.flag} · {setting.change.value}",
        badge=setting.change.value,
        choices=tuple((choice, setting_text(choice)) for choice in setting.choices),
        unit=setting.unit,
        auto="auto" if setting.optional else "",
    )
    if setting.name in PATHS:
        spec = replace(spec, is_path=True, auto="none")
    if setting.type in (int, float):
        lowest = setting.minimum if setting.minimum is not None else -(2**53)
        highest = min(setting.maximum if setting.maximum is not None else 2**53, 2**53)
        is_whole = setting.type is int
        spec = replace(
            spec, minimum=lowest, maximum=highest, decimals=0 if is_whole else 2, is_whole=is_whole
        )
    refine = _REFINE.get(setting.name)
    return refine(spec, machine) if refine else spec


def sections(machine: Machine) -> dict[str, list[RowSpec]]:
    """Rows by section, for every choosable setting."""
    placed = {name for names in SECTIONS.values() for name in names}
    left = [name for name in SETTINGS if name not in placed and is_choosable(SETTINGS[name])]
    wanted = {**SECTIONS, "Other": tuple(left)} if left else dict(SECTIONS)
    return {
        title: [row_spec(SETTINGS[name], machine) for name in names if name in SETTINGS]
        for title, names in wanted.items()
    }


def is_choosable(setting: Setting) -> bool:
    """Whether the user can choose a value: not in lists with one entry, nor for most paths."""
    if setting.name in NOT_SHOWN:
        return False
    if setting.choices:
        return len(setting.choices) > 1
    return setting.type is not str or setting.name in PATHS

"""Memory estimate of a model, before its weights are read. Imports no Qt.

`estimate` imports torch and transformers: call it off the GUI thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.link.row_names import by_row
from engine.config import EngineConfig
from engine.errors import InferdeckError, OutOfMemoryError
from engine.hardware.device_map import AUTO, host_layers_of
from engine.hardware.devices import CPU
from engine.snapshot import MemoryPlan

if TYPE_CHECKING:
    from engine.memory.model_sizes import ModelReport
    from engine.models.checkpoint import Checkpoint

SHORTEST_CONTEXT = 256
USEFUL_CONTEXT = 4096
"""Tokens. No longer context is proposed where it moves more layers to the CPU."""
_LAYERS_PER_STEP = 16
"""One more layer on the CPU is acceptable per this many layers of the model."""

_UNBOUNDED = (2**60, 2**60)
Held = Mapping[str, int]
"""Bytes by device."""
NOTHING: Held = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InRam:
    """Memory of the first `layers` of a model, which the CPU computes (CPU offload)."""

    layers: int
    weights: int
    activations: int
    kv_cache: int
    limit: int

    @property
    def needed(self) -> int:
        return self.weights + self.activations + self.kv_cache


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes on `device`. `kv_cache`: of one request with `max_model_len` tokens. `limit`: what the
    engine may use of the `free` bytes. in_ram: the part in RAM with CPU offload."""

    max_model_len: int
    dtype: str
    weights: int
    activations: int
    kv_cache: int
    free: int
    total: int
    limit: int
    device: str = CPU
    num_layers: int = 0
    in_ram: InRam | None = None

    @property
    def kv_of_all(self) -> int:
        """The KV cache of all layers."""
        return self.kv_cache + (self.in_ram.kv_cache if self.in_ram else 0)

    @property
    def kv_bytes_per_token(self) -> float:
        """On all devices."""
        return self.kv_of_all / self.max_model_len

    @property
    def most_tokens(self) -> int:
        """The longest request whose KV cache fits."""
        parts = [(self.limit - self.weights - self.activations, self.kv_cache)]
        if (ram := self.in_ram) is not None:
            parts.append((ram.limit - ram.weights - ram.activations, ram.kv_cache))
        return min(
            int(room / (cache / self.max_model_len)) if room > 0 else 0 for room, cache in parts
        )

    @property
    def needed(self) -> int:
        """On the device."""
        return self.weights + self.activations + self.kv_cache

    @property
    def everywhere(self) -> int:
        """On the device and in RAM."""
        return self.needed + (self.in_ram.needed if self.in_ram else 0)

    @property
    def fits(self) -> bool:
        ram = self.in_ram
        return self.needed <= self.limit and (ram is None or ram.needed <= ram.limit)

    @property
    def layers(self) -> str:
        """ "20 of 32 layers on cuda:0"; "" where all are on one device."""
        if self.in_ram is None:
            return ""
        own = self.num_layers - self.in_ram.layers
        return f"{own} of {self.num_layers} layers on {self.device}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """need: for the requested configuration, None where the model or the configuration is not
    supported (`problem`). fitting_len: the longest context that fits, a power of two or the
    model's maximum; None if none. With CPU offload: whole_len: the same without offload.
    proposed_len: the longest context that adds hardly any layer on the CPU."""

    report: ModelReport
    need: Need | None = None
    problem: str = ""
    fitting_len: int | None = None
    whole_len: int | None = None
    proposed_len: int | None = None

    @property
    def can_open(self) -> bool:
        return self.need is not None and self.need.fits


Estimator = Callable[[EngineConfig, Held], Estimate]


def has_libraries() -> bool:
    """Whether an engine of this process has imported what `estimate` needs, which takes seconds."""
    return "engine.host.resolve" in sys.modules


def estimate(config: EngineConfig, in_use: Held = NOTHING) -> Estimate:
    """Memory estimate of `config`. `in_use`: bytes that unloading the current model frees."""
    from engine.host.resolve import resolve
    from engine.memory.model_sizes import describe_model

    report = describe_model(config.model, dummy=config.load_format == "dummy")
    if not report.supported:
        return Estimate(report, problem=report.reason)
    try:
        resolved, checkpoint = resolve(config, in_use)
        return _Machine(resolved, checkpoint, in_use).estimate(report, resolved)
    except InferdeckError as error:
        return Estimate(report, problem=by_row(str(error)))


def plan_after(config: EngineConfig, in_use: Held, host_layers: int | None = None) -> MemoryPlan:
    """The memory plan of the engine with `config`; `in_use` as for `estimate`. host_layers: of a
    model that stays loaded. Raises InferdeckError."""
    from engine.host.resolve import resolve
    from engine.memory.plan import plan_memory

    resolved, checkpoint = resolve(config, in_use)
    return plan_memory(checkpoint, resolved, in_use=in_use, host_layers=host_layers)


class _Machine:
    """Free memory of the device and in RAM, and the engine's memory plan on it."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, in_use: Held) -> None:
        """`config`: resolved."""
        from engine.hardware.machine import free_memory
        from engine.memory.model_sizes import sizes_of

        self._checkpoint = checkpoint
        self._count = len(sizes_of(checkpoint, config).layer_weights)

        def room(device: str) -> tuple[int, int]:
            free, total = free_memory(device)
            return min(free + in_use.get(device, 0), total), total

        self._memory, self._ram = room(config.device), room(CPU)

    def estimate(self, report: ModelReport, config: EngineConfig) -> Estimate:
        need = self.need(config)
        if need.fits and need.in_ram is None:
            return Estimate(report, need, fitting_len=need.max_model_len)
        is_auto = config.gpu_layers == AUTO
        if need.fits and not is_auto:  # the user set the layers
            return Estimate(report, need, fitting_len=need.max_model_len)
        whole_len = _fitting_len(self._need(config, 0) if is_auto else need)
        proposed_len = self._proposed_len(config) if is_auto else None
        if need.fits:
            return Estimate(report, need, "", need.max_model_len, whole_len, proposed_len)
        fitting_len = whole_len
        if (whole_len or 0) < USEFUL_CONTEXT:
            fitting_len = proposed_len or self._offload_len(config) or whole_len
        return Estimate(report, need, fitting_len=fitting_len)

    def need(self, config: EngineConfig) -> Need:
        """With the GPU layers of `config`, or as many as fit. Where no split fits, of the whole
        model on one device."""
        layers = self._host_layers(config)
        return self._need(config, self._fewest_in_ram(config) if layers is None else layers)

    def _host_layers(self, config: EngineConfig) -> int | None:
        """Layers on the CPU; None: as few as needed."""
        return host_layers_of(config.device, config.gpu_layers, self._count)

    def _offload_len(self, config: EngineConfig) -> int | None:
        """The longest context below that of `config` that fits with layers in RAM."""
        if self._host_layers(config) == 0:
            return None
        found = self._shorter(config, SHORTEST_CONTEXT)
        return next((need.max_model_len for need in found if need.fits), None)

    def _proposed_len(self, config: EngineConfig) -> int | None:
        if self._host_layers(config) == 0:
            return None
        fitting = [need for need in self._shorter(config, USEFUL_CONTEXT) if need.fits]
        if not fitting:
            return None
        least = _layers_in_ram(fitting[-1])
        most = least + max(1, self._count // _LAYERS_PER_STEP) if least else 0
        return next(need.max_model_len for need in fitting if _layers_in_ram(need) <= most)

    def _shorter(self, config: EngineConfig, shortest: int) -> Iterator[Need]:
        """With each power of two of tokens below the context of `config`, the longest first."""
        assert config.max_model_len is not None
        length = 2 ** ((config.max_model_len - 1).bit_length() - 1)
        while length >= shortest:
            yield self.need(config.replace(max_model_len=length))
            length //= 2

    def _fewest_in_ram(self, config: EngineConfig) -> int:
        from engine.memory.plan import plan_memory

        try:  # without a draft model, which is chosen once the model is open
            plan = plan_memory(
                self._checkpoint, config.replace(speculative_method="off"),
                memory=self._memory, host_memory=self._ram,
            )  # fmt: skip
        except OutOfMemoryError:
            return 0
        return plan.host_layers

    def _need(self, config: EngineConfig, host_layers: int) -> Need:
        from engine.memory.plan import blocks_of, for_host, plan_memory, reserve_and_limit

        assert config.max_model_len is not None
        plan = plan_memory(
            self._checkpoint,
            config.replace(speculative_method="off", kv_cache_memory_bytes=None),
            memory=_UNBOUNDED, host_memory=_UNBOUNDED, host_layers=host_layers,
        ).with_blocks(blocks_of(config.max_model_len, config))  # fmt: skip
        free, total = self._memory
        in_ram = None
        if host_layers:
            ram, all_ram = self._ram
            in_ram = InRam(
                host_layers, plan.host_weights, plan.host_activations, plan.host_kv_cache,
                limit=reserve_and_limit(for_host(config), free=ram, total=all_ram)[1],
            )  # fmt: skip
        return Need(
            max_model_len=config.max_model_len,
            dtype=config.dtype,
            weights=plan.weights,
            activations=plan.activations,
            kv_cache=plan.kv_cache,
            free=free,
            total=total,
            limit=reserve_and_limit(config, free=free, total=total)[1],
            device=config.device,
            num_layers=self._count,
            in_ram=in_ram,
        )


def _layers_in_ram(need: Need) -> int:
    return need.in_ram.layers if need.in_ram is not None else 0


def _fitting_len(need: Need) -> int | None:
    """The longest context that fits: the requested one, or a power of two below it."""
    if need.fits:
        return need.max_model_len
    longest = need.most_tokens
    return 2 ** (longest.bit_length() - 1) if longest >= SHORTEST_CONTEXT else None

"""Layers on the GPU and in RAM, for the hint of gpu_layers. Imports no Qt."""

from __future__ import annotations

from engine.hardware.device_map import host_layers_of
from engine.snapshot import EngineSnapshot
from engine.units import bytes_text


def layers_now(s: EngineSnapshot) -> str:
    """ "20 of 32 on cuda:0, 12 in RAM · per layer: weights 412 MiB, KV cache 64 MiB · free"."""
    if not s.model.device.startswith("cuda") or not s.model.num_layers:
        return ""
    count, in_ram = s.model.num_layers, s.memory.plan.host_layers
    where = f"all {count} layers on {s.model.device}"
    if in_ram:
        where = f"{count - in_ram} of {count} layers on {s.model.device}, {in_ram} in RAM"
    weights, cache = map(bytes_text, _of_a_layer(s))
    free = f"{bytes_text(s.memory.free)} free on {s.model.device}"
    return f"{where} · per layer: weights {weights}, KV cache {cache} · {free}"


def layers_moved(s: EngineSnapshot, wanted: str) -> str:
    """Layers and memory moved by `wanted` layers on the GPU; "" where unknown or unchanged."""
    count, device = s.model.num_layers, s.model.device
    host = host_layers_of(device, wanted, count) if device.startswith("cuda") else None
    moved = 0 if host is None else host - s.memory.plan.host_layers
    if not moved:
        return ""
    weights, cache = (bytes_text(abs(moved) * size) for size in _of_a_layer(s))
    layers = "1 layer" if abs(moved) == 1 else f"{abs(moved)} layers"
    sizes = f"about {weights} of weights and {cache} of KV cache"
    if moved > 0:
        return f"moves {layers} to RAM: {sizes}"
    free = bytes_text(s.memory.free)
    return f"moves {layers} to {device}: {sizes} ({free} free)"


def _of_a_layer(s: EngineSnapshot) -> tuple[float, float]:
    """Mean bytes of weights and of KV cache per layer."""
    model, plan = s.model, s.memory.plan
    weights = model.weights_bytes - model.output_bytes - model.lookup_bytes
    cache = plan.cache_bytes_in_all - plan.num_blocks * plan.draft_bytes_per_block
    return weights / model.num_layers, cache / model.num_layers

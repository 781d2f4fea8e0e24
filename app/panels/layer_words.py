"""What it costs and gives to move a model's layers between a GPU and the CPU. Imports no Qt."""

from __future__ import annotations

from app.units import format_bytes
from engine.device_map import host_layers_of
from engine.snapshot import EngineSnapshot


def layers_now(s: EngineSnapshot) -> str:
    """ "20 of 32 on cuda:0, 12 in RAM · a layer 412 MiB, its KV cache 64 MiB · 1.2 GiB free"."""
    if not s.model.device.startswith("cuda") or not s.model.num_layers:
        return ""
    count, in_ram = s.model.num_layers, s.memory.plan.host_layers
    if s.model.num_gpus > 1:
        parts = "a part of each" if s.model.num_ranks > 1 else each_has(count, s.model.num_stages)
        return f"all {count} on {s.model.num_gpus} GPUs, {parts}"
    where = f"all {count} on {s.model.device}"
    if in_ram:
        where = f"{count - in_ram} of {count} on {s.model.device}, {in_ram} in RAM"
    weights, cache = map(format_bytes, _of_a_layer(s))
    free = f"{format_bytes(s.memory.free)} free on {s.model.device}"
    return f"{where} · a layer {weights}, its KV cache {cache} · {free}"


def layers_moved(s: EngineSnapshot, wanted: str) -> str:
    """What `wanted` layers on the GPU move, where that is known before; "" where nothing is."""
    count, device = s.model.num_layers, s.model.device
    host = host_layers_of(device, wanted, count) if device.startswith("cuda") else None
    moved = 0 if host is None else host - s.memory.plan.host_layers
    if not moved or s.model.num_gpus > 1:
        return ""
    weights, cache = (format_bytes(abs(moved) * size) for size in _of_a_layer(s))
    layers = "1 layer" if abs(moved) == 1 else f"{abs(moved)} layers"
    sizes = f"about {weights}, and {cache} of KV cache"
    if moved > 0:
        return f"moves {layers} to RAM: {sizes}"
    free = format_bytes(s.memory.free)
    return f"moves {layers} to {device}: {sizes}; {free} are free there"


def each_has(num_layers: int, num_stages: int) -> str:
    """ "16 layers each"; "10 or 11 layers each"."""
    least, rest = divmod(num_layers, num_stages)
    if rest:
        return f"{least} or {least + 1} layers each"
    return f"{least} {'layer' if least == 1 else 'layers'} each"


def _of_a_layer(s: EngineSnapshot) -> tuple[float, float]:
    """Bytes of weights and of KV cache in a layer, on average."""
    model, plan = s.model, s.memory.plan
    weights = model.weights_bytes - model.output_bytes - model.lookup_bytes
    cache = plan.cache_bytes_in_all - plan.num_blocks * plan.draft_bytes_per_block
    return weights / model.num_layers, cache / model.num_layers

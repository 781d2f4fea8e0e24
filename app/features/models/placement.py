"""Number and placement of tensor-parallel ranks and pipeline stages. Imports no Qt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.hardware.device_map import ALL, AUTO, host_layers_of
from engine.hardware.devices import CPU, gpus, is_cuda, rank_devices
from engine.hardware.idle_cores import nodes
from engine.snapshot import EngineSnapshot, ModelInfo
from engine.units import bytes_text, counted


def most_ranks(device: str) -> int:
    """Limit of tensor-parallel ranks: GPUs from `device` on (imports torch), or NUMA nodes."""
    if not is_cuda(device):
        return len(nodes())
    return most_stages(device)


def most_stages(device: str) -> int:
    """Limit of pipeline stages: GPUs from `device` on (imports torch); 1 on the CPU."""
    if not is_cuda(device):
        return 1
    first = rank_devices(device, 1)[0].partition(":")[2]
    return max(1, len(gpus()) - int(first))


def each_of(num_gpus: int) -> str:
    """ "on each of 2 GPUs"; "" for one."""
    return f"on each of {num_gpus} GPUs" if num_gpus > 1 else ""


def of_gpus(model: ModelInfo) -> str:
    """Which GPUs a memory plan describes: "on each of 2 GPUs" with tensor parallelism, "on the
    first of 2 GPUs" with pipeline stages, "" for one."""
    if model.num_stages > 1:
        return f"on the first of {model.num_gpus} GPUs"
    return each_of(model.num_gpus)


def layers_now(s: EngineSnapshot) -> str:
    """ "20 of 32 on cuda:0, 12 in RAM · per layer: weights 412 MiB, KV cache 64 MiB · free"."""
    if not s.model.device.startswith("cuda") or not s.model.num_layers:
        return ""
    count, in_ram = s.model.num_layers, s.memory.plan.host_layers
    if s.model.num_gpus > 1:
        parts = "sharded" if s.model.num_ranks > 1 else each_has(count, s.model.num_stages)
        return f"all {count} layers on {s.model.num_gpus} GPUs, {parts}"
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
    if not moved or s.model.num_gpus > 1:
        return ""
    weights, cache = (bytes_text(abs(moved) * size) for size in _of_a_layer(s))
    layers = "1 layer" if abs(moved) == 1 else f"{abs(moved)} layers"
    sizes = f"about {weights} of weights and {cache} of KV cache"
    if moved > 0:
        return f"moves {layers} to RAM: {sizes}"
    free = bytes_text(s.memory.free)
    return f"moves {layers} to {device}: {sizes} ({free} free)"


def each_has(num_layers: int, num_stages: int) -> str:
    """ "16 layers each"; "10 or 11 layers each"."""
    least, rest = divmod(num_layers, num_stages)
    if rest:
        return f"{least} or {least + 1} layers each"
    return f"{least} layer{'s' * (least != 1)} each"


def _of_a_layer(s: EngineSnapshot) -> tuple[float, float]:
    """Mean bytes of weights and of KV cache per layer."""
    model, plan = s.model, s.memory.plan
    weights = model.weights_bytes - model.output_bytes - model.lookup_bytes
    cache = plan.cache_bytes_in_all - plan.num_blocks * plan.draft_bytes_per_block
    return weights / model.num_layers, cache / model.num_layers


RANKS = "tensor_parallel_size"
STAGES = "pipeline_parallel_size"
OTHERS = ("device", "gpu_layers", "speculative_method", "num_threads")
"""Settings that limit the number of ranks or stages, too."""
NOT_BOTH = "tensor and pipeline parallelism cannot be combined: set one of them to 1"


class Places(NamedTuple):
    """Where ranks or stages can run. gpus: GPUs that the driver reports; nodes: NUMA nodes. 0:
    unknown, e.g. the nodes of a remote machine."""

    gpus: int = 0
    nodes: int = 0


def ranks_now(s: EngineSnapshot, places: Places, exchange: float | None = None) -> str:
    """Current ranks. exchange: their recent share of the model's time spent waiting for each other,
    if known."""
    count, device = s.model.num_ranks, s.model.device
    if device.startswith("cuda"):
        if count > 1:
            weights = bytes_text(s.memory.plan.weights)
            return f"{gpus_from(device, count)} · {weights} of weights per GPU"
        if s.model.num_stages > 1:
            return "not sharded: each layer is on one GPU"
        return f"all layers on {device}{gpus_here(places)}"
    threads = getattr(s.config, "num_threads", None)
    if device != CPU or not threads:
        return ""
    words = _groups(count, threads, places.nodes)
    if exchange and count > 1:
        words = f"{words} · inter-rank communication: {100 * exchange:.0f} % of model time"
    return words


def ranks_wanted(
    count: int, device: str, threads: int | None, places: Places, model: ModelInfo | None
) -> str:
    """Placement of so many ranks; "" where unknown."""
    if is_gpu(device, places):
        if count == 1 or model is None:
            return ""
        weights = bytes_text(model.weights_bytes / count)
        return f"{gpus_from(device, count)} · about {weights} of weights per GPU"
    return _groups(count, threads, places.nodes) if threads else ""


def parallel_refusal(
    name: str, shown: Callable[[str], Any], places: Places, model: ModelInfo | None
) -> str:
    """Why the number of ranks (`name` RANKS) or stages (STAGES) in `shown` is impossible with the
    other settings in it, or "". The engine itself refuses, at the load, what only it knows, such as
    an architecture that cannot be split."""
    is_tensor = name == RANKS
    count, device, part = shown(name), shown("device"), "rank" if is_tensor else "stage"
    if count == 1:
        return ""
    if shown(STAGES if is_tensor else RANKS) > 1:
        return NOT_BOTH
    if device == CPU and not is_tensor:
        return "pipeline parallelism requires NVIDIA GPUs; the device is cpu"
    on_gpus = not is_tensor or is_gpu(device, places)
    if on_gpus and (reason := against_gpus(count, f"{part}s", shown, places)):
        return reason
    if shown("speculative_method") == "eagle3":
        return f"EAGLE-3 requires a single {part}"
    if model is None:
        return ""
    if not is_tensor and 0 < model.num_layers < count:
        return f"{count} pipeline stages need {count} layers; the model has {model.num_layers}"
    for heads, title in ((model.num_heads, "head"), (model.num_kv_heads, "KV head")):
        if is_tensor and model.num_heads and heads % count:
            return f"{counted(heads, title)} cannot be split across {count} ranks"
    return ""


def against_gpus(count: int, parts: str, shown: Callable[[str], Any], places: Places) -> str:
    """Why "ranks" or "stages" cannot run on GPUs, or ""."""
    device = shown("device")
    first = int(_devices_from(device, 1)[0].partition(":")[2])
    if places.gpus and first + count > places.gpus:
        behind = f" starting at {device}" if first else ""
        return f"{count} {parts} need {count} GPUs{behind}; {counted(places.gpus, 'GPU')} detected"
    if shown("gpu_layers") not in (AUTO, ALL):
        return "CPU offload requires a single GPU: set GPU layers to auto or all"
    return ""


def _groups(count: int, threads: int, nodes: int) -> str:
    """ "2 ranks, 4 threads each · one NUMA node per rank"."""
    if count == 1:
        together = counted(threads, "thread")
        return " · ".join(filter(None, (together, counted(nodes, "NUMA node") if nodes else "")))
    words = f"{count} ranks, {counted(max(1, threads // count), 'thread')} each"
    if threads < count:
        words = f"{words} · not enough CPU threads ({threads})"
    if nodes >= count:
        return f"{words} · one NUMA node per rank"
    if nodes == 1:
        return f"{words} · 1 NUMA node"
    return f"{words} · only {nodes} NUMA nodes" if nodes else words


def is_gpu(device: str, places: Places) -> bool:
    return device.startswith("cuda") or (device == AUTO and places.gpus > 0)


def gpus_from(device: str, count: int) -> str:
    """ "cuda:0 and cuda:1", "cuda:0 to cuda:3"."""
    names = _devices_from(device, count)
    return f"{names[0]} {'and' if count == 2 else 'to'} {names[-1]}"


def gpus_here(places: Places) -> str:
    return f" · {counted(places.gpus, 'GPU')} detected" if places.gpus else ""


def _devices_from(device: str, count: int) -> tuple[str, ...]:
    return rank_devices(device if device != AUTO else "cuda:0", count)



def stages_now(s: EngineSnapshot, places: Places) -> str:
    """Current distribution of the layers."""
    count, model = s.model.num_stages, s.model
    if not model.device.startswith("cuda"):
        return ""
    if count > 1:
        weights = bytes_text(s.memory.plan.weights)
        where = f"{gpus_from(model.device, count)} · {each_has(model.num_layers, count)}"
        return f"{where} · {weights} of weights on the first GPU"
    if model.num_ranks > 1:
        return "each layer is sharded across all GPUs"
    if s.memory.plan.host_layers:
        return f"layers split between CPU and {model.device}{gpus_here(places)}"
    return f"all layers on {model.device}{gpus_here(places)}"


def stages_wanted(count: int, device: str, places: Places, model: ModelInfo | None) -> str:
    """Placement of so many stages; "" where unknown."""
    if count == 1 or model is None or not model.num_layers or not is_gpu(device, places):
        return ""
    weights = bytes_text(model.weights_bytes / count)
    where = f"{gpus_from(device, count)} · {each_has(model.num_layers, count)}"
    return f"{where} · about {weights} of weights per GPU"


def nowhere(shown: Callable[[str], Any], places: Places) -> str:
    """Why there is nothing to choose; "" if there is, or if a larger number can be reset."""
    is_alone = shown("device") == CPU or places.gpus == 1
    return "requires 2 or more NVIDIA GPUs" if is_alone and shown(STAGES) == 1 else ""

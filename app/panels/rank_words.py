"""What several ranks of a model have here, and what they would need. Imports no Qt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from app.units import format_bytes
from engine.device_map import ALL, AUTO
from engine.devices import CPU, rank_devices
from engine.snapshot import EngineSnapshot, ModelInfo

RANKS = "tensor_parallel_size"
STAGES = "pipeline_parallel_size"
OTHERS = ("device", "gpu_layers", "speculative_method", "num_threads")
"""Settings that decide, too, whether there can be as many ranks or stages."""
NOT_BOTH = "each layer on all GPUs, or some layers on each: set one of the two to 1"


class Places(NamedTuple):
    """Where ranks or stages could be. gpus: that the driver tells of; nodes: NUMA nodes of the CPU.
    0: not known, as of the nodes of a machine elsewhere."""

    gpus: int = 0
    nodes: int = 0


def ranks_now(s: EngineSnapshot, places: Places, exchange: float | None = None) -> str:
    """What computes the layers. exchange: the part of the model's time that ranks waited for each
    other lately, where that is known."""
    count, device = s.model.num_ranks, s.model.device
    if device.startswith("cuda"):
        if count > 1:
            weights = format_bytes(s.memory.plan.weights)
            return f"{gpus_from(device, count)} · weights {weights} on each"
        if s.model.num_stages > 1:
            return "one GPU computes a layer"
        return f"{device} computes all{gpus_here(places)}"
    threads = getattr(s.config, "num_threads", None)
    if device != CPU or not threads:
        return ""
    words = _groups(count, threads, places.nodes)
    if exchange and count > 1:
        words += f" · exchange {100 * exchange:.0f} % of the model's time"
    return words


def ranks_wanted(
    count: int, device: str, threads: int | None, places: Places, model: ModelInfo | None
) -> str:
    """What so many ranks would be; "" where nothing is known of it."""
    if is_gpu(device, places):
        if count == 1 or model is None:
            return ""
        weights = format_bytes(model.weights_bytes / count)
        return f"{gpus_from(device, count)} · weights about {weights} on each"
    return _groups(count, threads, places.nodes) if threads else ""


def refusal(shown: Callable[[str], Any], places: Places, model: ModelInfo | None) -> str:
    """Why there cannot be as many ranks as `shown` says, beside the other settings that it says;
    "" where nothing is known against it: an architecture that cannot be divided is told by the
    engine. What the engine would say of it too is said here before the model is loaded again."""
    count, device = shown(RANKS), shown("device")
    if count == 1:
        return ""
    if shown(STAGES) > 1:
        return NOT_BOTH
    if is_gpu(device, places) and (reason := against_gpus(count, "ranks", shown, places)):
        return reason
    if shown("speculative_method") == "eagle3":
        return "an EAGLE-3 head drafts for one rank only"
    for heads, name in _heads_of(model):
        if heads % count:
            return f"{plural(heads, name)} cannot be divided among {count} ranks"
    return ""


def against_gpus(count: int, parts: str, shown: Callable[[str], Any], places: Places) -> str:
    """Why there cannot be as many "ranks", or "stages", on GPUs; "" where there can."""
    device = shown("device")
    first = int(_devices_from(device, 1)[0].partition(":")[2])
    if places.gpus and first + count > places.gpus:
        behind = f" from {device} on" if first else ""
        there = f"{'is' if places.gpus == 1 else 'are'} {plural(places.gpus, 'GPU')}"
        return f"{count} {parts} need {count} GPUs{behind}: there {there} here"
    if shown("gpu_layers") not in (AUTO, ALL):
        return "divided between CPU and GPU it is on one GPU: set GPU layers to auto or all"
    return ""


def _heads_of(model: ModelInfo | None) -> tuple[tuple[int, str], ...]:
    if model is None or not model.num_heads:  # an engine that does not tell
        return ()
    return (model.num_heads, "head"), (model.num_kv_heads, "KV head")


def _groups(count: int, threads: int, nodes: int) -> str:
    """ "2 groups of 4 threads · each on a NUMA node of its own"."""
    if count == 1:
        together = "one thread computes all" if threads == 1 else f"{threads} threads compute all"
        return " · ".join(filter(None, (together, plural(nodes, "NUMA node") if nodes else "")))
    words = f"{count} groups of {plural(max(1, threads // count), 'thread')}"
    if threads < count:
        words += f", more than the {plural(threads, 'CPU thread')}"
    if nodes >= count:
        return f"{words} · each on a NUMA node of its own"
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
    return f" · {plural(places.gpus, 'GPU')} here" if places.gpus else ""


def _devices_from(device: str, count: int) -> tuple[str, ...]:
    return rank_devices(device if device != AUTO else "cuda:0", count)


def plural(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"

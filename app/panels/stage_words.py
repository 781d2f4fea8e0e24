"""What several stages of a model have here, and what they would need. Imports no Qt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.panels.layer_words import each_has
from app.panels.rank_words import (
    NOT_BOTH,
    RANKS,
    STAGES,
    Places,
    against_gpus,
    gpus_from,
    gpus_here,
    is_gpu,
)
from app.units import format_bytes
from engine.devices import CPU
from engine.snapshot import EngineSnapshot, ModelInfo


def stages_now(s: EngineSnapshot, places: Places) -> str:
    """Where the layers are."""
    count, model = s.model.num_stages, s.model
    if not model.device.startswith("cuda"):
        return ""
    if count > 1:
        weights = format_bytes(s.memory.plan.weights)
        where = f"{gpus_from(model.device, count)} · {each_has(model.num_layers, count)}"
        return f"{where} · weights {weights} on the first"
    if model.num_ranks > 1:
        return "each GPU has a part of every layer"
    if s.memory.plan.host_layers:
        return f"the CPU and {model.device} have all layers{gpus_here(places)}"
    return f"{model.device} has all layers{gpus_here(places)}"


def stages_wanted(count: int, device: str, places: Places, model: ModelInfo | None) -> str:
    """What so many stages would be; "" where nothing is known of it."""
    if count == 1 or model is None or not model.num_layers or not is_gpu(device, places):
        return ""
    weights = format_bytes(model.weights_bytes / count)
    where = f"{gpus_from(device, count)} · {each_has(model.num_layers, count)}"
    return f"{where} · weights about {weights} on each"


def nowhere(shown: Callable[[str], Any], places: Places) -> str:
    """Why there is nothing to choose; "" where there is, or a number is to be taken back."""
    is_alone = shown("device") == CPU or places.gpus == 1
    return "only on several NVIDIA GPUs" if is_alone and shown(STAGES) == 1 else ""


def refusal(shown: Callable[[str], Any], places: Places, model: ModelInfo | None) -> str:
    """Why there cannot be as many stages as `shown` says, beside the other settings that it says;
    "" where nothing is known against it: an architecture whose layers cannot be parted is told by
    the engine."""
    count, device = shown(STAGES), shown("device")
    if count == 1:
        return ""
    if shown(RANKS) > 1:
        return NOT_BOTH
    if device == CPU:
        return "the CPU has all layers: stages are on NVIDIA GPUs"
    if reason := against_gpus(count, "stages", shown, places):
        return reason
    if shown("speculative_method") == "eagle3":
        return "an EAGLE-3 head drafts for one stage only"
    if model is not None and 0 < model.num_layers < count:
        return f"{count} stages need {count} layers: the model has {model.num_layers}"
    return ""

"""Sampling parameters as the chat shows them, and the presets."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

from app.features.chat.conversation import CONTROLS, sampling_from_dict
from engine.sampling_params import PARAMETERS, SamplingParams
from resources import resource_path


class Preset(NamedTuple):
    name: str
    help: str
    params: SamplingParams
    is_own: bool = False


def shown_value(params: SamplingParams, name: str) -> float:
    """The displayed number of a parameter."""
    value, unset = getattr(params, name), CONTROLS[name].unset
    return unset if value is None and unset is not None else value


def with_field(params: SamplingParams, name: str, value: Any) -> SamplingParams:
    """`params` with one parameter set to the value of its control."""
    if name == "stop":
        return dataclasses.replace(params, stop=tuple(value))
    number: float | None = value if CONTROLS[name].decimals else int(value)
    if PARAMETERS[name].default is None and number == CONTROLS[name].unset:
        number = None
    changed: dict[str, Any] = {name: number}
    return dataclasses.replace(params, **changed)


def built_in_presets() -> list[Preset]:
    text = resource_path("presets", "sampling.json").read_text(encoding="utf-8")
    return [
        Preset(entry["name"], entry["help"], sampling_from_dict(entry["sampling"]))
        for entry in json.loads(text)
    ]


DEFAULT_PRESET = "Balanced"

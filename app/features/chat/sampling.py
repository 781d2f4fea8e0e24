"""Sampling parameters of a conversation, and the presets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.sampling_params import PARAMETERS, Control, SamplingParams
from resources import resource_path

CONTROLS: dict[str, Control] = {
    name: parameter.control for name, parameter in PARAMETERS.items() if parameter.control
}
"""Parameters that the chat shows as numbers, in order."""

NUM_ALTERNATIVES = 5
DEFAULT = SamplingParams(logprobs=NUM_ALTERNATIVES)
"""Of a chat. Top logprobs cost below 1 ms per step and request with a vocabulary of 150,000 tokens
on one core, in proportion to it."""

_SAVED = (*CONTROLS, "stop")


class Preset(NamedTuple):
    name: str
    help: str
    params: SamplingParams
    is_own: bool = False


def sampling_to_dict(params: SamplingParams) -> dict[str, Any]:
    """The parameters that differ from `DEFAULT`, as plain data."""
    found = {
        name: getattr(params, name)
        for name in _SAVED
        if getattr(params, name) != getattr(DEFAULT, name)
    }
    if "stop" in found:
        found["stop"] = list(found["stop"])
    return found


def sampling_from_dict(values: Mapping[str, Any]) -> SamplingParams:
    """Unknown names are ignored. Raises InvalidRequestError for a value out of range."""
    known = {name: values[name] for name in _SAVED if name in values}
    return dataclasses.replace(DEFAULT, **known)


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

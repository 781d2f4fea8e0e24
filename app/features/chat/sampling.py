"""Sampling settings of a conversation: which there are, and the presets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.sampling_params import SamplingParams
from resources import resource_path


class SamplingField(NamedTuple):
    """One setting as the window shows it. `unset` is the value that means "none"."""

    name: str
    label: str
    help: str
    minimum: float
    maximum: float
    step: float
    decimals: int
    unset: float | None = None
    unset_text: str = ""


FIELDS: tuple[SamplingField, ...] = (
    SamplingField(
        "temperature", "Temperature", "0 always takes the most probable token; higher varies more.",
        0.0, 2.0, 0.05, 2,
    ),
    SamplingField(
        "top_p", "Top p", "Keep the most probable tokens that together reach this probability.",
        0.01, 1.0, 0.01, 2,
    ),
    SamplingField(
        "top_k", "Top k", "Keep this many of the most probable tokens.",
        0, 1000, 1, 0, unset=0, unset_text="all",
    ),
    SamplingField(
        "min_p", "Min p", "Drop tokens below this fraction of the most probable one.",
        0.0, 1.0, 0.01, 2,
    ),
    SamplingField(
        "repetition_penalty", "Repetition penalty",
        "Above 1 makes tokens of the prompt and the reply less probable.", 0.5, 2.0, 0.05, 2,
    ),
    SamplingField(
        "presence_penalty", "Presence penalty",
        "Subtracted once from every token that the reply already has.", -2.0, 2.0, 0.1, 1,
    ),
    SamplingField(
        "frequency_penalty", "Frequency penalty",
        "Subtracted for each time that the reply already has a token.", -2.0, 2.0, 0.1, 1,
    ),
    SamplingField(
        "max_tokens", "Longest reply", "Tokens after which a reply ends.",
        0, 1_000_000, 64, 0, unset=0, unset_text="no limit",
    ),
    SamplingField(
        "seed", "Seed", "The same seed gives the same reply to the same conversation.",
        -1, 2**31 - 1, 1, 0, unset=-1, unset_text="random",
    ),
    SamplingField(
        "logprobs", "Alternatives",
        "Kept with every token of a reply, to be seen at its Tokens button. Each token then costs "
        "a pass over the vocabulary: about 1 ms where it has 150,000 entries.",
        -1, 20, 1, 0, unset=-1, unset_text="off",
    ),
)  # fmt: skip
"""In the order of the window. The stop strings have a field of their own there."""

NUM_ALTERNATIVES = 5
DEFAULT = SamplingParams(logprobs=NUM_ALTERNATIVES)
"""Of a chat. Alternatives of every token cost below 1 ms a step and request with 150,000 tokens
of vocabulary on one core, in proportion to it."""

_OPTIONAL = {"max_tokens", "seed", "logprobs"}  # unset is None in SamplingParams
_SAVED = (*(field.name for field in FIELDS), "stop")


class Preset(NamedTuple):
    name: str
    help: str
    params: SamplingParams
    is_own: bool = False


def sampling_to_dict(params: SamplingParams) -> dict[str, Any]:
    """The settings that differ from `DEFAULT`, as plain data."""
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


def field_value(params: SamplingParams, field: SamplingField) -> float:
    """The number that the window shows for a field."""
    value = getattr(params, field.name)
    return field.unset if value is None and field.unset is not None else value


def with_field(params: SamplingParams, name: str, value: Any) -> SamplingParams:
    """`params` with one field as the window has it."""
    if name == "stop":
        return dataclasses.replace(params, stop=tuple(value))
    field = next(f for f in FIELDS if f.name == name)
    number: float | None = value if field.decimals else int(value)
    if name in _OPTIONAL and number == field.unset:
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

"""Engine messages with the window's labels in place of setting names. No Qt.

The engine names a setting as the command line does: "raise max_model_len". In the window its label
is “Context length”.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

from engine import messages
from engine.config import SETTINGS
from engine.errors import ErrorInfo
from engine.sampling_params import PARAMETERS

Event = TypeVar("Event")

_LABELS = {name: setting.label for name, setting in SETTINGS.items()} | {
    name: parameter.label for name, parameter in PARAMETERS.items()
}
_NAMES = re.compile(rf"\b({'|'.join(name for name in _LABELS if '_' in name)})\b")
"""Names with an underscore: "device" and "seed" may be plain words."""


def by_row(text: str) -> str:
    """ "raise max_model_len" as "raise “Context length”"."""
    return _NAMES.sub(lambda found: f"“{_LABELS[found[0]]}”", text)


def error_by_row(error: ErrorInfo) -> ErrorInfo:
    return error._replace(cause=by_row(error.cause), remedy=by_row(error.remedy))


def event_by_row(event: Event) -> Event:
    """An event with the labels in its error; that of a crash stays verbatim."""
    if isinstance(event, messages.EngineCrashed):
        return event
    changed: dict[str, Any] = {
        field.name: error_by_row(value)
        for field in dataclasses.fields(event)  # type: ignore[arg-type]
        if isinstance(value := getattr(event, field.name), ErrorInfo)
    }
    return dataclasses.replace(event, **changed) if changed else event  # type: ignore

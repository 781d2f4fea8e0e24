"""Reports as JSON objects, and back. The written form is the dataclasses' own, with a version."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from engine.errors import InferdeckError
from engine.evaluation.report import VERSION, EvaluationReport

KIND = "inferdeck evaluation"


class ReportError(InferdeckError):
    """A report that cannot be read, written, or compared."""


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """The report as JSON types alone."""
    return {"kind": KIND, "version": VERSION, **_plain(report)}


def from_json(stored: Any) -> EvaluationReport:
    """The report of `to_json`. Raises ReportError where it is another kind of object, of a newer
    version, or damaged; keys that are not known are left out."""
    if not isinstance(stored, Mapping) or stored.get("kind") != KIND:
        raise ReportError(
            "This is no evaluation report.", "Choose a file that `inferdeck evaluate` wrote."
        )
    version = stored.get("version")
    if version != VERSION:
        raise ReportError(
            f"The report has version {version}; this program reads version {VERSION}.",
            "Open it with the version of Inferdeck that wrote it.",
        )
    try:
        report: EvaluationReport = _build(EvaluationReport, stored, "the report")
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"The report is damaged: {error}.", "Measure again, or restore the file."
        ) from error
    return report


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` of JSON as an object of type `kind`; the names in a message are keys of the file."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = [a for a in arguments if a is not types.NoneType]
        return _build(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{where} is no list")
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None:  # a mapping of plain values
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} is no object")
        return dict(value)
    if dataclasses.is_dataclass(kind):
        return _build_object(kind, value, where)
    return _scalar(kind, value, where)


def _build_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is no object")
    hints = typing.get_type_hints(kind)
    found = {}
    for f in dataclasses.fields(kind):
        if f.name in value:
            found[f.name] = _build(hints[f.name], value[f.name], f.name)
        elif f.default is f.default_factory is dataclasses.MISSING:
            raise KeyError(f"{where} has no {f.name}")
    return kind(**found)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise TypeError(f"{where} is {value!r}, which is no {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    return value

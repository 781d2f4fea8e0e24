"""Plain forms of records: settings by name, and frequent records as arrays of their fields."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from app.wire.protocol import ProtocolError
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError

T = TypeVar("T")


class ArrayForm(Generic[T]):
    """A dataclass as the array of its fields. New fields go last, with a default: older arrays
    stay readable."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        hints = typing.get_type_hints(kind)
        self._get = attrgetter(*(f.name for f in fields))
        self.wire = msgspec.defstruct(
            f"{kind.__name__}Array",
            [_declared(f, hints[f.name]) for f in fields],
            array_like=True,
        )

    def values(self, record: T) -> tuple[Any, ...]:
        """To be encoded."""
        return self._get(record)

    def record(self, wire: Any) -> T:
        """From what was decoded as `wire`."""
        return self.kind(*msgspec.structs.astuple(wire))


def _declared(field: dataclasses.Field[Any], hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.name, hint, field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.name, hint, msgspec.field(default_factory=field.default_factory)
    return field.name, hint


def wanted_values(config: EngineConfig) -> dict[str, Any]:
    """What a window asks for, without settings at their default: an older server may not know
    them."""
    return {name: pair[0] for name, pair in config.differences(EngineConfig()).items()}


def asked_config(values: Mapping[str, Any]) -> EngineConfig:
    """What a window asks for. Raises ProtocolError, also for an unknown setting."""
    checked_changes(values)
    return EngineConfig(**values)


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ProtocolError unless all are settings with values of the right type and range."""
    for name, value in values.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(f"This engine has no setting {name[:60]!r}.")
        try:
            setting.check(value)
        except ConfigError as error:
            raise ProtocolError(str(error)) from None
    return dict(values)

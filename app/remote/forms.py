"""Records as arrays of their fields: what comes hundreds of times a second is named once, here."""

from __future__ import annotations

import dataclasses
import typing
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class ArrayForm(Generic[T]):
    """A dataclass as the array of its fields. Fields that came later are last and have a default,
    so that an array without them is read too."""

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
        """Of what was decoded as `wire`."""
        return self.kind(*msgspec.structs.astuple(wire))


def _declared(field: dataclasses.Field[Any], hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.name, hint, field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.name, hint, msgspec.field(default_factory=field.default_factory)
    return field.name, hint

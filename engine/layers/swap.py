"""A replacement of a part of a model that can be taken back, and the check that decides.

Replacements are put in before the weights are read, so that the weights are written where the
replacement wants them. Afterwards each kind of replacement is compared with what it replaces, on
the model's own weights (the originals then see them through views), and taken out if it differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol

from torch import nn


class Swap(Protocol):
    """One replacement. `kind` groups those that are checked and taken out together."""

    @property
    def kind(self) -> str: ...

    def apply(self) -> None: ...

    def restore(self) -> None: ...


@dataclass(frozen=True)
class ModuleSwap:
    """`replacement` stands in the place of `original`: parent.<name>."""

    kind: str
    parent: nn.Module
    name: str
    original: nn.Module
    replacement: nn.Module

    def apply(self) -> None:
        self.parent._modules[self.name] = self.replacement

    def restore(self) -> None:
        self.parent._modules[self.name] = self.original


@dataclass(frozen=True)
class ForwardSwap:
    """One module computes with another forward function; its class is left as it is."""

    kind: str
    module: nn.Module
    forward: Any  # a function whose first argument is the module

    def apply(self) -> None:
        self.module.forward = MethodType(self.forward, self.module)

    def restore(self) -> None:
        self.module.__dict__.pop("forward", None)


def apply_all(swaps: Iterable[Swap]) -> None:
    for swap in swaps:
        swap.apply()


def restore_all(swaps: Iterable[Swap]) -> None:
    """In reverse order: a later replacement may stand inside an earlier one."""
    for swap in reversed(list(swaps)):
        swap.restore()

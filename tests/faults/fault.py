"""A fault: an attribute whose call fails, and how what is said of it is judged."""

from __future__ import annotations

import errno
import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from engine.errors import ErrorInfo
from tests.panics import Panic

WORD = "injected"


class Killed(BaseException):
    """Never raised: the process ends."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "exception": lambda: RuntimeError(f"{WORD} failure"),
    "panic": lambda: Panic(f"{WORD} panic"),
    "memory": lambda: MemoryError(),
    "disk-full": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"/{WORD}"),
}
KINDS = (*ERRORS, "kill")


@dataclass(frozen=True)
class Point:
    """`target`: module:attribute, as it is looked up when it is called. calls: which of its calls
    fail, counted from 1 once the scene is set. own: the kinds that it has, if not all of ERRORS.
    options: of the scene."""

    stage: str
    target: str
    scene: str
    calls: tuple[int, ...] = (1,)
    kinds: tuple[str, ...] = tuple(ERRORS)
    options: Any = None


def find(target: str) -> tuple[Any, str]:
    """Owner and name of an attribute that the owner itself has. Raises AttributeError."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    if name not in vars(owner):
        raise AttributeError(f"{target}: no {name} in {owner!r}")
    return owner, name


class Fault:
    """Armed, calls of the point fail as its kind has it; `hits`: how many did."""

    def __init__(self, point: Point, kind: str) -> None:
        self.point, self.kind = point, kind
        self.hits = self._count = 0

    def arm(self) -> None:
        owner, name = find(self.point.target)
        plain = vars(owner)[name]
        is_bound = isinstance(plain, (classmethod, staticmethod))
        function = plain.__func__ if is_bound else plain

        @wraps(function, updated=())
        def failing(*args: Any, **kwargs: Any) -> Any:
            self._count += 1
            if self._count in self.point.calls:
                self.hits += 1
                self.strike()
            return function(*args, **kwargs)

        setattr(owner, name, type(plain)(failing) if is_bound else failing)

    def strike(self) -> None:
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ERRORS[self.kind]()

    def check_words(self, error: ErrorInfo | None) -> None:
        """Cause and remedy are those of this fault."""
        assert error is not None and error.cause and error.remedy, f"unsaid: {error}"
        said = f"{error.cause} {error.kind}".lower()
        words = {"memory": ("memory",), "disk-full": ("no space left", "disk is full"),
                 "kill": ("sigkill",)}.get(self.kind, (WORD,))  # fmt: skip
        assert any(word in said for word in words), f"cause not named: {error}"
        if self.kind != "exception":
            assert "This is a bug" not in error.remedy, f"called a bug: {error}"

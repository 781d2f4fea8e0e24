"""What ends a thread that catches Exception alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
"""As PyO3 makes it of a panic in Rust: no Exception."""


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise MemoryError


DEATHS: dict[str, Callable[[], BaseException]] = {
    "exception": lambda: RuntimeError("a kernel failed"),
    "panic": lambda: Panic("index out of bounds"),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt("inside"),
    "memory": lambda: MemoryError(),
    "unsayable": lambda: UnsayableError(),
}

EACH = [
    pytest.param(name, marks=() if name in ("panic", "exit") else pytest.mark.slow)
    for name in DEATHS
]
"""Their names; of the tests that load a model for each, most are slow ones."""

"""Code that is compiled where it runs (`engine.kernels.cpu`), in tests."""

from __future__ import annotations

import pytest

from engine.kernels.cpu import build, library


def leave_to_torch(patch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    patch.setattr(library, "_find", lambda: library.Found(None, "no C compiler"))
    patch.setattr("engine.numerics.scheme.is_expected", lambda: False)


needs_compiler = pytest.mark.skipif(
    not build.is_expected(), reason="no C compiler, or no x86 processor with AVX2"
)

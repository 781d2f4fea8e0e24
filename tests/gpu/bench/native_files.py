"""The files of tests that run natively on a GPU. Imports no pytest."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1]
LEFT_OUT = (
    "test_run_all.py",
    "test_floors.py",
    "test_measures.py",
    "test_without_qt.py",
    "test_compile.py",
)
"""Tests of what measures and of compiling without a GPU: they need none."""


def test_files() -> list[str]:
    return sorted(f.name for f in FOLDER.glob("test_*.py") if f.name not in LEFT_OUT)

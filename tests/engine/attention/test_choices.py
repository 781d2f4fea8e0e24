"""What attends on the CPU: code compiled here, or torch in one number format or another."""

from __future__ import annotations

import sys

import pytest
import torch

from engine.attention import choices
from engine.attention.choices import (
    NATIVE,
    TILES,
    attention_dtype,
    cpu_choices,
    in_tiles,
    native_limit,
)
from engine.attention.rows import FEW_QUERIES
from engine.kernels.cpu.check import library
from tests.engine.kernels.compiled import leave_to_torch, needs_compiler

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def measured_anew() -> None:
    choices._milliseconds.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_compiled_code_torch_attends(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_to_torch(monkeypatch)
    assert library() is None and native_limit(dtype) == 0
    found = cpu_choices(dtype)
    assert found[0].rows == 1 and NATIVE not in [choice.implementation for choice in found]
    for rows in (1, FEW_QUERIES):
        chosen = [choice.implementation for choice in found if choice.rows <= rows][-1]
        assert getattr(torch, chosen) is attention_dtype(dtype, rows)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_measured_decides_over_prompts(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(**times: float) -> None:
        monkeypatch.setattr(choices, "_milliseconds", lambda dtype: times)

    monkeypatch.setattr(choices, "has_fast_16bit", lambda dtype: True)
    own = str(dtype).removeprefix("torch.")
    measured(**{own: 2.0, "float32": 2.0, NATIVE: 1.0})
    assert native_limit(dtype) == sys.maxsize
    [only] = cpu_choices(dtype)
    assert (only.rows, only.implementation) == (1, NATIVE) and "native 1 ms" in only.reason
    measured(**{own: 1.0, "float32": 1.0, NATIVE: 2.0})
    few, many = cpu_choices(dtype)
    assert (few.rows, few.implementation) == (1, NATIVE)
    assert many.rows == native_limit(dtype) > 1 and many.implementation == own


@needs_compiler
def test_tokens_between_few_and_many_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where converting the keys pays for a prompt alone."""
    times = {"bfloat16": 1.0, "float32": 0.5, NATIVE: 2.0}
    monkeypatch.setattr(choices, "_milliseconds", lambda dtype: times)
    monkeypatch.setattr(choices, "has_fast_16bit", lambda dtype: True)
    found = cpu_choices(torch.bfloat16)
    told = {choice.rows: choice.implementation for choice in found}
    limit = native_limit(torch.bfloat16)
    assert told == {1: NATIVE, limit: "bfloat16", FEW_QUERIES: "float32"}
    assert attention_dtype(torch.bfloat16, limit) is torch.bfloat16


@needs_compiler
def test_tiles_attend_from_many_tokens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"bfloat16": 1.0, "float32": 0.7, NATIVE: 2.0, TILES: 0.5}
    monkeypatch.setattr(choices, "_milliseconds", lambda dtype: times)
    monkeypatch.setattr(choices, "has_fast_16bit", lambda dtype: True)
    assert in_tiles(torch.bfloat16) and attention_dtype(torch.bfloat16, 99) is torch.float32
    told = {choice.rows: choice.implementation for choice in cpu_choices(torch.bfloat16)}
    assert told == {1: NATIVE, native_limit(torch.bfloat16): TILES}
    times[TILES] = 3.0
    assert not in_tiles(torch.bfloat16)


@needs_compiler
def test_everything_that_may_attend_is_measured() -> None:
    names = set(choices._milliseconds(torch.float32))
    assert names == {"float32", NATIVE}
    assert all(ms > 0 for ms in choices._milliseconds(torch.float32).values())

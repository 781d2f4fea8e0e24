"""Tensors with a mapping of their own."""

from __future__ import annotations

import itertools
import math
import mmap
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.hardware import mapped
from engine.hardware.mapped import HUGE_PAGE, EarlyUse, empty_weight, mapped_zeros, resident_bytes
from engine.kernels.cpu.integer import in_panels

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64])


def flags_of(address: int) -> set[str]:
    """What the system knows of the mapping around an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError("not mapped")


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 40), st.integers(1, 300_000), DTYPES)
def test_memory_is_of_the_shape_that_was_asked_for(
    rows: int, width: int, dtype: torch.dtype
) -> None:
    made = empty_weight((rows, width), dtype)
    assert made.shape == (rows, width) and made.dtype is dtype and made.is_contiguous()
    made.fill_(3)
    assert bool((made == 3).all())
    zeros = mapped_zeros((rows, width), dtype)
    assert zeros.shape == made.shape and zeros.dtype is dtype and not zeros.any()
    if sys.platform == "linux" and made.nbytes >= HUGE_PAGE:
        assert made.data_ptr() % HUGE_PAGE == zeros.data_ptr() % HUGE_PAGE == 0


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
def test_large_tensors_are_in_huge_pages() -> None:
    for make in (empty_weight, mapped_zeros):
        assert "hg" in flags_of(make((1024, 1024), torch.float32).data_ptr())
    # of its own: what PyTorch allocates may lie in huge pages that another library asked for
    assert "hg" not in flags_of(mapped_zeros((1024, 100), torch.float32).data_ptr())
    assert "hg" in flags_of(in_panels(torch.zeros(2048, 2048, dtype=torch.uint8)).data_ptr())


@pytest.mark.skipif(sys.platform != "linux", reason="has no huge pages")
def test_the_first_pages_of_each_tensor_are_used_early(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [mapped_zeros((pages, HUGE_PAGE), torch.uint8) for pages in (1, 3, 2)]
    tiny = torch.ones(10)
    made[1][2, 5] = 7
    early = EarlyUse([*made, tiny])
    resident = lambda: [-(-(resident_bytes([one]) or 0) // HUGE_PAGE) for one in made]
    assert resident() == [0, 1, 0]
    assert not early.use(3 * HUGE_PAGE, math.inf) and resident() == [1, 2, 1]
    assert not early.use(3 * HUGE_PAGE, math.inf), "as many as before"
    assert resident() == [1, 2, 1]
    clock = itertools.count()
    ticking = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(mapped, "time", ticking)
    assert early.use(9 * HUGE_PAGE, 2) and resident() == [1, 3, 1]
    assert not early.use(0, 9, share=1.0) and resident() == [1, 3, 2]
    assert int(made[1][2, 5]) == 7 and int(made[1].sum()) == 7 and tiny.sum() == 10
    assert not EarlyUse([tiny]).use(HUGE_PAGE, math.inf)
    kept = weakref.ref(early)
    del early
    assert kept() is None, "and with it the memory, without the garbage collector"


@pytest.mark.skipif(sys.platform != "linux", reason="has no huge pages")
def test_pages_that_were_used_are_resident() -> None:
    assert resident_bytes([]) == 0
    pages = [mapped_zeros((8, HUGE_PAGE), torch.uint8) for _ in range(2)]
    before = resident_bytes(pages)
    pages[1][2:5] = 1
    assert before == 0 and resident_bytes(pages) == 3 * HUGE_PAGE
    EarlyUse(pages[:1]).use(6 * HUGE_PAGE, math.inf)  # bytes, each of a page of whatever size
    used = resident_bytes(pages[:1])
    assert used is not None and 6 * mmap.PAGESIZE <= used <= 6 * HUGE_PAGE


@pytest.mark.skipif(sys.platform != "linux", reason="has no huge pages")
def test_memory_goes_back_with_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[mmap.mmap]] = []
    original = mapped._mapping

    def mapping(count: int) -> mmap.mmap:
        found = original(count)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(mapped, "_mapping", mapping)
    whole = empty_weight((16, HUGE_PAGE), torch.uint8)
    view = whole[3:, 5:]
    del whole
    assert made[0]() is not None
    view.fill_(1)
    del view
    assert made[0]() is None


def test_more_than_there_is_is_a_memory_error() -> None:
    for make in (empty_weight, mapped_zeros):
        with pytest.raises(MemoryError, match="bytes failed"):
            make((2**30, 2**30), torch.float32)

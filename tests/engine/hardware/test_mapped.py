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
from engine.hardware.mapped import HUGE_PAGE, empty_weight, mapped_zeros, resident_bytes, use_early
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
    made = [torch.ones(pages * HUGE_PAGE // 4) for pages in (1, 3, 2)] + [torch.ones(10)]
    used = lambda: [[int(i) for i in (tensor == 0).nonzero()] for tensor in made]
    page = HUGE_PAGE // 4
    use_early(made, 4 * HUGE_PAGE)
    assert used() == [[0], [0, page], [0], []]
    clock = itertools.count()
    ticking = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(mapped, "time", ticking)
    use_early(made, most_s=7)
    assert used() == [[0], [0, page], [0, page], []]
    use_early(made, most_s=math.inf)
    assert used() == [[0], [0, page, 2 * page], [0, page], []]


@pytest.mark.skipif(sys.platform != "linux", reason="has no huge pages")
def test_pages_that_were_used_are_resident() -> None:
    assert resident_bytes([]) == 0
    pages = [mapped_zeros((8, HUGE_PAGE), torch.uint8) for _ in range(2)]
    before = resident_bytes(pages)
    pages[1][2:5] = 1
    assert before == 0 and resident_bytes(pages) == 3 * HUGE_PAGE
    use_early(pages[:1], 6 * HUGE_PAGE)  # single bytes, each of a page of whatever size
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

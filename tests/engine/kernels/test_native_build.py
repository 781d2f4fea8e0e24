"""The compiled kernels: how they are built, and what is used where they cannot be."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from torch import Tensor

from engine.errors import LoadCancelled
from engine.kernels.cpu import build, compiling, library_cache
from engine.kernels.cpu import check as native
from engine.kernels.cpu.check import difference, library
from engine.kernels.cpu.library import Library, Packed
from engine.kernels.cpu.library_cache import UnavailableError
from engine.kernels.registry import quantized_choices
from tests.engine.kernels.compiled import needs_compiler

WRITES = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo x > "$2"; shift; done; true'
"""A compiler whose result is no library."""
HANGS = 'sleep 60 & echo $! >> "$(dirname "$0")/started"; wait'
"""A compiler that hangs in a process that it started."""


def started_by_compilers(folder: Path) -> list[psutil.Process]:
    """Processes of HANGS that run."""
    file = folder / "started"
    ids = file.read_text().split() if file.exists() else ()
    return [one for one in psutil.process_iter() if str(one.pid) in ids]


def have_ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=30)[1]


class TestBuild:
    @pytest.fixture(autouse=True)
    def fresh(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(library_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(native, "_find", native._find.__wrapped__)

    def compiler(self, folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
        """A compiler of ours is the only one."""
        script = folder / "cc"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "cc 1.2.3" && exit\n{does}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))

    @needs_compiler
    def test_without_a_compiler_the_reason_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(build, "COMPILERS", ())
        assert "no C compiler" in native.problem() and "install" in native.problem()
        (choice,) = quantized_choices()
        assert choice.implementation == "tiled" and "no C compiler" in choice.reason

    @needs_compiler
    def test_what_is_expected_is_told_without_starting_a_program(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[list[str]] = []
        monkeypatch.setattr(build, "run", lambda commands, *_: started.extend(commands))
        assert build.is_expected.__wrapped__() and started == []
        monkeypatch.setattr(build, "COMPILERS", ())
        assert not build.is_expected.__wrapped__() and started == []

    @needs_compiler
    def test_what_the_compiler_complains_of_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.compiler(tmp_path, monkeypatch, 'echo "x.c:1: error: no such thing" >&2; exit 1')
        assert native.library() is None and "no such thing" in native.problem()
        assert list((tmp_path / "cache" / "native").iterdir()) == []

    @needs_compiler
    def test_compiled_files_are_counted_while_they_are_compiled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.compiler(tmp_path, monkeypatch, WRITES)
        counts: list[tuple[int, int]] = []
        for _ in range(2):  # the second finds it in the cache
            with build.reporting(lambda *count: counts.append(count)):
                build.compiled()
        build.compiled()
        assert counts == [(done, len(build.SOURCES)) for done in range(len(build.SOURCES) + 1)]

    @needs_compiler
    def test_a_compiler_that_takes_too_long_is_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.compiler(tmp_path, monkeypatch, HANGS)
        monkeypatch.setattr(compiling, "TIMEOUT_S", 0.5)
        assert native.library() is None
        reason = native.problem()
        assert str(tmp_path / "cc") in reason and ".c" not in reason and "500 ms" in reason
        assert have_ended(started_by_compilers(tmp_path))

    @needs_compiler
    @pytest.mark.parametrize("where", ["compiling", "waiting for another process"])
    def test_who_cancels_waits_for_no_compiler(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        self.compiler(tmp_path, monkeypatch, HANGS)
        folder = library_cache.cache_folder()

        counts, num_looks = list[tuple[int, int]](), itertools.count()

        def check() -> None:
            if started_by_compilers(tmp_path) if where == "compiling" else next(num_looks) == 2:
                raise LoadCancelled("cancelled")

        with ExitStack() as other:
            if where != "compiling":
                other.enter_context(library_cache.one_at_a_time(folder, 60, lambda: None))
            report = lambda *count: counts.append(count)
            with pytest.raises(LoadCancelled), build.reporting(report, check):
                native.library()
        assert counts == [(0, len(build.SOURCES))]
        assert have_ended(started_by_compilers(tmp_path))
        self.compiler(tmp_path, monkeypatch, WRITES)  # the next load compiles again
        assert "cannot load" in native.problem()

    @needs_compiler
    def test_a_library_that_does_not_load_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.compiler(tmp_path, monkeypatch, WRITES)
        assert "cannot load" in native.problem()

    @needs_compiler
    def test_a_cache_that_cannot_be_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cache").write_text("a file")
        assert "cannot write" in native.problem()

    def test_it_can_be_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(build.SWITCH, "0")
        assert native.library() is None and build.SWITCH in native.problem()

    def test_other_systems_are_left_to_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        with pytest.raises(UnavailableError, match="Linux"):
            build.compiled()


@needs_compiler
@pytest.mark.parametrize("wrong", ["values", "rows"])
def test_a_compiler_that_is_wrong_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = library()
    assert made is not None
    right = Library.product

    def product(self: Library, weights: Packed, x: Tensor) -> Tensor:
        found = right(self, weights, x)
        if wrong == "values":
            found[:, -1] += 100
        elif len(x) == 1:
            found[0, 0] += 0.01 * abs(found[0, 0]) + 1
        return found

    monkeypatch.setattr(Library, "product", product)
    assert ("matmul" if wrong == "values" else "rows") in difference(made)

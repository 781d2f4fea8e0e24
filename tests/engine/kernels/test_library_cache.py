"""The cache of compiled libraries: only whole files of this user, stored under their key, are
loaded; any other is compiled again."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.kernels.cpu import build
from engine.kernels.cpu import library_cache as cache
from tests.engine.kernels.compiled import needs_compiler

KEY, LIBRARY = "0123456789abcdef", bytes(range(256)) * 50


def truncated(file: Path) -> None:
    os.truncate(file, 5000)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def altered(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


def extended(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def foreign(file: Path) -> None:
    file.write_bytes(b"\x7fELF" + bytes(9000))


def of_another_key(file: Path) -> None:
    cache.store(LIBRARY, file, KEY[::-1])


def writable_by_others(file: Path) -> None:
    file.chmod(0o622)


def huge(file: Path) -> None:
    os.truncate(file, 2**40)


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGE: tuple[Callable[[Path], None], ...] = (
    truncated, emptied, altered, extended, foreign, of_another_key, writable_by_others, huge,
    linked, a_pipe,
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "kernels.so"
    cache.store(LIBRARY, found, KEY)
    return found


def test_a_stored_library_is_intact_and_its_owner_s_alone(file: Path) -> None:
    assert cache.is_intact(file, KEY)
    assert file.stat().st_mode & 0o777 == 0o600 and list(file.parent.iterdir()) == [file]
    assert file.read_bytes().startswith(LIBRARY)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_library_is_logged_and_replaced(
    damage: Callable[[Path], None], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(file)
    with caplog.at_level(logging.WARNING):
        assert not cache.is_intact(file, KEY)
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    cache.store(LIBRARY, file, KEY)
    assert cache.is_intact(file, KEY) and not file.is_symlink()


def test_a_library_of_another_user_is_not_loaded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.os, "geteuid", lambda: os.getuid() + 1)
    assert not cache.is_intact(file, KEY)


def test_a_missing_library_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not cache.is_intact(tmp_path / "missing.so", KEY) and not caplog.records


def test_builders_at_the_same_time_leave_one_whole_library(tmp_path: Path) -> None:
    file = tmp_path / "kernels.so"

    def build_and_read(_: int) -> bool:
        cache.store(LIBRARY, file, KEY)
        return cache.is_intact(file, KEY)

    with ThreadPoolExecutor(8) as builders:
        assert all(builders.map(build_and_read, range(64)))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_previous_library(
    call: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(cache.os, call, fail)
        with pytest.raises(OSError, match="space"):
            cache.store(LIBRARY[::-1], file, KEY)
    assert cache.is_intact(file, KEY) and list(file.parent.iterdir()) == [file]


class TestFolder:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
        return tmp_path / "native"

    def test_it_is_closed_to_other_users(self, folder: Path) -> None:
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        assert cache.cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("kind", ["link", "file", "other user"])
    def test_one_that_is_not_the_user_s_is_refused(
        self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if kind == "link":
            (folder.parent / "elsewhere").mkdir()
            folder.symlink_to(folder.parent / "elsewhere")
        elif kind == "file":
            folder.write_text("")
        else:
            monkeypatch.setattr(cache.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(cache.UnavailableError, match=str(folder)):
            cache.cache_folder()

    @needs_compiler
    def test_a_damaged_library_costs_one_compilation(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled: list[str] = []

        def compile_(compiler: object, openmp: str, processor: str) -> bytes:
            compiled.append(processor)
            return LIBRARY

        monkeypatch.setattr(build, "_compile", compile_)
        path, _ = build.compiled()
        assert build.compiled()[0] == path and len(compiled) == 1
        truncated(path)
        for _ in range(2):
            assert build.compiled()[0] == path and path.read_bytes().startswith(LIBRARY)
        assert len(compiled) == 2 and path.parent == folder

    @needs_compiler
    def test_who_comes_meanwhile_waits_and_compiles_nothing(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build.loaded_openmp()  # its first import is not what they wait for
        begun, may_end, compiled = threading.Event(), threading.Event(), []

        def compile_(compiler: object, openmp: str, processor: str) -> bytes:
            compiled.append(processor)
            begun.set()
            assert may_end.wait(60)
            return LIBRARY

        monkeypatch.setattr(build, "_compile", compile_)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(build.compiled)
            assert begun.wait(60)
            others = [pool.submit(build.compiled) for _ in range(2)]
            time.sleep(0.1)
            assert not any(other.done() for other in others)
            may_end.set()
            assert {one.result(60) for one in (first, *others)} == {first.result()}
        assert len(compiled) == 1

    def test_a_lock_that_stays_is_not_waited_for_for_ever(self, folder: Path) -> None:
        cache.cache_folder()
        wait = lambda: None
        with cache.one_at_a_time(folder, 60, wait), cache.one_at_a_time(folder, 0.05, wait):
            pass

"""A function in a process of its own: its result, its errors, its limits, its end."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.errors import CheckpointError, LoadCancelled
from engine.limited_process import LimitExceeded, ProcessCrashed, TargetFailed, run_limited
from engine.python_process import GRACE_S
from tests.tiers import first_fast, tiered

MIB = 1 << 20


def add(*numbers: int) -> int:
    print("this is no part of the answer")
    return sum(numbers)


def echo(value: Any) -> Any:
    return value


def loaded() -> list[str]:
    return sorted({"PySide6", "torch", "transformers"} & set(sys.modules))


def own_error() -> None:
    raise CheckpointError("the cause 17", "the remedy 18")


def other_error() -> None:
    raise KeyError("a name")


def interrupted() -> None:
    raise KeyboardInterrupt


def no_data() -> object:
    return object()


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os.write(2, b"last words\n")
    os._exit(7)


def sleep() -> None:
    time.sleep(60)


def spin_in_native_code() -> None:
    ctypes.PyDLL(None).usleep(60_000_000)  # it holds the interpreter


def with_child() -> None:
    import subprocess

    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])


def crash_beside_child(file: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(file).write_text(str(child.pid))
    os._exit(7)


def fill() -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(16) * MIB))


def run(target: Callable[..., Any], *args: Any, seconds: float = 30, mib: int = 512) -> Any:
    return run_limited(target, *args, seconds=seconds, max_bytes=mib * MIB)


def test_the_result_comes_back() -> None:
    assert run(add, 1, 2, 3) == 6
    value = {"a": [1, 2.5, None, "ä", b"\x00"], "b": {}}
    assert run(echo, value) == value
    assert run(loaded) == []


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    first_fast(2, [
        (own_error, CheckpointError, "17.*18"),
        (other_error, TargetFailed, "KeyError.*a name"),
        (interrupted, TargetFailed, "KeyboardInterrupt"),
        (no_data, TargetFailed, "TypeError"),
        (leave, ProcessCrashed, "7.*last words"),
    ]),
)
def test_errors_come_back(target: Callable[..., Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        run(target)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_crash_is_an_error() -> None:
    with pytest.raises(ProcessCrashed, match="SIGSEGV"):
        run(crash)


@pytest.mark.parametrize("target", tiered([sleep, with_child, spin_in_native_code], [with_child]))
def test_time_is_limited(target: Callable[..., Any]) -> None:
    if target is spin_in_native_code and sys.platform == "win32":
        pytest.skip("no usleep")
    before = set(psutil.Process().children(recursive=True))
    start = time.monotonic()
    with pytest.raises(LimitExceeded, match=r"1\.5 s"):
        run(target, seconds=1.5)
    assert time.monotonic() - start < 30
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_what_a_crashed_process_started_ends(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(ProcessCrashed):
        run(crash_beside_child, str(file))
    pid, end = int(file.read_text()), time.monotonic() + 30
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_memory_is_limited() -> None:
    with pytest.raises(LimitExceeded, match="200 MiB"):
        run(fill, mib=200)


def test_a_check_that_raises_ends_it() -> None:
    def cancel() -> None:
        raise LoadCancelled("cancelled")

    before = set(psutil.Process().children())
    with pytest.raises(LoadCancelled):
        run_limited(sleep, seconds=60, max_bytes=512 * MIB, check=cancel)
    assert set(psutil.Process().children()) <= before


def test_a_program_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ProcessCrashed, match="/no/such/python"):
        run(add, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX timers")
def test_it_ends_by_itself_when_nobody_watches() -> None:
    assert run(remaining, seconds=20) == pytest.approx(20 + GRACE_S, abs=10)


def remaining() -> float:
    import signal

    return signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the data of a process on Linux alone")
def test_a_lower_limit_of_the_system_is_kept() -> None:
    code = (
        "import resource; from engine.limited_process import run_limited\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))\n"
        "print(run_limited(abs, -5, seconds=50, max_bytes=2**34))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True)
    assert done.stdout.strip() == "5", done.stderr


def test_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "msgspec.py", "engine.py"):
        (tmp_path / name).write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert run(abs, -5) == 5
    assert run(os.getcwd) == str(tmp_path)

"""Runs cases in forked children: a crash, a hang or a full memory ends that child alone.

The parent has imported torch and the engine and has computed nothing: a process with threads of
OpenMP must not be forked. Linux.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from engine.kernels.cpu.compiling import TIMEOUT_S
from tests.corpus.case import LARGEST_BYTES, LONGEST_S, Case, Outcome

LOOK_S = 0.02
SPOOLED = 200_000
"""Characters of the output that are kept."""
READS_ALL = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
DROP_BOUND, CAPABILITIES = 24, 0x20080522
"""PR_CAPBSET_DROP of prctl, and version 3 of capset."""
MODULES = (
    "torch", "transformers", "safetensors.torch", "app.cli.main", "engine.llm_engine",
    "app.cli.generate", "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama", "tokenizers", "app.window.settings_store",
    "app.window.layouts",
)  # fmt: skip


def prepare() -> None:
    """Import what every case needs. Raises RuntimeError if that started a thread."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in MODULES:
        importlib.import_module(name)
    if (count := psutil.Process().num_threads()) != 1:
        raise RuntimeError(f"{count} threads before the first fork")


class _Running(NamedTuple):
    case: Case
    process: psutil.Process
    started: float
    folder: Path
    peak: list[int]


def run_all(
    cases: Iterable[Case], jobs: int = 1, *, controls: Path | None = None,
    longest_s: float = LONGEST_S,
) -> Iterator[tuple[Case, Outcome]]:  # fmt: skip
    """Run every case in a copy of its control (a folder in `controls`), `jobs` at a time."""
    waiting, running = iter(cases), []
    more = True
    try:
        while more or running:
            while more and len(running) < jobs:
                case = next(waiting, None)
                if case is None:
                    more = False
                else:
                    running.append(_start(case, controls))
            time.sleep(LOOK_S)
            for child in list(running):
                if (outcome := _look(child, longest_s)) is not None:
                    running.remove(child)
                    yield child.case, outcome
    finally:
        for child in running:
            _end(child)


def _start(case: Case, controls: Path | None) -> _Running:
    folder = Path(tempfile.mkdtemp(prefix="inferdeck-corpus-"))
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            code = _run(case, folder, controls)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return _Running(case, psutil.Process(pid), started, folder, [0])


def _run(case: Case, folder: Path, controls: Path | None) -> int:
    subject = folder / "input"
    if case.control and controls is not None:
        shutil.copytree(controls / case.control, subject)
    else:
        subject.mkdir()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    home = folder / "home"
    home.mkdir()
    for name in ("DATA", "CONFIG"):
        os.environ[f"INFERDECK_{name}_DIR"] = str(home / name.lower())
    os.environ["TMPDIR"] = tempfile.tempdir = str(home)
    case.make(subject)
    if case.unprivileged and os.getuid() == 0:
        _read_as_owner()
    try:
        return case.run(subject)
    except SystemExit as end:  # argparse's
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _read_as_owner() -> None:
    """Root may read every file: this process and its own ones may no more. (Another user could not
    run an interpreter that is root's.) Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    failed = any(libc.prctl(DROP_BOUND, number, 0, 0, 0) for number in READS_ALL)
    failed = failed or libc.capget(header, sets)
    for i in range(3):  # effective, permitted, inheritable
        sets[i] &= ~sum(1 << number for number in READS_ALL)
    if failed or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")


def _look(child: _Running, longest_s: float) -> Outcome | None:
    """What came of a child that has ended, by itself or because it had to; else None."""
    pid, status = os.waitpid(child.process.pid, os.WNOHANG)
    seconds = time.monotonic() - child.started
    if pid:
        if os.WIFSIGNALED(status):
            return _outcome(child, "signal", os.WTERMSIG(status), seconds)
        return _outcome(child, "exit", os.WEXITSTATUS(status), seconds)
    child.peak[0] = max(child.peak[0], _resident(child.process))
    ended = "large" if child.peak[0] > LARGEST_BYTES else "slow" if seconds > longest_s else ""
    return _outcome(child, ended, 0, seconds) if ended else None


def _resident(process: psutil.Process) -> int:
    """Bytes of a child and its own children. Pages that they share count once where it matters."""
    processes = [process]
    with suppress(psutil.Error):
        processes += process.children(recursive=True)
    total = _sum(processes, lambda one: one.memory_info().rss)
    if total > LARGEST_BYTES:
        total = _sum(processes, lambda one: one.memory_full_info().pss)
    return total


def _sum(processes: list[psutil.Process], size: Callable[[psutil.Process], int]) -> int:
    total = 0
    for one in processes:
        with suppress(psutil.Error):
            total += size(one)
    return total


def _outcome(child: _Running, ended: str, code: int, seconds: float) -> Outcome:
    texts = [_head(child.folder / name) for name in ("out", "err")]
    _end(child)
    return Outcome(ended, code, seconds, child.peak[0], *texts)


def _head(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(SPOOLED)
    except OSError:
        return ""


def _end(child: _Running) -> None:
    """End what is left of a child's process group, and remove its folder."""
    with suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child.process.pid, 0)
    for folder, names, _ in os.walk(child.folder):
        for name in names:
            with suppress(OSError):
                if not (path := Path(folder, name)).is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(child.folder, ignore_errors=True)


def call(action: Callable[[], object]) -> None:
    """Run `action`, which may wait for a compiler, in a forked child. Raises RuntimeError if it
    fails."""

    def run(folder: Path) -> int:
        action()
        return 0

    ((_, outcome),) = run_all([Case("", "call", run)], longest_s=TIMEOUT_S + 60)
    if (outcome.ended, outcome.code) != ("exit", 0):
        raise RuntimeError(f"{outcome.ended} {outcome.code}\n{outcome.err}")

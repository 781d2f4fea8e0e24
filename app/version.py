"""The program's version."""

from __future__ import annotations


def program_version() -> str:
    """Looked up when it is asked for: reading package metadata takes time."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("inferdeck")
    except PackageNotFoundError:
        return "(not installed)"

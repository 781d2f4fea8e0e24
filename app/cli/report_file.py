"""Reports that a command writes to a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ConfigError


def check_writable(file: Path) -> None:
    """Find out before minutes of measuring that the report could not be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder.", "Make it, or choose another --output-json.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigError(f"{file} cannot be written.", "Choose another --output-json.")


def write_report(file: Path, report: Mapping[str, Any]) -> None:
    """Write beside `file` and put it in its place: a full disk leaves the old report whole."""
    beside = file.with_name(file.name + ".part")
    try:
        beside.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    print(f"Report written to {file}", file=sys.stderr)

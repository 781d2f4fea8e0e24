"""Folders and files on this machine. Imports no Qt.

The environment variables INFERDECK_DATA_DIR and INFERDECK_CONFIG_DIR override the user's folders,
for tests and experiments.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import platformdirs

import resources

APP_NAME = "inferdeck"


def data_dir() -> Path:
    """Chats: a folder that cache cleaners must not delete."""
    override = os.environ.get("INFERDECK_DATA_DIR")
    return _made(Path(override) if override else platformdirs.user_data_path(APP_NAME, False))


def config_dir() -> Path:
    """The window's settings and layout."""
    override = os.environ.get("INFERDECK_CONFIG_DIR")
    return _made(Path(override) if override else platformdirs.user_config_path(APP_NAME, False))


def chats_file() -> Path:
    return data_dir() / "chats.sqlite3"


def settings_file() -> Path:
    return config_dir() / "window.ini"


def downloads_file() -> Path:
    """The list of unfinished downloads."""
    return data_dir() / "downloads.json"


def trash_file() -> Path:
    """The list of deleted models that are not removed yet."""
    return data_dir() / "trash.json"


def models_dir() -> Path:
    """Default folder for quantized models; created with the first one."""
    return data_dir() / "models"


def evaluations_dir() -> Path:
    """Evaluation reports, a folder for each; created with the first one."""
    return data_dir() / "evaluations"


def recordings_dir() -> Path:
    """Saved recordings; created with the first one."""
    return data_dir() / "recordings"


def runs_dir() -> Path:
    """Runs other than evaluations, a folder for each; created with the first one."""
    return data_dir() / "runs"


def resources_dir() -> Path:
    return Path(next(iter(resources.__path__)))


def app_icon() -> Path:
    return resources_dir() / "inferdeck.svg"


def starter_model() -> Path:
    """The included small chat model."""
    return resources_dir() / "starter" / "chat"


def starter_draft() -> Path:
    """The model that drafts for the starter model."""
    return resources_dir() / "starter" / "draft"


def starter_head() -> Path:
    """The EAGLE-3 head of the starter model."""
    return resources_dir() / "starter" / "eagle3"


def shapes_dir() -> Path:
    """Folders with a config.json each: real model shapes, for random weights."""
    return resources_dir() / "shapes"


def docs_dir() -> Path:
    """The documentation, a Markdown file for each subject."""
    return resources_dir() / "docs"


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


_PRIVATE = (
    "chats*.sqlite3*", "window*.ini", "profiles*.json", "shortcuts*.json", "layouts*.json",
    "downloads.json", "trash.json", "running-*", "inferdeck.log*", "evaluations", "evaluations/*",
    "evaluations/*/*", "reports", "reports/*", "recordings", "recordings/*",
)  # fmt: skip


def tighten() -> None:
    """Make files of earlier versions readable by their owner alone: 0600, in folders of 0700.

    A folder that an environment variable names may hold other files: it keeps its mode.
    """
    if os.name != "posix":
        return
    for folder, variable in (
        (data_dir(), "INFERDECK_DATA_DIR"), (config_dir(), "INFERDECK_CONFIG_DIR"),
    ):  # fmt: skip
        own = () if os.environ.get(variable) else (folder,)
        for path in (*own, *_matching(folder)):
            with suppress(OSError):  # of another user, or gone
                found = path.lstat()
                mode = stat.S_IMODE(found.st_mode)
                if not stat.S_ISLNK(found.st_mode) and mode & 0o077:
                    path.chmod(mode & 0o700)


def _matching(folder: Path) -> Iterator[Path]:
    for pattern in _PRIVATE:
        yield from folder.glob(pattern)


NAMES = ("features", "command-line", "formats", "architectures", "gpu", "remote", "benchmarks")
"""In reading order."""


class Document(NamedTuple):
    """A Markdown file: a heading, a summary line, then the text."""

    name: str
    title: str
    summary: str
    text: str
    path: Path


def documents() -> list[Document]:
    return [read(name) for name in NAMES]


def read(name: str) -> Document:
    path = docs_dir() / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    title, _, summary = text.splitlines()[:3]
    return Document(name, title.removeprefix("# "), summary, text, path)


def program_version() -> str:
    """Looked up on demand: reading package metadata takes time."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("inferdeck")
    except PackageNotFoundError:
        return "(not installed)"

"""Sources of models: included ones, recent ones, folders, the Hugging Face cache, and real shapes
with random weights. Imports no Qt."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.paths import shapes_dir, starter_model
from engine.units import bytes_text


class SourceKind(StrEnum):
    """Also the headings of the list, in its order."""

    DOWNLOAD = "Downloads"
    STARTER = "Included"
    LOCAL = "Your folders"
    RECENT = "Recent"
    FOLDER = "Selected folder"
    CACHE = "Hugging Face cache"
    SHAPE = "Random weights"
    HUB = "On Hugging Face"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be opened. `subtitle`: one muted line below the title."""

    kind: SourceKind
    path: str
    title: str
    subtitle: str = ""
    load_format: str = "auto"

    @property
    def key(self) -> tuple[str, str]:
        return self.path, self.load_format


SHAPE_TITLES = {
    "qwen3-0.6b": "Qwen3-0.6B",
    "llama-3.2-1b": "Llama-3.2-1B",
    "llama-3.1-8b": "Llama-3.1-8B",
}


STARTER_TITLE = "Demo model"
OLD_STARTER_NAME = "starter"
"""The name of the demo model on servers of older versions: clients may still ask for it."""


def starter_source() -> ModelSource:
    about = "speed and memory use are not representative"
    return ModelSource(SourceKind.STARTER, str(starter_model()), STARTER_TITLE, about)


def model_title(path: str) -> str:
    """A model's title from its path alone."""
    return STARTER_TITLE if is_starter(path) else Path(path).name


def is_starter(path: str) -> bool:
    """Whether `path` is the model that comes with the program."""
    return bool(path) and os.path.abspath(path) == os.path.abspath(starter_model())


def folder_source(path: str) -> ModelSource:
    """A folder or file that the user chose or dropped. A checkpoint's file stands for its folder;
    any other file (GGUF) is kept, so that the error can name it."""
    chosen = Path(path)
    if chosen.is_file() and (chosen.suffix == ".safetensors" or chosen.name == "config.json"):
        chosen = chosen.parent
    return ModelSource(SourceKind.FOLDER, str(chosen), chosen.name or str(chosen), str(chosen))


def shape_sources() -> list[ModelSource]:
    """The shapes in resources, smallest first."""
    folders = [file.parent for file in shapes_dir().glob("*/config.json")]
    return [
        ModelSource(
            SourceKind.SHAPE,
            str(folder),
            SHAPE_TITLES.get(folder.name, folder.name),
            "representative speed and memory use, meaningless replies",
            "dummy",
        )
        for folder in sorted(folders, key=_hidden_size)
    ]


def _hidden_size(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return int(config.get("hidden_size", 0))


def recent_sources(recent: Iterable[tuple[str, str, str]]) -> list[ModelSource]:
    """From (path, load_format, title); models under other headings are left out."""
    own = {starter_source().key, *(shape.key for shape in shape_sources())}
    found = []
    for path, load_format, title in recent:
        about = f"{path} · random weights" if load_format == "dummy" else path
        about = about if os.path.exists(path) else "missing"
        source = ModelSource(SourceKind.RECENT, path, title, about, load_format)
        if source.key not in own:
            found.append(source)
    return found


def hugging_face_sources(cache_dir: Path | None = None) -> list[ModelSource]:
    """Models in the Hugging Face cache that have a config and safetensors, newest use first.

    Reads the disk: call it off the GUI thread. A missing cache counts as empty.
    """
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir(cache_dir).repos
    except CacheNotFound:
        return []
    found = []
    for repo in sorted(repos, key=lambda r: r.last_accessed, reverse=True):
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda r: r.last_modified)
        names = {file.file_name for file in newest.files}
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            size = bytes_text(newest.size_on_disk)
            path = str(newest.snapshot_path)
            found.append(ModelSource(SourceKind.CACHE, path, repo.repo_id, size))
    return found


def folder_sources(folders: Iterable[str]) -> list[ModelSource]:
    """Models in the user's folders, up to two levels deep.

    Reads the disk: call it off the GUI thread. A folder without models is listed too, so that the
    user can remove it.
    """
    found = []
    for folder in folders:
        models = [c.parent for c in _configs(Path(folder)) if any(c.parent.glob("*.safetensors"))]
        found += [
            ModelSource(
                SourceKind.LOCAL,
                str(model),
                model.name,
                f"{bytes_text(folder_size(model))} · {model.parent}",
            )
            for model in models
        ]
        if not models:
            why = "no models" if os.path.isdir(folder) else "missing"
            found.append(ModelSource(SourceKind.LOCAL, folder, Path(folder).name, why))
    return list({source.key: source for source in found}.values())


def _configs(folder: Path) -> list[Path]:
    try:
        return sorted(c for level in ("", "*/", "*/*/") for c in folder.glob(f"{level}config.json"))
    except OSError:
        return []  # no permission to look


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder; links are not followed."""
    files = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files)


def cache_folder(path: str) -> Path | None:
    """The model's folder in the Hugging Face cache that the snapshot `path` belongs to."""
    snapshot = Path(path)
    folder = snapshot.parent.parent
    is_cached = snapshot.parent.name == "snapshots" and folder.name.startswith("models--")
    return folder if is_cached else None

"""Which files of a repository a text model needs. Pure: names and sizes in, a choice out.

Needed are the weights as safetensors, and the small files that describe model, tokenizer and chat
template. Weights in other formats (GGUF, pickled .bin, ONNX...) and pictures are left out: this
program cannot read them, and they often weigh more than the model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.features.models.hub_errors import HubError

WEIGHTS = ".safetensors"
INDEX = "model.safetensors.index.json"
DESCRIPTIONS = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "config.json",
    "generation_config.json", "hf_quant_config.json", "merges.txt", "quant_config.json",
    "quantize_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt", INDEX,
)  # fmt: skip
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "USE_POLICY.md")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository. `size` in bytes; `etag`: the name of its blob in the cache, the
    sha256 of a large file or the git hash of a small one."""

    name: str
    size: int
    etag: str = ""


@dataclass(frozen=True, slots=True)
class FileChoice:
    """`wanted` with the small ones first, so that what is wrong shows early."""

    wanted: tuple[RepoFile, ...]
    skipped: tuple[RepoFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.wanted)

    @property
    def weights(self) -> int:
        """Bytes of the weights alone."""
        return sum(file.size for file in self.wanted if file.name.endswith(WEIGHTS))

    @property
    def skipped_text(self) -> str:
        """What is not downloaded, by kind: "2 .gguf, 1 .bin, 3 others"; empty for nothing."""
        kinds = Counter(_kind(file.name) for file in self.skipped)
        known = sorted((kind, n) for kind, n in kinds.items() if kind)
        parts = [f"{n} {kind}" for kind, n in known]
        if kinds[""]:
            parts.append(f"{kinds['']} other{'s' if kinds[''] > 1 else ''}")
        return ", ".join(parts)


def choose_files(repo_id: str, files: Iterable[RepoFile]) -> FileChoice:
    """What to download of a repository; raises HubError where it holds no model for this
    program, with what it holds instead."""
    every = list(files)
    weights = _weights([f for f in every if "/" not in f.name and f.name.endswith(WEIGHTS)])
    names = {*DESCRIPTIONS, *LICENSES}
    wanted = [f for f in every if f.name in names] + weights
    kept = {f.name for f in wanted}
    skipped = tuple(f for f in every if f.name not in kept)
    if not weights:
        raise _no_weights(repo_id, FileChoice((), skipped))
    if "config.json" not in kept:
        raise HubError(
            f"{repo_id} has weights and no config.json: it is not a whole model.",
            "It may be an adapter; look for the model that it belongs to (base_model).",
        )
    return FileChoice(tuple(sorted(wanted, key=lambda f: (f.size, f.name))), skipped)


def _weights(files: list[RepoFile]) -> list[RepoFile]:
    """One set of weights: Mistral's repositories hold them twice (model-*, consolidated.*), and
    adapters lie beside models."""
    preferred = [f for f in files if f.name.startswith("model")]
    return preferred or [f for f in files if not f.name.startswith("adapter")]


def _no_weights(repo_id: str, choice: FileChoice) -> HubError:
    there = choice.skipped_text or "no files"
    if any(f.name.endswith(".gguf") for f in choice.skipped):
        return HubError(
            f"{repo_id} holds GGUF weights, which this program does not read ({there}).",
            "Take the model that it was converted from: its page names it (base_model).",
        )
    return HubError(
        f"{repo_id} has no safetensors weights ({there}).",
        "Take a repository with safetensors; pickled .bin files can run code when opened.",
    )


def _kind(name: str) -> str:
    """The format of weights that cannot be read; empty for any other file."""
    for kind in (".gguf", ".bin", ".pth", ".pt", ".onnx", ".msgpack", ".h5", WEIGHTS):
        if name.endswith(kind):
            return kind
    return ""


@dataclass(frozen=True, slots=True)
class RepoFolder:
    """One model's folder in the cache `root`."""

    root: Path
    repo_id: str

    @property
    def path(self) -> Path:
        return self.root / "--".join(["models", *self.repo_id.split("/")])

    def blob(self, etag: str) -> Path:
        return self.path / "blobs" / etag

    def incomplete(self, etag: str) -> Path:
        return self.path / "blobs" / f"{etag}.incomplete"

    def lock(self, etag: str) -> Path:
        """The lock that huggingface_hub takes for the same blob."""
        return self.root / ".locks" / self.path.name / f"{etag}.lock"

    def snapshot(self, commit: str) -> Path:
        return self.path / "snapshots" / commit

    def make(self) -> None:
        # `snapshots` may be empty, but a folder without it counts as damaged
        for name in ("blobs", "snapshots", "refs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    def has(self, commit: str, file: RepoFile) -> bool:
        """Whether the whole file is there."""
        return self.blob(file.etag).exists() or (self.snapshot(commit) / file.name).exists()

    def arrived(self, commit: str, files: Iterable[RepoFile]) -> int:
        """Bytes of `files` that are there, whole or in part."""
        return sum(
            file.size if self.has(commit, file) else _size(self.incomplete(file.etag))
            for file in files
        )

    def publish(self, commit: str, files: Iterable[RepoFile]) -> Path:
        """Link the blobs under their names and let main point at them; the snapshot's path."""
        folder = self.snapshot(commit)
        for file in files:
            pointer = folder / file.name
            pointer.parent.mkdir(parents=True, exist_ok=True)
            if not pointer.exists():
                _link(self.blob(file.etag), pointer)
        reference = self.path / "refs" / "main"
        reference.parent.mkdir(parents=True, exist_ok=True)
        fresh = reference.with_name(f"main.{uuid.uuid4().hex[:8]}.tmp")
        fresh.write_text(commit, encoding="utf-8")
        os.replace(fresh, reference)
        return folder

    def discard(self) -> None:
        """Remove what no snapshot uses: parts, and blobs of a download that was not finished."""
        links = self._snapshot_files()
        used = {Path(os.readlink(f)).name for f in links if f.is_symlink()}
        for file in (self.path / "blobs").glob("*"):
            if file.name not in used:
                file.unlink(missing_ok=True)
        if not links:
            shutil.rmtree(self.path, ignore_errors=True)

    def _snapshot_files(self) -> list[Path]:
        return [f for f in (self.path / "snapshots").rglob("*") if not f.is_dir()]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _link(blob: Path, pointer: Path) -> None:
    """A relative link, so that the cache can be moved; where there are no links (Windows without
    developer mode) the content itself, as huggingface_hub does it."""
    pointer.unlink(missing_ok=True)
    try:
        os.symlink(os.path.relpath(blob, pointer.parent), pointer)
    except OSError:
        os.replace(blob, pointer)


CHUNK = 1 << 20
SHA256_LENGTH = 64


class Digest:
    """The hash that `etag` names, fed piece by piece.

    A large file (LFS) has its sha256 there (64 digits), a small one git's hash of a blob
    (40 digits): the sha1 of "blob <size>\\0" and the content.
    """

    def __init__(self, etag: str, size: int) -> None:
        self._wanted, self._size = etag, size
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._hash: Any = hashlib.sha256()
        if len(self._wanted) != SHA256_LENGTH:
            self._hash = hashlib.sha1(b"blob %d\0" % self._size, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def found(self) -> str:
        return str(self._hash.hexdigest())

    @property
    def matches(self) -> bool:
        return self.found == self._wanted

    def read(self, file: BinaryIO, check: Callable[[], None]) -> None:
        """Take the rest of `file`; `check` is called before every MiB and may raise."""
        while True:
            check()
            data = file.read(CHUNK)
            if not data:
                return
            self.update(data)

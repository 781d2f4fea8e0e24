"""Files of a repository that a text model needs. Pure: names and sizes in, a choice out.

Needed: weights as safetensors, and the small files of model, tokenizer and chat template. Skipped:
weights in other formats (GGUF, pickled .bin, ONNX...), which are often larger than the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

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
    """A file of a repository. `size` in bytes; `etag`: SHA-256 of a large file (LFS) or git hash of
    a small one, and the name of its blob in the cache."""

    name: str
    size: int
    etag: str = ""


@dataclass(frozen=True, slots=True)
class FileChoice:
    """`wanted` starts with the smallest, so that errors show early."""

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
        """Skipped files by kind: "2 .gguf, 1 .bin, 3 others"."""
        kinds = Counter(_kind(file.name) for file in self.skipped)
        known = sorted((kind, n) for kind, n in kinds.items() if kind)
        parts = [f"{n} {kind}" for kind, n in known]
        if kinds[""]:
            parts.append(f"{kinds['']} other{'s' if kinds[''] > 1 else ''}")
        return ", ".join(parts)


def choose_files(repo_id: str, files: Iterable[RepoFile]) -> FileChoice:
    """The files to download; raises HubError for a repository without a supported model."""
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
            f"{repo_id} has weights but no config.json.",
            "If it is an adapter, download its base_model.",
        )
    return FileChoice(tuple(sorted(wanted, key=lambda f: (f.size, f.name))), skipped)


def _weights(files: list[RepoFile]) -> list[RepoFile]:
    """One set of weights: Mistral's repositories have two (model-*, consolidated.*), others add
    adapters."""
    preferred = [f for f in files if f.name.startswith("model")]
    return preferred or [f for f in files if not f.name.startswith("adapter")]


def _no_weights(repo_id: str, choice: FileChoice) -> HubError:
    there = choice.skipped_text or "no files"
    if any(f.name.endswith(".gguf") for f in choice.skipped):
        return HubError(
            f"{repo_id} has only GGUF weights, which are not supported ({there}).",
            "Download the original model (base_model on its page).",
        )
    return HubError(
        f"{repo_id} has no safetensors weights ({there}).",
        "Take a repository with safetensors; pickled .bin files can run code when opened.",
    )


def _kind(name: str) -> str:
    """The format of weights that are not supported; empty for any other file."""
    for kind in (".gguf", ".bin", ".pth", ".pt", ".onnx", ".msgpack", ".h5", WEIGHTS):
        if name.endswith(kind):
            return kind
    return ""

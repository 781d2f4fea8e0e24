"""The Hugging Face Hub: model search, model details, and the files that a text model needs.

Needed: weights as safetensors, and the small files of model, tokenizer and chat template. Skipped:
weights in other formats (GGUF, pickled .bin, ONNX...), which are often larger than the model.
Network: call it off the GUI thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.features.models.hub_errors import HubError, hub_error

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
        """Skipped files by kind: "2 .gguf, 1 .bin, 3 other files"."""
        kinds = Counter(_kind(file.name) for file in self.skipped)
        known = sorted((kind, n) for kind, n in kinds.items() if kind)
        parts = [f"{n} {kind}" for kind, n in known]
        if kinds[""]:
            parts.append(f"{kinds['']} other file{'s' * (kinds[''] > 1)}")
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
            "If this is an adapter, download its base_model instead.",
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
            "Download the original model instead (base_model in the model card).",
        )
    return HubError(
        f"{repo_id} has no safetensors weights ({there}).",
        "Choose a repository with safetensors. Loading pickled .bin files can execute code.",
    )


def _kind(name: str) -> str:
    """The format of weights that are not supported; empty for any other file."""
    for kind in (".gguf", ".bin", ".pth", ".pt", ".onnx", ".msgpack", ".h5", WEIGHTS):
        if name.endswith(kind):
            return kind
    return ""


MAX_HITS = 1000
TIMEOUT_S = 15.0
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
TEXT_GENERATION = "text-generation"


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result. `num_parameters` is None where not reported by the hub."""

    repo_id: str
    downloads: int = 0
    likes: int = 0
    gated: bool = False
    num_parameters: int | None = None


@dataclass(frozen=True, slots=True)
class RepoDetails:
    """One model at one commit."""

    repo_id: str
    commit: str
    files: FileChoice
    license: str = ""
    gated: bool = False


class Hub:
    """The hub at `endpoint` with the cache in `cache_dir`; None: those of huggingface_hub
    (HF_ENDPOINT, HF_HUB_CACHE). Requests carry huggingface_hub's own token."""

    def __init__(self, endpoint: str | None = None, cache_dir: Path | None = None) -> None:
        self._endpoint, self._cache_dir = endpoint, cache_dir

    @property
    def endpoint(self) -> str:
        from huggingface_hub import constants

        return (self._endpoint or str(constants.ENDPOINT)).rstrip("/")

    @property
    def cache_dir(self) -> Path:
        from huggingface_hub import constants

        return self._cache_dir or Path(constants.HF_HUB_CACHE)

    def search(self, text: str, limit: int = MAX_HITS) -> list[Hit]:
        """Text models with safetensors whose name contains `text`, most downloaded first. An id
        (owner/name) is also looked up directly, for any kind of model. Raises HubError."""
        with self._errors("model search"):
            self._reach()
            found = self._api.list_models(
                search=text,
                filter="safetensors",
                pipeline_tag=TEXT_GENERATION,
                sort="downloads",
                limit=limit,
                expand=["downloads", "likes", "gated", "safetensors"],
            )
            hits = [_hit(model) for model in found]
        if is_id(text) and text not in {hit.repo_id for hit in hits}:
            hits = [*self._exactly(text), *hits]
        return hits

    def details(self, repo_id: str) -> RepoDetails:
        """Commit, files and license of a model. Raises HubError."""
        with self._errors(repo_id):
            info = self._api.model_info(
                repo_id, revision="main", files_metadata=True, timeout=TIMEOUT_S
            )
        files = [
            RepoFile(s.rfilename, s.size or 0, str(s.lfs.sha256 if s.lfs else s.blob_id or ""))
            for s in info.siblings or ()
        ]
        choice = choose_files(repo_id, files)
        _check_hashes(repo_id, str(info.sha), choice)
        prefix, tags = "license:", map(str, info.tags or ())
        terms = next((t.removeprefix(prefix) for t in tags if t.startswith(prefix)), "")
        return RepoDetails(repo_id, str(info.sha), choice, terms, bool(info.gated))

    def read_config(self, details: RepoDetails, folder: Path) -> Path:
        """Put the model's config.json into `folder` (a few KB), for an estimate."""
        from huggingface_hub import hf_hub_download

        with self._errors(details.repo_id):
            hf_hub_download(
                details.repo_id,
                "config.json",
                revision=details.commit,
                endpoint=self.endpoint,
                local_dir=folder,
            )
        return folder

    @property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint)

    def _exactly(self, repo_id: str) -> list[Hit]:
        from huggingface_hub.errors import HfHubHTTPError

        with self._errors(repo_id):
            try:
                return [_hit(self._api.model_info(repo_id, timeout=TIMEOUT_S))]
            except HfHubHTTPError:
                return []  # text with a slash that is no id

    def _reach(self) -> None:
        """One small request: `list_models` takes half a minute to report a missing network."""
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = f"{self.endpoint}/api/models?limit=1"
        answer = get_session().get(url, headers=build_hf_headers(), timeout=TIMEOUT_S)
        hf_raise_for_status(answer)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn exceptions into HubErrors about `what`."""
        try:
            yield
        except Exception as error:
            raise hub_error(error, what, self.endpoint) from error


def is_id(text: str) -> bool:
    """Whether `text` has the form owner/name."""
    owner, slash, name = text.strip().partition("/")
    return bool(owner and slash and name) and "/" not in name and " " not in text.strip()


def _hit(model: Any) -> Hit:
    safetensors = getattr(model, "safetensors", None)
    total = getattr(safetensors, "total", None)
    return Hit(
        str(model.id), int(model.downloads or 0), int(model.likes or 0), bool(model.gated),
        int(total) if total else None,
    )  # fmt: skip


def _check_hashes(repo_id: str, commit: str, choice: FileChoice) -> None:
    """They become file names in the cache, and verify the download."""
    hashes = {"commit": commit, **{file.name: file.etag for file in choice.wanted}}
    for what, value in hashes.items():
        if not HASH.fullmatch(value):
            raise HubError(
                f"The hub returned an invalid hash in {repo_id} ({what}): {value!r}.",
                "Try again later. If HF_ENDPOINT is set, check the URL.",
            )

"""The Hugging Face Hub: model search and model details. Network: call it off the GUI thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.features.models.hub_errors import HubError, hub_error
from app.features.models.hub_files import FileChoice, RepoFile, choose_files

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
        with self._errors("the search"):
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
        files = [RepoFile(s.rfilename, s.size or 0, _etag(s)) for s in info.siblings or ()]
        choice = choose_files(repo_id, files)
        _check_hashes(repo_id, str(info.sha), choice)
        return RepoDetails(repo_id, str(info.sha), choice, _license(info), bool(info.gated))

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


def _etag(sibling: Any) -> str:
    return str(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or "")


def _check_hashes(repo_id: str, commit: str, choice: FileChoice) -> None:
    """They become file names in the cache, and verify the download."""
    hashes = {"the commit": commit, **{file.name: file.etag for file in choice.wanted}}
    for what, value in hashes.items():
        if not HASH.fullmatch(value):
            raise HubError(
                f"The hub reports an invalid hash for {what} of {repo_id}: {value!r}.",
                "Try again later; with HF_ENDPOINT set, check its address.",
            )


def _license(info: Any) -> str:
    prefix = "license:"
    tags = [str(tag) for tag in info.tags or ()]
    return next((t.removeprefix(prefix) for t in tags if t.startswith(prefix)), "")

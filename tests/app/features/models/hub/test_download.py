"""Downloading from a hub on this machine, into a cache that huggingface_hub reads."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download

from app.features.models.hub import Hub, is_id
from app.features.models.hub_download import ModelDownload, RepoFolder, Speed, Stopped
from app.features.models.hub_errors import HubError
from app.paths import starter_model
from tests.app.features.models.hub.conftest import tiny_files
from tests.app.features.models.hub.server import HubServer, Model
from tests.figures import numbers

WANTED = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
SIZE = sum(len(content) for name, content in tiny_files().items() if name in WANTED)


# Asking ------------------------------------------------------------------------------------------


def test_a_search_finds_the_most_downloaded_first(hub: Hub, server: HubServer) -> None:
    hits = hub.search("TINY")
    assert [hit.repo_id for hit in hits] == ["acme/tiny", "acme/tiny-gguf"]
    assert hits[0].num_parameters == 4_500_000 and hits[1].num_parameters is None
    assert "pipeline_tag=text-generation" in server.requests[-1][1]
    assert hub.search("nothing like it") == []


def test_an_id_is_found_whatever_kind_of_model_it_is(hub: Hub, server: HubServer) -> None:
    server.models["acme/tiny"].listed_in_search = False
    assert [hit.repo_id for hit in hub.search("acme/tiny")] == ["acme/tiny", "acme/tiny-gguf"]
    assert hub.search("acme/unknown") == []
    assert (
        is_id("Qwen/Qwen3-0.6B") and not is_id("qwen") and not is_id("a/b/c") and not is_id("a/ b")
    )


def test_details_name_what_would_be_downloaded(hub: Hub) -> None:
    details = hub.details("acme/tiny")
    assert {file.name for file in details.files.wanted} == WANTED
    assert details.files.size == SIZE and details.license == "apache-2.0"
    *kinds, rest = details.files.skipped_text.split(", ")
    assert kinds == ["1 .bin", "1 .gguf", "1 .onnx"] and numbers(rest) == [2]


def test_hashes_that_are_none_are_refused(hub: Hub, server: HubServer) -> None:
    """They become file names: a hub that is none must not choose where they lie."""
    server.faults.hash = "../../elsewhere"
    with pytest.raises(HubError, match=r"'\.\./\.\./elsewhere'"):
        hub.details("acme/tiny")


# Downloading -------------------------------------------------------------------------------------


def test_others_find_what_was_downloaded(hub: Hub, server: HubServer) -> None:
    path = ModelDownload(hub, "acme/tiny").run()
    assert {file.name for file in path.iterdir()} == WANTED
    assert all((path / n).read_bytes() == c for n, c in tiny_files().items() if n in WANTED)
    [repo] = scan_cache_dir(hub.cache_dir).repos
    assert repo.repo_id == "acme/tiny" and repo.size_on_disk == SIZE
    assert not scan_cache_dir(hub.cache_dir).warnings
    asked = len(server.requests)
    found = snapshot_download("acme/tiny", cache_dir=hub.cache_dir, local_files_only=True)
    assert Path(found) == path and len(server.requests) == asked


@pytest.mark.slow
def test_a_downloaded_model_generates(hub: Hub, server: HubServer) -> None:
    from engine import EngineConfig, LLMEngine, SamplingParams

    files = {file.name: file.read_bytes() for file in starter_model().iterdir()}
    server.models["acme/starter"] = Model("acme/starter", files)
    path = ModelDownload(hub, "acme/starter").run()
    prompt, greedy = "What is TTFT?", SamplingParams(temperature=0.0, max_tokens=8)
    replies = []
    for model in (path, starter_model()):
        engine = LLMEngine(EngineConfig(model=str(model), max_model_len=256, num_threads=1))
        replies.append(engine.generate([prompt], greedy)[0].token_ids)
        engine.shutdown()
    assert replies[0] == replies[1] and replies[0]


def test_a_second_run_downloads_nothing(hub: Hub, server: HubServer) -> None:
    download = ModelDownload(hub, "acme/tiny")
    path = download.run()
    before = len(server.requests)
    assert download.run() == path
    assert len(server.requests) == before + 1  # what main is now
    assert download.progress.done == download.progress.total == SIZE


def test_what_huggingface_hub_downloaded_is_not_downloaded_again(hub: Hub) -> None:
    for name in ("config.json", "tokenizer.json"):
        hf_hub_download("acme/tiny", name, endpoint=hub.endpoint, cache_dir=hub.cache_dir)
    folder, details = RepoFolder(hub.cache_dir, "acme/tiny"), hub.details("acme/tiny")
    there = sum(len(tiny_files()[name]) for name in ("config.json", "tokenizer.json"))
    assert folder.arrived(details.commit, details.files.wanted) == there


def test_a_stopped_download_goes_on_where_it_stopped(hub: Hub, server: HubServer) -> None:
    server.faults.hold = threading.Event()
    download = ModelDownload(hub, "acme/tiny")
    run = _in_thread(download)
    _wait_for(lambda: download.progress.done > 140_000)
    # what arrived is kept; what huggingface_hub says of the cache meanwhile is no damage
    assert not scan_cache_dir(hub.cache_dir).warnings
    download.stop()
    server.faults.hold.set()
    assert isinstance(run.join().error, Stopped)
    server.faults.hold = None
    arrived = download.progress.done
    assert 0 < arrived < SIZE
    again = ModelDownload(hub, "acme/tiny")  # the program was closed meanwhile
    path = again.run()
    assert (path / "model.safetensors").read_bytes() == tiny_files()["model.safetensors"]
    assert len(server.ranges()) == 1 and server.ranges()[0] != "bytes=0-"
    assert again.progress.done == SIZE


def test_a_connection_that_breaks_is_taken_up_again(hub: Hub, server: HubServer) -> None:
    server.faults.break_after = [20_000, 100_000, 50_000]
    path = ModelDownload(hub, "acme/tiny").run()
    assert (path / "model.safetensors").read_bytes() == tiny_files()["model.safetensors"]
    assert len(server.ranges()) == 3


def test_a_server_without_ranges_is_read_from_the_beginning(hub: Hub, server: HubServer) -> None:
    server.faults.break_after = [100, 100_000]
    server.faults.no_ranges = True
    download = ModelDownload(hub, "acme/tiny")
    path = download.run()
    assert (path / "model.safetensors").read_bytes() == tiny_files()["model.safetensors"]
    assert download.progress.done == SIZE


def test_a_wrong_checksum_is_said_and_mended_by_resuming(hub: Hub, server: HubServer) -> None:
    server.faults.corrupt = {"model.safetensors", "config.json"}
    download = ModelDownload(hub, "acme/tiny")
    for name in ("config.json", "model.safetensors"):  # the small one (a git hash) comes first
        with pytest.raises(HubError, match=r"corrupt|received more") as said:
            download.run()
        assert name in said.value.cause and said.value.remedy
    assert (download.run() / "model.safetensors").is_file()
    assert download.progress.done == SIZE


def test_a_part_that_is_damaged_on_the_disk_is_noticed(hub: Hub) -> None:
    folder, details = RepoFolder(hub.cache_dir, "acme/tiny"), hub.details("acme/tiny")
    weights = next(f for f in details.files.wanted if f.name == "model.safetensors")
    folder.blob("").mkdir(parents=True)
    folder.incomplete(weights.etag).write_bytes(b"not the beginning")
    download = ModelDownload(hub, "acme/tiny")
    with pytest.raises(HubError, match=r"corrupt|received more"):
        download.run()
    download.run()
    folder.blob(weights.etag).unlink()
    folder.incomplete(weights.etag).write_bytes(b"x" * (weights.size + 1))
    shutil.rmtree(folder.snapshot(details.commit))
    assert ModelDownload(hub, "acme/tiny").run()


# What goes wrong ---------------------------------------------------------------------------------


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage())
    with pytest.raises(HubError, match="disk space") as said:
        ModelDownload(hub, "acme/tiny").run()
    assert "1000 B" in said.value.cause and "KiB" in said.value.cause
    assert not (hub.cache_dir / "models--acme--tiny").exists()


@pytest.mark.parametrize(
    ("repo_id", "status", "cause", "remedy"),
    [
        ("acme/nothing", 0, "401", ""),
        ("acme/gated", 0, "401", "hf auth login"),
        ("acme/tiny-gguf", 0, "1 .gguf", "base_model"),
        ("acme/tiny", 404, "404", "owner/name"),
        ("acme/tiny", 429, "429", "7 s"),
        ("acme/tiny", 403, "403", "hf auth login"),
        ("acme/tiny", 501, "501", ""),
        ("not an id", 0, "'not an id'", "owner/name"),
    ],
)
def test_refusals_have_cause_and_remedy(
    hub: Hub, server: HubServer, repo_id: str, status: int, cause: str, remedy: str
) -> None:
    server.faults.status = status
    with pytest.raises(HubError) as refused:
        ModelDownload(hub, repo_id).run()
    assert cause in refused.value.cause and refused.value.remedy
    assert remedy in refused.value.remedy


def test_no_connection_and_offline_mode_are_said(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # nobody listens there, and nobody else can
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        with pytest.raises(HubError, match=port):
            Hub(f"http://127.0.0.1:{port}", tmp_path).search("qwen")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        hub.search("tiny")


def test_the_token_goes_to_the_hub_and_never_into_a_message(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert ModelDownload(hub, "acme/gated").run()
    tokens = {"/cdn/" in path: h.get("authorization") for _, path, h in server.requests}
    assert tokens == {False: "Bearer hf_secret", True: None}
    server.faults.status = 403
    with pytest.raises(HubError) as said:
        ModelDownload(hub, "acme/gated").run()
    assert "hf_secret" not in str(said.value)


# Taking back -------------------------------------------------------------------------------------


def test_what_is_discarded_leaves_nothing_behind(hub: Hub, server: HubServer) -> None:
    server.faults.break_after = [100] * 40
    server.faults.status = 0
    download = ModelDownload(hub, "acme/tiny")
    run = _in_thread(download)
    _wait_for(lambda: download.progress.done > 0)
    download.stop()
    run.join()
    assert (hub.cache_dir / "models--acme--tiny").exists()
    download.discard()
    assert not (hub.cache_dir / "models--acme--tiny").exists()


def test_discarding_an_update_keeps_the_version_before(hub: Hub, server: HubServer) -> None:
    path = ModelDownload(hub, "acme/tiny").run()
    server.models["acme/tiny"].files["model.safetensors"] = b"new" * 40_000
    update = ModelDownload(hub, "acme/tiny")
    server.faults.corrupt = {"model.safetensors"}
    with pytest.raises(HubError, match=r"corrupt|received more"):
        update.run()
    update.discard()
    assert (path / "model.safetensors").read_bytes() == tiny_files()["model.safetensors"]
    assert (path / "config.json").read_bytes() == tiny_files()["config.json"]


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    assert speed.at(0.0) == 0.0
    for second in range(10):
        speed.add(1000, float(second))
    assert speed.at(10.0) == pytest.approx(1000.0)
    assert speed.at(20.0) == 0.0


class _Run:
    def __init__(self, download: ModelDownload) -> None:
        self.error: BaseException | None = None
        self._download = download
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._download.run()
        except BaseException as error:
            self.error = error

    def join(self) -> _Run:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self


def _in_thread(download: ModelDownload) -> _Run:
    return _Run(download)


def _wait_for(condition: Any) -> None:
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come")

"""Deleting with a way back."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from app.features.models.hub import Hub
from app.features.models.hub_download import ModelDownload
from app.storage.trash import Trash, TrashError


@pytest.fixture
def trash(tmp_path: Path) -> Trash:
    return Trash(tmp_path / "trash.json")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_what_is_put_back_is_as_it_was(trash: Trash, model: Path) -> None:
    entry = trash.put(model)
    assert not model.exists() and trash.entries == [entry]
    trash.restore(entry)
    assert (model / "config.json").read_text() == "{}" and trash.entries == []


def test_what_is_purged_is_gone(trash: Trash, model: Path) -> None:
    trash.purge(trash.put(model))
    assert list(model.parent.iterdir()) == [] and trash.entries == []


def test_the_next_start_removes_what_a_run_that_died_left(
    trash: Trash, model: Path, tmp_path: Path
) -> None:
    trash.put(model)
    Trash(tmp_path / "trash.json").purge_all()
    assert list(model.parent.iterdir()) == [] and trash.entries == []


def test_nothing_is_overwritten_when_something_came_in_its_place(trash: Trash, model: Path) -> None:
    entry = trash.put(model)
    model.mkdir()
    with pytest.raises(TrashError, match=re.escape(str(model))):
        trash.restore(entry)
    assert entry.aside.exists()
    trash.purge(entry)
    assert model.exists() and not entry.aside.exists()


def test_what_cannot_be_moved_is_said_and_stays(trash: Trash, model: Path) -> None:
    with pytest.raises(TrashError, match=re.escape(str(model))):
        trash.put(model / "not there")
    assert trash.entries == []


@pytest.mark.parametrize("text", ["", "{", '[["a"]]', '[["/x", "/home"]]', "7"])
def test_a_damaged_journal_removes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "trash.json").write_text(text)
    assert Trash(tmp_path / "trash.json").entries == []


def test_a_model_of_the_cache_goes_and_comes_back(hub: Hub, trash: Trash) -> None:
    path = ModelDownload(hub, "acme/tiny").run()
    folder = path.parent.parent
    entry = trash.put(folder)
    assert not scan_cache_dir(hub.cache_dir).repos
    trash.restore(entry)
    assert [repo.repo_id for repo in scan_cache_dir(hub.cache_dir).repos] == ["acme/tiny"]
    trash.purge(trash.put(folder))
    assert not folder.exists()


def test_blobs_in_the_common_store_are_deleted_through_huggingface_hub(
    hub: Hub, trash: Trash
) -> None:
    """As huggingface_hub 2 lays them out: the model's blob is a link into <cache>/blobs."""
    path = ModelDownload(hub, "acme/tiny").run()
    folder = path.parent.parent
    blob = (path / "model.safetensors").resolve()
    shared = hub.cache_dir / "elsewhere"
    os.rename(blob, shared)
    blob.symlink_to(shared)
    trash.purge(trash.put(folder))
    assert not folder.exists() and trash.entries == []
    assert not [f for f in hub.cache_dir.iterdir() if f.name.startswith(".inferdeck")]

"""Profiles are kept, found, replaced and deleted; what cannot be read is never lost. No Qt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.storage.profiles import LONGEST_NAME, Profile, ProfileError, ProfileStore, clean_name


def names(store: ProfileStore) -> list[str]:
    return [profile.name for profile in store.profiles]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profiles.json"


def test_profiles_come_back_sorted_by_name(path: Path) -> None:
    store = ProfileStore(path)
    assert names(store) == [] and not path.exists()
    store.save(Profile("wide", {"max_num_seqs": 64, "kv_cache_memory_bytes": None}))
    store.save(Profile("  Even   ITL ", {"max_num_batched_tokens": 64}))
    again = ProfileStore(path)
    assert names(again) == ["Even ITL", "wide"] and not again.problem
    wide = {"max_num_seqs": 64, "kv_cache_memory_bytes": None}
    assert again.find("WIDE") == Profile("wide", wide)


def test_a_name_is_taken_once_whatever_its_case(path: Path) -> None:
    store = ProfileStore(path)
    store.save(Profile("wide", {"max_num_seqs": 64}))
    store.save(Profile("Wide", {"max_num_seqs": 32}))
    assert store.profiles == (Profile("Wide", {"max_num_seqs": 32}),)
    store.delete("Wide")
    assert ProfileStore(path).profiles == ()
    with pytest.raises(ProfileError):
        store.save(Profile(" \n "))


def test_what_another_version_knew_stays_in_the_file(path: Path) -> None:
    settings = {"max_num_seqs": 8, "num_imagined_tokens": 4, "block_size": "large"}
    text = {"version": 1, "profiles": [{"name": "new", "settings": settings}]}
    path.write_text(json.dumps(text), encoding="utf-8")
    store = ProfileStore(path)
    assert store.profiles[0].settings == {"max_num_seqs": 8}
    assert set(store.profiles[0].unknown) == {"num_imagined_tokens", "block_size"}
    store.save(Profile("other"))
    stored = json.loads(path.read_text(encoding="utf-8"))["profiles"]
    assert next(p["settings"] for p in stored if p["name"] == "new") == settings


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"profiles": []}', '{"version": 2, "profiles": []}', '{"version": 1}',
     '{"version": 1, "profiles": [3]}', '{"version": 1, "profiles": [{"name": 1}]}', "\udcff"],
)  # fmt: skip
def test_a_damaged_file_is_kept_aside(path: Path, text: str) -> None:
    damaged = text.encode("utf-8", "surrogateescape")
    for number in (1, 2):
        path.write_bytes(damaged)
        store = ProfileStore(path)
        aside = path.with_name(f"profiles.damaged-{number}.json")
        assert store.profiles == () and str(aside) in store.problem
        assert aside.read_bytes() == damaged
        store.save(Profile("fresh"))
        assert names(ProfileStore(path)) == ["fresh"]


def test_what_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = ProfileStore(folder / "profiles.json")
    store.save(Profile("kept"))
    (folder / "profiles.json").unlink()
    folder.rmdir()
    with pytest.raises(ProfileError):
        store.save(Profile("lost"))
    assert names(store) == ["kept"]


@given(st.text(max_size=200))
def test_a_clean_name_is_one_bearable_line(name: str) -> None:
    cleaned = clean_name(name)
    assert len(cleaned) <= LONGEST_NAME and cleaned == cleaned.strip()
    assert clean_name(cleaned) == cleaned and len(cleaned.splitlines()) <= 1

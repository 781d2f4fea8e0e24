"""Layouts are kept, renamed and deleted; what cannot be read is never lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.window.docks import CLOSED_DOCKS
from app.window.layouts import BUILT_IN, Layout, LayoutError, LayoutStore, plan_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "layouts.json"


STATES = st.dictionaries(st.sampled_from(["Chat", "Tune", "Gone"]), st.binary(max_size=40))


@given(STATES, st.one_of(st.none(), st.integers(80, 160)), st.sampled_from(BUILT_IN))
def test_a_layout_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    states: dict[str, bytes],
    text_size: int | None,
    base: Layout,
) -> None:
    file = tmp_path_factory.mktemp("layouts") / "layouts.json"
    layout = Layout("Mine", base.name, "Tune", text_size, states)
    LayoutStore(file).save(layout)
    assert LayoutStore(file).own == (layout,) and LayoutStore(file).find(" mine ") == layout


def test_names_are_given_once_and_never_one_of_the_program(file: Path) -> None:
    store = LayoutStore(file)
    store.save(Layout("wide"))
    store.save(Layout("Wide", "Tuning"))
    store.save(Layout("Arrow"))
    assert [x.name for x in LayoutStore(file).own] == ["Arrow", "Wide"]
    with pytest.raises(LayoutError):
        store.save(Layout("  "))
    with pytest.raises(LayoutError, match="tuning"):
        store.save(Layout("tuning"))
    assert [x.name for x in store.own] == ["Arrow", "Wide"]
    with pytest.raises(LayoutError, match="Arrow"):
        store.rename("Wide", "ARROW")
    assert store.rename("Wide", "WIDE").base == "Tuning"
    store.delete("WIDE")
    assert [x.name for x in LayoutStore(file).own] == ["Arrow"]


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "Mine"},
        {"name": "Mine", "base": "Chat", "page": "", "text_size": 900, "states": {}},
        {"name": "Mine", "base": "Chat", "page": "", "text_size": None, "states": {"Chat": "§"}},
        {"name": "Chat", "base": "Chat", "page": "", "text_size": None, "states": {}},
    ],
)
def test_a_damaged_file_is_kept_aside(file: Path, entry: dict[str, object]) -> None:
    text = json.dumps({"version": 1, "layouts": [entry]})
    file.write_text(text, encoding="utf-8")
    store = LayoutStore(file)
    assert store.own == () and "layouts.damaged-1.json" in store.problem
    store.save(Layout("Mine"))
    assert file.with_name("layouts.damaged-1.json").read_text(encoding="utf-8") == text


def test_a_newer_file_is_kept_aside_and_a_base_that_is_gone_is_the_first(file: Path) -> None:
    file.write_text('{"version": 2, "layouts": []}')
    assert "version 2" in LayoutStore(file).problem
    entry = {"name": "Mine", "base": "Gone", "page": "", "text_size": None, "states": {}}
    file.write_text(json.dumps({"version": 1, "layouts": [entry]}))
    assert LayoutStore(file).own == (Layout("Mine", "Chat"),)


def test_every_built_in_layout_has_a_plan_for_every_page() -> None:
    for layout in BUILT_IN:
        assert layout.is_built_in
        plan_of(layout.base, "Chat", CLOSED_DOCKS)
        assert plan_of(layout.base, "A new page", CLOSED_DOCKS) == CLOSED_DOCKS
    assert not Layout("Mine").is_built_in

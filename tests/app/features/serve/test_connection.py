"""What a connection is: checked, kept without its key, and read back from whatever stands there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients.connection import (
    Connection,
    check,
    from_text,
    new_connection,
    suggested_name,
    to_text,
    without_credentials,
)
from app.clients.target import ServerType

CONNECTIONS = st.lists(
    st.builds(
        Connection,
        id=st.text(min_size=1),
        name=st.text(),
        base_url=st.text(),
        server_type=st.none() | st.sampled_from(list(ServerType)),
        version=st.text(),
        model=st.text(),
        is_watched=st.booleans(),
    ),
    unique_by=lambda one: one.id,
    max_size=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(CONNECTIONS)
def test_what_is_kept_comes_back(connections: list[Connection]) -> None:
    assert from_text(to_text(connections)) == connections


@given(st.text() | JSON.map(json.dumps))
def test_a_damaged_list_is_an_empty_one(text: str) -> None:
    assert all(isinstance(one, Connection) for one in from_text(text))


@pytest.mark.parametrize(
    ("url", "clean", "key"),
    [
        ("http://lab:8000/v1", "http://lab:8000/v1", ""),
        ("http://me:s%65cret@lab:8000", "http://lab:8000", "secret"),
        ("https://sk-1@lab/v1", "https://lab/v1", "sk-1"),
        ("me:secret@lab:8000", "lab:8000", "secret"),
        ("http://[::1]:80", "http://[::1]:80", ""),
        ("http://[", "http://[", ""),
        ("", "", ""),
    ],
)
def test_a_key_is_taken_out_of_the_address(url: str, clean: str, key: str) -> None:
    assert without_credentials(url) == (clean, key)


@given(st.text())
def test_no_address_is_too_strange(url: str) -> None:
    clean, key = without_credentials(url)
    assert isinstance(key, str) and len(clean) <= len(url) + 8
    suggested_name(url, ())


def test_what_cannot_be_kept_is_said_at_its_field() -> None:
    lab = new_connection("Lab", "http://lab:8000")
    fields = lambda name, url: [p.field for p in check(name, url, [lab])]
    assert fields("", "http://lab:8000") == ["name"]
    assert fields(" lab", "http://lab:8000") == ["name"]
    assert fields("x" * 61, "http://lab") == ["name"]
    assert fields("other", "") == ["base_url"]
    assert fields("other", "ftp://lab") == ["base_url"]
    assert fields("other", "http://me:secret@lab") == ["base_url"]
    assert fields("other", "lab:8000") == []
    assert suggested_name("http://lab:8000/v1", [new_connection("lab:8000", "")]) == "lab:8000 (2)"

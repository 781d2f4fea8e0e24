"""What is chosen for the server: checked, kept, and turned into what it is started with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.serve.addresses import examples, next_free_port, url_of
from app.server.options import RANGES, ServingChoice, new_key
from engine.errors import ConfigError

CHOICES = st.builds(
    ServingChoice,
    is_public=st.booleans(),
    allows_control=st.booleans(),
    model_name=st.text(max_size=20),
    origins=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    **{name: st.integers(*bounds) for name, bounds in RANGES.items()},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(CHOICES)
def test_what_is_kept_comes_back(choice: ServingChoice) -> None:
    assert ServingChoice.from_text(choice.to_text()) == choice


@given(st.text() | JSON.map(json.dumps) | st.fixed_dictionaries(
    dict.fromkeys(("port", "is_public", "origins", "max_queued"), JSON)
).map(json.dumps))  # fmt: skip
def test_a_damaged_file_is_a_default_and_never_an_error(text: str) -> None:
    choice = ServingChoice.from_text(text)
    assert 1 <= choice.port <= 65_535 and isinstance(choice.is_public, bool)
    assert all(isinstance(origin, str) for origin in choice.origins)


@given(CHOICES, st.text(max_size=12))
def test_what_has_no_problem_can_be_started(choice: ServingChoice, key: str) -> None:
    if choice.problems(key):
        with pytest.raises(ConfigError):
            choice.options(key)
    else:
        options = choice.options(key)
        assert not options.is_open
        assert options.is_loopback is not choice.is_public


def test_the_network_needs_a_key() -> None:
    public = ServingChoice(is_public=True)
    assert [problem.field for problem in public.problems("")] == ["key"]
    key = new_key()
    assert key != new_key() and len(key) > 24
    assert public.options(key).api_key == key
    assert [p.field for p in ServingChoice(origins=("localhost",)).problems("")] == ["origins"]


def test_the_network_has_an_address_that_others_can_use() -> None:
    url = url_of("0.0.0.0", 8000)
    assert url.startswith("http://") and url.endswith(":8000") and "0.0.0.0" not in url


def test_the_next_free_port_can_be_taken() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = next_free_port("127.0.0.1", port)
        assert free is None or free > port


@pytest.mark.parametrize("has_key", [False, True])
def test_examples_name_the_key_by_its_variable_alone(has_key: bool) -> None:
    found = examples("http://127.0.0.1:8000", 'a "model"', has_key=has_key)
    assert [one.title for one in found][:2] == ["curl", "Python"]
    compile(found[1].text, "example", "exec")
    assert ("INFERDECK_API_KEY" in found[0].text) is has_key

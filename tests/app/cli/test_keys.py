"""The API keys of several servers: each goes to its own alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.__main__ import main
from app.bench import remote
from app.cli.keys import keys_of
from app.server.options import KEY_VARIABLE
from engine.errors import ConfigError
from tests.app.cli.test_cli_bench_served import WORK, write
from tests.app.clients.conftest import Exchange, ScriptedServer, served

A, B = "http://a:8000", "http://b:8000"


@pytest.fixture(autouse=True)
def no_key_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_a_key_belongs_to_the_server_that_it_names() -> None:
    assert keys_of([f"{B}=two"], [A, B]) == {B: "two"}
    assert keys_of([f"{A}/v1=one", "b:8000=two"], [A, B]) == {A: "one", B: "two"}
    assert keys_of(["http://c:8000/v1=k"], [A]) == {A: "http://c:8000/v1=k"}  # a key as any other


def test_a_key_may_contain_the_sign() -> None:
    assert keys_of(["c2VjcmV0=="], [A]) == {A: "c2VjcmV0=="}
    assert keys_of([f"{A}=c2VjcmV0=="], [A, B]) == {A: "c2VjcmV0=="}


@pytest.mark.parametrize("given", [["one"], ["http://c:8000=one"], [f"{A}=one", "a:8000=two"]])
def test_a_key_of_no_server_or_of_one_that_has_one(given: list[str]) -> None:
    with pytest.raises(ConfigError):
        keys_of(given, [A, B])


def test_the_environment_has_the_key_of_a_single_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "one")
    assert keys_of([], [A]) == {A: "one"}
    assert keys_of(["two"], [A]) == {A: "two"}
    assert keys_of([], [A, B]) == {}


class Guarded:
    """A server that records the keys that it is sent."""

    def __init__(self, server: ScriptedServer) -> None:
        self.keys: set[str | None] = set()
        self.url = f"http://{server.host}"
        server.models("vllm", "m", max_model_len=4096)
        models = server.answers["/v1/models"]

        def list_models(exchange: Exchange) -> None:
            self._record(exchange)
            exchange.send(200, models)

        def complete(exchange: Exchange) -> None:
            self._record(exchange)
            write(exchange)

        server.answers |= {
            "/version": {"version": "0.12.0"},
            "/tokenize": {"tokens": list(range(64))},
            "/v1/models": list_models,
            "/v1/completions": complete,
        }  # fmt: skip

    def _record(self, exchange: Exchange) -> None:
        self.keys.add(exchange.headers.get("authorization"))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Guarded, Guarded]]:
    monkeypatch.setattr(remote, "MOST_SETTLE_S", 0.1)
    with served() as one, served() as other:
        yield Guarded(one), Guarded(other)


def test_each_engine_of_a_comparison_gets_its_key_alone(
    two: tuple[Guarded, Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    monkeypatch.setenv(KEY_VARIABLE, "of-another-server")
    axis = f"engine={one.url},{other.url}"
    assert main(["bench", *WORK, "--sweep", axis, "--api-key", f"{other.url}=secret"]) == 0
    assert one.keys == {None}
    assert other.keys == {"Bearer secret"}


def test_one_key_for_two_servers_is_refused_before_a_request(two: tuple[Guarded, Guarded]) -> None:
    one, other = two
    axis = f"engine={one.url},{other.url}"
    assert main(["bench", *WORK, "--sweep", axis, "--api-key", "secret"]) != 0
    assert one.keys == other.keys == set()

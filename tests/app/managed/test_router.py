"""A router as a managed engine: the scripted vllm-router as a real process, and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.clients.look import Looker
from app.clients.probe import probe
from app.clients.router import routed_url
from app.clients.target import ServerType, Target
from app.managed.arguments import read_flags
from app.managed.command import engine_words, is_taken
from app.managed.interpreters import checked, find
from app.managed.launch import Launch
from app.managed.process import State
from app.managed.replicas import check
from engine.errors import InferdeckError
from tests.app.clients.conftest import ScriptedServer, served
from tests.app.managed.conftest import Start, wait_until


@pytest.fixture
def replicas() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with served() as one, served() as other:
        yield one.replica(), other.replica()


@pytest.fixture
def router(python: Path, replicas: tuple[ScriptedServer, ScriptedServer]) -> Launch:
    urls = tuple(one.target.base_url for one in replicas)  # with /v1, as users write it
    return Launch(kind=ServerType.ROUTER, interpreter=str(python), replicas=urls)


def test_its_command_line() -> None:
    launch = Launch(
        kind=ServerType.ROUTER, interpreter="/opt/r/bin/python", settings={"--policy": "x"},
        replicas=("http://127.0.0.1:8001/v1", "http://lab:8002"),
    )  # fmt: skip
    words = engine_words(launch, 8100)
    assert words[:7] == ["/opt/r/bin/python", "-m", "vllm_router.launch_router", "--host",
                         "127.0.0.1", "--port", "8100"]  # fmt: skip
    assert words[words.index("--prometheus-host") + 1] == "127.0.0.1"
    assert words[words.index("--prometheus-port") + 1] == "8101"
    assert words[-4:] == ["--worker-urls", "http://127.0.0.1:8001", "http://lab:8002", "--policy=x"]
    assert "--health-check-interval-secs=1" in words


def test_it_is_found_beside_an_engine(python: Path) -> None:
    environment = str(python.parent.parent)
    assert find(ServerType.ROUTER, [environment])[0].version == "0.1.17"
    assert checked(environment, ServerType.VLLM).version == "0.32.0"


def test_its_policies_come_from_its_parser(router: Launch) -> None:
    policy = read_flags(router).find("--policy")
    assert policy is not None and policy.default == "cache_aware"
    assert {"power_of_two", "round_robin", "consistent_hash"} < set(policy.choices)


def test_a_replica_is_taken_out_and_comes_back(
    start: Start, router: Launch, replicas: tuple[ScriptedServer, ScriptedServer]
) -> None:
    process = start(router)
    wait_until(lambda: process.status.state is not State.STARTING)
    assert process.status.state is State.READY, process.lines[-5:]
    assert probe(Target(process.base_url)).server_type is ServerType.ROUTER
    looker = Looker(
        Target(process.base_url), ServerType.ROUTER, 1.0, 60.0, routed_url(process.base_url)
    )
    healthy = lambda: [one.is_healthy for one in looker.look().replicas]
    try:
        assert healthy() == [True, True]
        assert sum(one.routed or 0 for one in looker.look().replicas) > 0  # of the probe
        del replicas[0].answers["/health"]
        wait_until(lambda: sorted(healthy()) == [False, True])
        replicas[0].replica()
        wait_until(lambda: healthy() == [True, True])
    finally:
        looker.close()


def test_it_starts_with_a_replica_away(
    start: Start, router: Launch, replicas: tuple[ScriptedServer, ScriptedServer]
) -> None:
    del replicas[0].answers["/health"]
    process = start(router)
    wait_until(lambda: process.status.state is State.READY)


def test_it_needs_two_ports(start: Start, router: Launch) -> None:
    with served() as taken:
        port = taken.server_address[1] - 1
        if is_taken(port):
            pytest.fail("the port before is taken")
        from app.managed.process import ManagedProcess

        process = ManagedProcess(router, lambda: None, port=port)
        try:
            assert process.port != port
        finally:
            process.stop()
            assert process.wait(30.0)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (("m", "m"), ""),
        (("m", "other"), "no model in common: one has m; two has other"),
        (("m", None), ""),
        ((None, None), "None of the router's 2 replicas responds"),
    ],
)
def test_replicas_are_checked(models: tuple[str | None, ...], words: str) -> None:
    with ExitStack() as stack:
        targets = []
        for name, model in zip(("one", "two"), models, strict=True):
            made = stack.enter_context(served())
            if model is not None:
                made.replica(model)
            targets.append(replace_name(made.target, name))
        if not words:
            check(targets)
        else:
            with pytest.raises(InferdeckError, match=words):
                check(targets)


def test_replicas_with_different_keys_are_said(
    replicas: tuple[ScriptedServer, ScriptedServer],
) -> None:
    urls = [one.target.base_url for one in replicas]
    check([Target(urls[0], "k"), Target(urls[1], "k")])
    for other in ("other", None):
        with pytest.raises(InferdeckError, match="different API keys"):
            check([Target(urls[0], "k"), Target(urls[1], other)])


def replace_name(target: Target, name: str) -> Target:
    return Target(target.base_url, None, name)


def test_a_router_is_no_replica(
    start: Start, router: Launch, replicas: tuple[ScriptedServer, ScriptedServer]
) -> None:
    process = start(replace(router, settings={}))
    wait_until(lambda: process.status.state is State.READY)
    with pytest.raises(InferdeckError, match="is a router itself"):
        check([replicas[0].target, Target(process.base_url, None, "inner")])

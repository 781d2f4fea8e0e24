"""Descriptions, command lines, interpreters, flags and the log."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from app.clients.target import ServerType
from app.managed.arguments import read_flags
from app.managed.command import command_words, engine_words, free_port, is_taken
from app.managed.interpreters import checked, find
from app.managed.launch import Launch, Place, parse_environment
from app.managed.log_progress import Progress, Stage, advanced, clean
from engine.errors import InferdeckError
from tests.app.managed.conftest import LOGS

FULL = Launch(
    interpreter="/opt/v/bin/python", model="/m", place=Place.SSH, host="me@lab",
    settings={"--max-num-seqs": "8", "--enforce-eager": ""}, environment={"A": "b c"},
)  # fmt: skip


def test_a_description_is_stored_and_read() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=Launch) == FULL


@pytest.mark.parametrize(
    "launch, fields",
    [
        (FULL, []),
        (Launch(), ["model", "interpreter"]),
        (replace(FULL, host="-oProxyCommand=x"), ["host"]),
        (replace(FULL, host="a b"), ["host"]),
        (replace(FULL, place=Place.CONTAINER), ["image"]),
        (Launch(kind=ServerType.OPENAI), ["command"]),
        (Launch(kind=ServerType.ROUTER), ["replicas", "interpreter"]),
        (Launch(kind=ServerType.ROUTER, interpreter="p", replicas=("a",)), ["replicas"]),
        (Launch(kind=ServerType.ROUTER, interpreter="p", replicas=("a", "b")), []),
        (Launch(kind=ServerType.OPENAI, command="serve"), ["command"]),
        (Launch(kind=ServerType.OPENAI, command="serve '{port}"), ["command"]),
        (Launch(kind=ServerType.OPENAI, command="serve {port}"), []),
    ],
)
def test_problems_stand_at_their_fields(launch: Launch, fields: list[str]) -> None:
    assert [one.field for one in launch.problems()] == fields


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("A=1 B='two words'", {"A": "1", "B": "two words"}), ("", {}), ("A=b=c", {"A": "b=c"}),
        ("A=", {"A": ""}), ("=x", None), ("9=1", None), ("A", None), ("A='open", None),
    ],
)  # fmt: skip
def test_variables_are_read(text: str, wanted: dict[str, str] | None) -> None:
    assert parse_environment(text) == wanted


def test_the_engines_command_line() -> None:
    words = engine_words(FULL, 8001)
    assert words == [
        "/opt/v/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/m", "--host",
        "127.0.0.1", "--port", "8001", "--max-num-seqs=8", "--enforce-eager",
    ]  # fmt: skip
    sglang = engine_words(replace(FULL, kind=ServerType.SGLANG), 8001)
    assert sglang[1:5] == ["-m", "sglang.launch_server", "--model-path", "/m"]
    assert "--enable-metrics" in sglang  # else it reports no figures


def test_ssh_asks_for_nothing_and_forwards_one_port_of_the_loopback() -> None:
    words = command_words(FULL, 8001, "x")
    assert words[0].endswith("ssh") and "BatchMode=yes" in words
    here, _, there = words[words.index("-L") + 1].partition(":127.0.0.1:")
    assert here == "127.0.0.1:8001" and int(there) != 8001 and f"--port {there}" in words[-1]
    assert words[-2] == "me@lab" and words[-1].startswith("env 'A=b c' /opt/v/bin/python ")


def test_a_free_port_is_free() -> None:
    port = free_port()
    assert not is_taken(port)
    with socket.create_server(("127.0.0.1", port)):
        assert is_taken(port)


def test_interpreters_are_found_and_checked(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = python.parent.parent
    assert find(ServerType.VLLM, [str(environment)])[0] == (str(python), "0.32.0")
    assert checked(str(python), ServerType.VLLM) == checked(str(environment), ServerType.VLLM)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)  # its folder venv
    assert str(python) in [one.path for one in find(ServerType.VLLM)]
    for path, words in ((python, "SGLang is not installed"), (tmp_path / "no", "No Python at")):
        with pytest.raises(InferdeckError, match=words):
            checked(str(path), ServerType.SGLANG)


def test_flags_are_read_from_its_parser_once_a_version(launch: Launch, python: Path) -> None:
    found = read_flags(launch, "0.32.0")
    assert found.version == "0.32.0"
    size = found.find("--tensor-parallel-size")
    assert size is not None
    assert (size.type, size.default, size.group) == ("int", "1", "ParallelConfig")
    assert size.help == "Number of tensor parallel groups." and size.matches("parallel tensor")
    dtype, eager = found.find("--dtype"), found.find("--no-enforce-eager")
    assert dtype is not None and dtype.choices == ("auto", "bfloat16", "float32")
    assert eager is not None and eager.is_switch and eager.flag == "--enforce-eager"
    assert found.find("--hidden") is None
    backend = found.find("--distributed-executor-backend")
    optional = found.find("--dcp-comm-backend")
    assert backend is not None and backend.help == "At 50% load.\nKnown values: mp, ray."
    assert optional is not None and optional.choices == ("a2a", "ag_rs")
    python.write_text("#!/bin/sh\nexit 1\n")
    assert read_flags(launch, "0.32.0") == found
    with pytest.raises(InferdeckError, match="exit code 1"):
        read_flags(launch, "0.33.0")


def test_flags_of_an_image_are_those_of_its_own_engine(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted docker, which has one image."""
    docker = tmp_path / "tools/docker"
    docker.parent.mkdir()
    docker.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'*"--pull=never --entrypoint python3 mine "*) ;;\n'
        '*) echo "Error response from daemon: No such image" >&2; exit 125 ;;\nesac\n'
        f'while [ "$1" != mine ]; do shift; done; shift\nexec {launch.interpreter} "$@"\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=os.pathsep)
    boxed = Launch(place=Place.CONTAINER, image="mine")
    assert read_flags(boxed).flags == read_flags(launch).flags
    with pytest.raises(InferdeckError, match="docker pull other"):
        read_flags(replace(boxed, image="other"))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"--max-num-seqs": "8", "--no-enforce-eager": ""}, ""),
        ({"--block-size": "16"}, "Version 0.32.0 has no --block-size."),
        ({"--dtype": "int3"}, "auto, bfloat16, float32"),
        ({"--max-num-seqs": "many"}, "an integer"),
        ({"--max-num-seqs": ""}, "needs a value"),
        ({"--enforce-eager": "yes"}, "takes no value"),
    ],
)
def test_settings_are_checked_by_them(launch: Launch, settings: dict[str, str], words: str) -> None:
    assert words in read_flags(launch).problem(settings)
    assert bool(words) == bool(read_flags(launch).problem(settings))


def test_the_recorded_log_goes_through_its_stages() -> None:
    progress, seen = Progress(), [Progress()]
    for line in (LOGS / "vllm_0.32_start.txt").read_text().splitlines():
        progress = advanced(progress, clean(line))
        if progress != seen[-1]:
            seen.append(progress)
    assert seen == [
        (Stage.STARTING, None), (Stage.LOADING, None), (Stage.LOADING, 0.0), (Stage.LOADING, 1.0),
        (Stage.COMPILING, None), (Stage.SERVING, None),
    ]  # fmt: skip
    assert progress.text == "Starting the server" and seen[2].text == "Loading weights · 0 %"


def test_a_start_waits_for_gpus_of_a_ray_cluster() -> None:
    progress = Progress()
    for line in (LOGS / "vllm_0.32_ray_few_gpus.txt").read_text().splitlines():
        progress = advanced(progress, clean(line))
    assert progress.stage is Stage.WAITING
    assert advanced(progress, "Loading safetensors checkpoint shards: 1% Completed").fraction


def test_other_marks_of_progress() -> None:
    progress = advanced(Progress(), "Fetching 12 files:  25%|##5       | 3/12")
    assert progress == (Stage.DOWNLOADING, 0.25)
    line = clean("\x1b[36m(Worker)\x1b[0m \rCapturing CUDA graphs (decode):  50%|#####  | 4/8\r\n")
    progress = advanced(progress, line)
    assert progress == (Stage.CAPTURING, 0.5)
    assert advanced(Progress(), f"config: {'x' * 400} compiling") == Progress()
    assert advanced(progress, "Loading safetensors checkpoint shards: 10% Completed") == progress

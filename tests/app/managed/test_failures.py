"""Why an engine ended: recorded logs, and what ssh and docker print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from app.clients.target import ServerType
from app.managed.failures import MAX_TEXT, spoken, why_ended
from app.managed.launch import Launch, Place
from tests.app.managed.conftest import LOGS

VLLM = Launch(interpreter="/opt/vllm/bin/python", model="/models/starter")
ROUTER = Launch(
    kind=ServerType.ROUTER, interpreter="/opt/router/bin/python",
    replicas=("http://127.0.0.1:18105", "http://127.0.0.1:18103"),
)  # fmt: skip
AFAR = Launch(interpreter="python3", model="m", place=Place.SSH, host="me@lab")
BOXED = Launch(model="m", place=Place.CONTAINER, image="vllm/none")


@dataclass(frozen=True)
class Case:
    lines: tuple[str, ...]
    words: tuple[str, ...]  # of cause and remedy
    launch: Launch = VLLM
    code: int = 1


def recorded(name: str) -> tuple[str, ...]:
    return tuple((LOGS / f"{name}.txt").read_text().splitlines())


CASES = {
    "flag": Case(recorded("unknown_flag"), ("--made-up-flag=3",), code=2),
    "model": Case(recorded("unknown_model"), ("does not support this model", "`nobodys`")),
    "no model": Case(recorded("no_model"), ("does not support this model", "/models/absent")),
    "no package": Case(
        ("/usr/bin/python3: Error while finding module specification for "
         "'vllm.entrypoints.cli.main' (ModuleNotFoundError: No module named 'vllm')",),
        ("not installed in /opt/vllm/bin/python",),
    ),
    "memory": Case(
        ("(EngineCore pid=9) ERROR 11-28 04:00:08 [core.py:1] ValueError: No available memory for "
         "the cache blocks. Try increasing `gpu_memory_utilization`",
         "RuntimeError: Engine core initialization failed. See root cause above."),
        ("Not enough memory", "No available memory for the cache blocks"),
    ),
    "Ray on a CPU": Case(
        ("(EngineCore pid=9) ERROR 11-28 19:22:08 [core.py:1] ValueError: current platform cpu "
         "does not support ray.",
         "RuntimeError: Engine core initialization failed. See root cause above."),
        ("platform", "cpu does not support ray", "Remove this setting"),
    ),
    "no registry": Case(
        ("Trying to pull docker.io/vllm/none:latest...",
         "Error: initializing source docker://vllm/none:latest: pinging container registry "
         "registry-1.docker.io: dial tcp: lookup registry-1.docker.io: no such host"),
        ("no container image vllm/none",), BOXED, 125,
    ),
    "no container runtime": Case(
        ("Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all "
         "controllers from cgroupv2",),
        ("cannot run the container", "cgroups in hybrid mode"), BOXED, 126,
    ),
    "port": Case(("OSError: [Errno 98] Address already in use",), ("port is in use",)),
    "router's port": Case(recorded("vllm_router_0.1_port"), ("port is in use",), ROUTER),
    "no replica": Case(
        recorded("vllm_router_0.1_nobody"), ("None of the router's 2 replicas responds",), ROUTER
    ),
    "no router": Case(
        ("/usr/bin/python3: Error while finding module specification for "
         "'vllm_router.launch_router' (ModuleNotFoundError: No module named 'vllm_router')",),
        ("not installed in /opt/router/bin/python", "package vllm_router"), ROUTER,
    ),
    "few NUMA nodes": Case(
        ("(EngineCore pid=9) ERROR 11-28 22:35:01 [core.py:1] AssertionError: Not enough allowed "
         "NUMA nodes to bind threads of 2 local CPUWorkers. Allowed NUMA nodes are [0].",
         "RuntimeError: Engine core initialization failed. See root cause above."),
        ("NUMA node for each shard", "nodes are [0]", "VLLM_CPU_OMP_THREADS_BIND"),
    ),
    "few GPUs": Case(
        ("ValueError: Tensor parallel size (16) is larger than the number of available GPUs (8).",),
        ("more GPUs than there are", "(16)", "(8)"),
    ),
    "few GPUs of a Ray cluster": Case(
        recorded("vllm_0.32_ray_few_gpus"),
        ("more GPUs than there are", "requiring 2.0 GPUs", "Ray cluster"),
    ),
    "no GPU beside the Ray driver": Case(
        ("(EngineCore pid=9) ERROR 11-28 19:22:08 [core.py:1] ValueError: Current node has no GPU "
         "available. current_node_resource={'CPU': 2.0}. vLLM engine cannot start without GPU.",),
        ("more GPUs than there are", "no GPU available"),
    ),
    "no Ray cluster": Case(
        ("(EngineCore pid=9) ERROR 11-28 19:22:08 [core.py:1] ConnectionError: Failed to connect "
         "to Ray cluster at 192.0.2.2:26999",),
        ("Ray cluster does not respond", "192.0.2.2:26999", "RAY_ADDRESS"),
    ),
    "killed": Case(("INFO: fine",), ("SIGKILL",), code=137),
    "host key": Case(
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "Host key verification failed."),
        ("host key of me@lab has changed", "ssh-keygen -R lab"), AFAR, 255,
    ),
    "unknown host key": Case(
        ("No ED25519 host key is known for lab and you have requested strict checking.",
         "Host key verification failed."),
        ("host key of me@lab is not known", "ssh me@lab"), AFAR, 255,
    ),
    "password": Case(
        ("me@lab: Permission denied (publickey,password).",), ("password", "ssh-copy-id"), AFAR, 255
    ),
    "unreachable": Case(
        ("ssh: Could not resolve hostname lab: Name or service not known",),
        ("cannot be reached",), AFAR, 255,
    ),
    "dead link": Case(
        ("INFO: loading", "Timeout, server lab not responding."), ("lost",), AFAR, 255
    ),
    "engine there": Case(recorded("unknown_flag"), ("--made-up-flag=3",), AFAR, 2),
    "no daemon": Case(
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
         "running?",), ("daemon is not running",), BOXED, 125,
    ),
    "no image": Case(
        ("Unable to find image 'vllm/none:latest' locally",), ("vllm/none",), BOXED, 125
    ),
}  # fmt: skip


def test_a_refused_value_is_told_alone() -> None:
    line = (
        "(APIServer pid=9)   Value error, Total number of attention heads (4) must be divisible by "
        "tensor parallel size (16). [type=value_error, input_value=ArgsKwargs((), {'x': 0})]"
    )
    said = spoken([line, "    For further information visit https://errors.pydantic.dev/2/v"])
    assert said.startswith("Total number") and said.endswith("size (16).")


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_told(name: str) -> None:
    case = CASES[name]
    info = why_ended(case.launch, case.code, case.lines)
    missing = [one for one in case.words if one not in f"{info.cause} {info.remedy}"]
    assert not missing, info
    assert info.remedy


def test_the_command_named_is_that_of_the_runtime_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = ["Error: initializing source docker://vllm/none: pinging container registry"]
    for tool in ("podman", "docker"):  # docker first where both are
        (tmp_path / tool).touch(0o755)
        assert why_ended(BOXED, 125, lines).remedy == f"Try: {tool} pull vllm/none"


def test_the_cause_is_before_what_says_only_that_it_failed() -> None:
    lines = [
        "(EngineCore pid=1) ERROR 11-28 04:00:08 [core.py:9] KeyError: 'layers.3.weight'",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert spoken(lines) == "KeyError: 'layers.3.weight'"
    assert spoken([]) == ""
    assert len(spoken(["x" * 9999])) == MAX_TEXT


def test_no_command_has_a_kind_without_words() -> None:
    info = why_ended(Launch(kind=ServerType.OPENAI, command="x {port}"), 3, ["bye"])
    assert "exit code 3" in info.cause and "bye" in info.cause

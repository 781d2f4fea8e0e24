"""Command lines of engines at their places. Every server listens on the loopback alone."""

from __future__ import annotations

import random
import shlex
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import which

from app.clients.target import ServerType, parse_address
from app.managed.launch import CONTAINER_TOOLS, MODEL, PORT, TRACES, Launch, Place
from app.managed.ports import is_socket, kv_forwards, num_served, traces_port
from app.managed.supervisor import supervised
from engine.errors import InferdeckError

LOOPBACK = "127.0.0.1"
GRACE_S = 10.0
"""Between SIGINT and SIGKILL."""
SILENCE_S = 180.0
"""Without a beat of the window that end an engine over ssh; a laptop may sleep for a while."""
CONTAINER_PORT = 8000
PORTS = range(20_000, 32_000)
_STARTS = {
    ServerType.VLLM: ("-m", "vllm.entrypoints.cli.main", "serve"),
    ServerType.SGLANG: ("-m", "sglang.launch_server", "--model-path"),
    ServerType.ROUTER: ("-m", "vllm_router.launch_router"),
}
"""Before the model, if any."""
_DEFAULTS = {
    ServerType.SGLANG: {"--enable-metrics": ""},
    ServerType.ROUTER: {
        "--worker-startup-timeout-secs": "20", "--worker-startup-check-interval": "1",
        "--health-check-interval-secs": "1", "--health-failure-threshold": "2",
        "--cb-timeout-duration-secs": "5",
    },
}  # fmt: skip
"""Before the user's settings. SGLang reports no figures by itself. A router's own defaults are
minutes: a dead replica would be found late, and one that is back would wait."""
SSH: tuple[str, ...] = (
    "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=2",
    "-o", "ServerAliveCountMax=2", "-o", "ExitOnForwardFailure=yes",
)  # fmt: skip
"""The user's keys and known_hosts; it asks for nothing, and a dead link ends it in about 4 s."""


def free_port(count: int = 1) -> int:
    """The first of so many ports of the loopback that are free now. Below those that systems give
    to outgoing connections, which take them at any time."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(OSError), ExitStack() as stack:
            for each in range(port, port + count):
                stack.enter_context(socket.socket()).bind((LOOPBACK, each))
            return port
    raise InferdeckError("No port is free.", "Stop other servers.")


def is_taken(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as tried:
        tried.settimeout(0.5)
        return tried.connect_ex((LOOPBACK, port)) == 0


def engine_words(launch: Launch, port: int, host: str = LOOPBACK) -> list[str]:
    """The engine's own command line."""
    if launch.is_command:
        words = shlex.split(launch.command)
        return [word.replace(PORT, str(port)).replace(MODEL, launch.model) for word in words]
    words = [launch.interpreter, *_STARTS[launch.kind], *([launch.model] if launch.model else [])]
    words += ["--host", host, "--port", str(port), *_settings(_DEFAULTS.get(launch.kind, {}))]
    if launch.is_router:
        words += ["--prometheus-host", host, "--prometheus-port", str(port + 1)]
        words += ["--worker-urls", *(parse_address(url).root for url in launch.replicas)]
    if traces := traces_port(launch, port):
        words.append(f"{TRACES}=http://{LOOPBACK}:{traces}/v1/traces")
    return [*words, *_settings(launch.settings)]


def _settings(settings: Mapping[str, str]) -> list[str]:
    return [f"{flag}={text}" if text else flag for flag, text in settings.items()]


def command_words(launch: Launch, port: int, name: str) -> list[str]:
    """What this machine runs, with the server at `port` of its loopback in the end. `name`: of a
    container. Raises InferdeckError where a program is missing."""
    if launch.place is Place.SSH:
        return _over_ssh(launch, port)
    after: list[str] = []
    if launch.place is Place.CONTAINER:
        words = _container(launch, port, name)
        after = [words[0], "rm", "-f", name]  # it outlives a killed command that ran it
    else:
        words = engine_words(launch, port)
    return supervised(sys.executable, GRACE_S, words, after=after, stays=launch.stays)


def _over_ssh(launch: Launch, port: int) -> list[str]:
    """ssh keeps our end of its input open as long as the engine shall run."""
    program(("ssh",))
    python = launch.interpreter or "python3"
    variables = [f"{name}={text}" for name, text in launch.variables.items()]
    count = num_served(launch) + 1
    there = free_port(count)  # probably free there as well; differs, for that may be this machine
    while abs(there - port) < count:
        there = free_port(count)
    words = supervised(python, GRACE_S, engine_words(launch, there), silence_s=SILENCE_S)
    forwards = ["-L", f"{LOOPBACK}:{port}:{LOOPBACK}:{there}"]
    for endpoint, local in kv_forwards(launch, port):
        path, number = endpoint.removeprefix("ipc://"), endpoint.rpartition(":")[2]
        place = path if is_socket(endpoint) else f"{LOOPBACK}:{number}"
        forwards += ["-L", f"{LOOPBACK}:{local}:{place}"]
    if traces := traces_port(launch, port):
        forwards += ["-R", f"{LOOPBACK}:{traces_port(launch, there)}:{LOOPBACK}:{traces}"]
    return [*SSH, *forwards, launch.host, shlex.join(["env", *variables, *words])]


def _container(launch: Launch, port: int, name: str) -> list[str]:
    words = [*container_words(), "--init", "--name", name, "--ipc=host",
             "-p", f"{LOOPBACK}:{port}:{CONTAINER_PORT}"]  # fmt: skip
    if Path(launch.model).is_dir():
        folder = str(Path(launch.model).resolve())
        words += ["-v", f"{folder}:{folder}:ro"]
    for endpoint, local in kv_forwards(launch, port):
        words += ["-p", f"{LOOPBACK}:{local}:{endpoint.rpartition(':')[2]}"]
    for variable, text in launch.environment.items():
        words += ["-e", f"{variable}={text}"]
    if launch.is_command:
        inside = engine_words(launch, CONTAINER_PORT) if launch.command else []
        return [*words, launch.image, *inside]
    module = engine_words(launch, CONTAINER_PORT, "0.0.0.0")[1:]  # inside; published above
    return [*words, "--entrypoint", "python3", launch.image, *module]


def container_words() -> list[str]:
    """How a container begins, with this machine's GPUs. podman before 5 ignores --gpus, and SELinux
    keeps its containers from the model's folder (docs.podman.io, podman-run: --device, --volume).
    Raises InferdeckError without docker and podman."""
    tool = program(CONTAINER_TOOLS)
    words = [tool, "run", "--rm"]
    is_podman = Path(tool).stem == "podman"
    if which("nvidia-smi"):
        words += ["--device", "nvidia.com/gpu=all"] if is_podman else ["--gpus", "all"]
    if is_podman:
        words += ["--security-opt", "label=disable"]
    return words


def program(names: tuple[str, ...]) -> str:
    """The first of these programs that is in $PATH. Raises InferdeckError."""
    for name in names:
        if found := which(name):
            return found
    raise InferdeckError(
        f"Not found in $PATH: {', '.join(names)}.", "Install it, or choose another place."
    )

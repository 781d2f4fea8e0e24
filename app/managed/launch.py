"""`Launch`: the description of an engine to run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from app.clients.target import ServerType
from app.server.options import Problem


class Place(StrEnum):
    HERE = "this machine"
    SSH = "SSH"
    CONTAINER = "container"


PYTHON = {
    ServerType.VLLM: "vllm", ServerType.SGLANG: "sglang", ServerType.ROUTER: "vllm_router",
}  # fmt: skip
"""The package of each engine with a Python of its own."""
KINDS = (*PYTHON, ServerType.OPENAI)
"""OPENAI: any server, by its command."""
PORT, MODEL = "{port}", "{model}"
"""What a command has in place of the port and of the model."""
CONTAINER_TOOLS = ("docker", "podman")
"""The first one in $PATH runs containers."""
PARALLEL = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
}
"""vLLM's flags for settings of earlier versions, whose engine ran a model on several devices."""
TRACES = "--otlp-traces-endpoint"
TRACES_ENVIRONMENT = {
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "250",
}  # fmt: skip
"""vLLM's default is gRPC; the exporter's is to wait for 5 s."""
MIN_REPLICAS = 2
_HOST = re.compile(r"[\w.%:\[\]@-]+", re.ASCII)


class Launch(msgspec.Struct, frozen=True):
    """interpreter: the Python that has the engine, at its place. host: as ssh takes it. image: of
    the container. command: of a server without a known Python, with {port} and {model}. settings:
    texts by flag; "" is a flag without a value. environment: more variables, by name. replicas:
    base URLs of the servers behind a router. stays: it does not end with the window. traces: it
    sends the traces of its requests to the window."""

    kind: ServerType = ServerType.VLLM
    model: str = ""
    place: Place = Place.HERE
    interpreter: str = ""
    host: str = ""
    image: str = ""
    command: str = ""
    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    replicas: tuple[str, ...] = ()
    stays: bool = False
    traces: bool = False

    @property
    def is_command(self) -> bool:
        return self.kind not in PYTHON

    @property
    def is_router(self) -> bool:
        return self.kind is ServerType.ROUTER

    @property
    def is_traced(self) -> bool:
        """From a container, the loopback of this machine is out of reach."""
        is_able = self.kind is ServerType.VLLM and self.place is not Place.CONTAINER
        return self.traces and is_able and TRACES not in self.settings

    @property
    def variables(self) -> dict[str, str]:
        """Of its environment; the user's come last."""
        return {**(TRACES_ENVIRONMENT if self.is_traced else {}), **self.environment}

    def problems(self) -> list[Problem]:
        """What keeps it from starting, by field."""
        found = []
        if self.is_command:
            if self.place is not Place.CONTAINER or self.command:
                found += _command_problems(self.command)
        elif self.is_router:
            if len(self.replicas) < MIN_REPLICAS:
                text = f"Choose at least {MIN_REPLICAS} servers of the same model."
                found.append(Problem("replicas", text))
        elif not self.model:
            found.append(Problem("model", "Enter a model folder or name."))
        if self.place is Place.CONTAINER:
            if not self.image or self.image.startswith("-"):
                found.append(Problem("image", "Enter a container image."))
        elif not self.is_command and not self.interpreter:
            package = PYTHON[self.kind]
            found.append(Problem("interpreter", f"Choose a Python that has {package}."))
        if self.place is Place.SSH and (
            not _HOST.fullmatch(self.host) or self.host.startswith("-")
        ):
            found.append(Problem("host", "Use the form user@host, or a host of your ssh config."))
        return found


def parallel_flags(stored: Mapping[str, object]) -> dict[str, str]:
    """vLLM's flags for the parallel sizes above 1 among stored settings."""
    sizes = ((flag, stored.get(name)) for name, flag in PARALLEL.items())
    return {flag: f"{size}" for flag, size in sizes if isinstance(size, int) and size > 1}


def changes_text(before: Launch, now: Launch) -> str:
    """ "max-num-seqs default → 8"; "" where the settings are the same."""

    def value(launch: Launch, flag: str) -> str:
        return (launch.settings[flag] or "on") if flag in launch.settings else "default"

    flags = dict.fromkeys([*before.settings, *now.settings])
    values = {flag: (value(before, flag), value(now, flag)) for flag in flags}
    return ", ".join(
        f"{flag.removeprefix('--')} {old} → {new}"
        for flag, (old, new) in values.items() if old != new
    )  # fmt: skip


def parse_environment(text: str) -> dict[str, str] | None:
    """Variables of "A=1 B='two words'"; None where that is not what it is."""
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError:  # a quote is open
        return None
    if not all(name.isidentifier() and sign for name, sign, _ in pairs):
        return None
    return {name: value for name, _, value in pairs}


def _command_problems(command: str) -> list[Problem]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return [Problem("command", f"The command cannot be read: {error}.")]
    if not words:
        return [Problem("command", "Enter a command.")]
    if not any(PORT in word for word in words):
        return [Problem("command", f"Write {PORT} where the command takes its port.")]
    return []

"""`why_ended`: why an engine ended, from its exit code and the last lines of its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from shutil import which

from app.managed.launch import CONTAINER_TOOLS, PYTHON, Launch, Place
from app.managed.supervisor import CANNOT_RUN
from engine.errors import ErrorInfo

SIGNALS = 128
"""Exit codes above it are signals, as in a shell."""
SSH_FAILED = 255
MAX_TEXT = 300

_KEY_CHANGED = "remote host identification has changed"
_KEY_UNKNOWN = "host key verification failed"
_REFUSED = re.compile(r"permission denied \(|too many authentication failures")
_UNREACHABLE = re.compile(
    r"could not resolve hostname|connection refused|no route to host|connection timed out|"
    r"network is unreachable|connection closed by"
)
_DEAD = re.compile(r"timeout, server .* not responding|connection (to .* )?(reset|closed)|"
                   r"broken pipe|connection to .* closed by remote host")  # fmt: skip
_PORT = re.compile(r"address already in use|cannot listen to port|port is already allocated")
_NO_DAEMON = re.compile(r"cannot connect to the docker daemon|is the docker daemon running")
_NO_IMAGE = re.compile(
    r"unable to find image|pull access denied|manifest unknown|no such image|"
    r"image not known|"
    r"pinging container registry"
)
_NO_RUNTIME = re.compile(r"oci runtime error|oci permission denied")
_NO_BACKEND = re.compile(r"current platform \S+ does not support")
_NO_PACKAGE = re.compile(r"no module named '?(vllm|sglang|vllm_router)\b", re.IGNORECASE)
_NO_REPLICA = re.compile(r"timeout \d+s waiting for hosts \[(.*)\] to become healthy")
_FLAG = re.compile(r"error: (unrecognized arguments: .+|argument .+)")
_MEMORY = re.compile(
    r"out of memory|outofmemory|no available memory for the cache blocks|memoryerror|"
    r"free memory on device|to serve at least one request|not enough memory|"
    r"can't allocate memory|cannot allocate memory|insufficient memory|"
    r"available (memory|cpu ram).+(less|smaller)"
)
_MODEL = re.compile(
    r"model architectures? .*(not supported|failed)|no model architectures|"
    r"not a valid model identifier|can't load the configuration|invalid repository id|"
    r"does not appear to have a file named config|repository not found|unrecognized model|"
    r"error retrieving file list|repo id must|does not recognize this architecture"
)
_FEW_NODES = re.compile(r"not enough allowed numa nodes")
_FEW_GPUS = re.compile(
    r"larger than the number of available gpus|world size .* is larger|"
    r"no available node types|cannot provide a placement group|not enough gpus|"
    r"current node has no \w+ available"
)
_NO_RAY = re.compile(r"failed to connect to (ray cluster|gcs) at|could not find any running ray")
_SPOKEN = re.compile(r"^(?:\S+\.)?[A-Z]\w*(?:Error|Exception|Exit)\b.*: ?\S|^\S+: error: ")
"""The line of a traceback that has the message."""
_VALUE_ERROR, _VALUE_TAIL = "Value error", " [type="
"""How pydantic begins the message below "1 validation error for ModelConfig", and ends it."""
_PREFIX = re.compile(r"^(?:\((?:\w+ )*pid=\d+\) )?(?:(?:ERROR|INFO|WARNING) [\d-]+ [\d:.]+ )?"
                     r"(?:\[[^\]]*\] ?)?")  # fmt: skip


def why_ended(launch: Launch, code: int, lines: Sequence[str]) -> ErrorInfo:
    """code: of the process, negative or above 128 for a signal. lines: the last of its log."""
    name, log = launch.kind.value, "\n".join(lines).casefold()
    if launch.place is Place.SSH and (found := _of_ssh(launch, code, log)) is not None:
        return found
    if launch.place is Place.CONTAINER and (found := _of_container(launch, log)) is not None:
        return found
    said = spoken(lines)
    for words, cause, remedy in (
        (_NO_PACKAGE, f"{name} is not installed in {launch.interpreter}.",
         f"Choose a Python that has the package {PYTHON.get(launch.kind, '')}."),
        (_PORT, "The port is in use by another program.", "Start again: another port is chosen."),
        (_NO_REPLICA, f"None of the router's {len(launch.replicas)} replicas responds.",
         "Start a replica, then the router."),
        (_NO_BACKEND, f"{name} does not support one of its settings on this platform.",
         "Remove this setting."),
        (_FEW_NODES, f"{name} needs a NUMA node for each shard on a CPU.",
         "Name the cores of each shard in the environment, such as "
         "VLLM_CPU_OMP_THREADS_BIND=0-3|4-7, or reduce the parallel size."),
        (_FEW_GPUS, f"{name} needs more GPUs than there are.",
         "Reduce the tensor or pipeline parallel size, or use a Ray cluster with more GPUs."),
        (_NO_RAY, "The Ray cluster does not respond.",
         "Check its address in the environment (RAY_ADDRESS), and ray status there."),
        (_MODEL, f"{name} does not support this model, or it is incomplete.",
         "Choose another model."),
        (_MEMORY, f"Not enough memory for {name}.",
         "Reduce the context length, the memory share or the number of requests."),
    ):  # fmt: skip
        if words.search(log):
            return ErrorInfo(_with(cause, said), remedy, "EngineNotStarted")
    if refused := _FLAG.search("\n".join(lines)):
        cause = f"{name} refuses its command line: {refused[1][:MAX_TEXT]}."
        return ErrorInfo(cause, "Remove or correct this setting.", "EngineNotStarted")
    if CANNOT_RUN in log:
        missing = next(line for line in reversed(lines) if CANNOT_RUN in line)
        cause = f"Cannot run {missing.rpartition(CANNOT_RUN)[2]}."
        return ErrorInfo(cause, "Check the command and the Python.", "EngineNotStarted")
    remedy = "Correct its settings." if _VALUE_ERROR in "".join(lines) else "Restart it."
    if code < 0 or code > SIGNALS:  # its last line was before that
        said = ""
    return ErrorInfo(_with(f"{name} ended: {_code_text(code)}.", said), remedy, "EngineEnded")


def spoken(lines: Sequence[str]) -> str:
    """The message of the last error in a log; the last line where there is none."""
    plain = [_PREFIX.sub("", line).strip() for line in lines]
    told = [line for line in plain if line.startswith(_VALUE_ERROR)]
    if told:
        return told[-1].removeprefix(_VALUE_ERROR).partition(_VALUE_TAIL)[0].strip(" ,")[:MAX_TEXT]
    errors = [line for line in plain if _SPOKEN.match(line)]
    # the engine's process says why; the server's says only that it failed
    causes = [line for line in errors if "See root cause above" not in line]
    shown = (causes or errors or [line for line in plain if line] or [""])[-1]
    return shown[:MAX_TEXT]


def _with(cause: str, said: str) -> str:
    return f"{cause} Last output: {said}" if said else cause


def _code_text(code: int) -> str:
    number = -code if code < 0 else code - SIGNALS
    if number == signal.SIGKILL:
        return "killed (SIGKILL), by a user or because memory ran out"
    known = {one.value: one.name for one in signal.Signals}
    return f"killed by {known[number]}" if number in known else f"exit code {code}"


def _of_ssh(launch: Launch, code: int, log: str) -> ErrorInfo | None:
    host = launch.host
    if _KEY_CHANGED in log:
        return ErrorInfo(
            f"The host key of {host} has changed. Another machine may answer in its place.",
            "Check the key with its administrator. Then remove the old one with: "
            f"ssh-keygen -R {host.rpartition('@')[2]}", "SshError",
        )  # fmt: skip
    if _KEY_UNKNOWN in log:
        return ErrorInfo(
            f"The host key of {host} is not known yet.",
            f"Connect once and check the key with: ssh {host}", "SshError",
        )  # fmt: skip
    if _REFUSED.search(log):
        return ErrorInfo(
            f"{host} refuses this user's keys and asks for a password.",
            f"Set up a key (ssh-copy-id {host}) or unlock it with ssh-add.", "SshError",
        )  # fmt: skip
    if code != SSH_FAILED:
        return None
    if _PORT.search(log):
        return ErrorInfo("The forwarded port is in use.", "Start again: another port is chosen.")
    if _UNREACHABLE.search(log) and not _DEAD.search(log):
        return ErrorInfo(f"{host} cannot be reached by SSH.", f"Try: ssh {host}", "SshError")
    return ErrorInfo(
        f"The SSH connection to {host} was lost. The engine there stops.",
        "Restart it once the host is reachable.", "SshError",
    )  # fmt: skip


def _of_container(launch: Launch, log: str) -> ErrorInfo | None:
    if _NO_DAEMON.search(log):
        return ErrorInfo("The Docker daemon is not running.", "Try: systemctl start docker")
    if _NO_IMAGE.search(log):
        cause = f"There is no container image {launch.image}, or it cannot be pulled."
        tool = next(filter(which, CONTAINER_TOOLS), CONTAINER_TOOLS[0])
        return ErrorInfo(cause, f"Try: {tool} pull {launch.image}")
    if runtime := _NO_RUNTIME.search(log):
        line = next(one for one in log.splitlines() if runtime[0] in one)
        cause = f"This machine cannot run the container: {line[:MAX_TEXT]}."
        return ErrorInfo(cause, "Check that another container runs here.")
    return None

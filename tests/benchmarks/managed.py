"""The life of a managed engine, against a real vLLM where one is installed.

    python -m tests.benchmarks.managed --python VENV [--model DIR] [--ranks N] [--env A=B ...]

Starts it, asks it, runs a load, changes a setting, kills it with -9, restarts and stops it; prints
the seconds of each. For its CPU build: --env VLLM_CPU_KVCACHE_SPACE=1, and for two ranks on two
cores "VLLM_CPU_OMP_THREADS_BIND=0|1".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
from msgspec.structs import replace

from app.clients.target import ServerType
from app.managed.arguments import read_flags
from app.managed.interpreters import checked
from app.managed.launch import Launch
from app.managed.process import LOOK_S, STOP_S, ManagedProcess, State
from app.paths import starter_model

SAID_WITHIN_S = 5.0
T = TypeVar("T")


def started(launch: Launch) -> ManagedProcess:
    process = ManagedProcess(launch, lambda: None)
    while process.status.state is State.STARTING:
        time.sleep(LOOK_S)
    if process.status.state is not State.READY:
        sys.exit("\n".join([*process.lines[-20:], str(process.status.error)]))
    return process


def ask(process: ManagedProcess) -> None:
    body = {"model": process.launch.model, "max_tokens": 32,
            "messages": [{"role": "user", "content": "What is TTFT?"}]}  # fmt: skip
    request = urllib.request.Request(
        f"{process.base_url}/v1/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=120) as answer:
        reply = json.load(answer)["choices"][0]["message"]["content"]
    assert reply.strip(), "an empty reply"


def load(process: ManagedProcess) -> None:
    words = ["--base-url", process.base_url, "--input-len", "64", "--output-len", "32",
             "--num-requests", "16", "--concurrency", "4"]  # fmt: skip
    subprocess.run([sys.executable, "-m", "app", "bench", *words], check=True)


def killed(process: ManagedProcess) -> None:
    """The engine and its workers end, and it is said in time."""
    everyone = psutil.Process(process._process.pid).children(recursive=True)
    began = time.monotonic()
    everyone[0].kill()
    assert process.wait(SAID_WITHIN_S), "not noticed"
    assert process.status.error is not None
    print(f"  said after {time.monotonic() - began:.1f} s: {process.status.error.cause}")
    _, left = psutil.wait_procs(everyone, timeout=STOP_S)
    assert not left, f"left behind: {left}"


def stopped(process: ManagedProcess) -> None:
    process.stop()
    assert process.wait(2 * STOP_S) and process.status.error is None


def timed(name: str, work: Callable[[], T]) -> T:
    began = time.monotonic()
    result = work()
    print(f"{name:<24}{time.monotonic() - began:8.1f} s", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", required=True, metavar="VENV")
    parser.add_argument("--model", type=Path, default=starter_model(), metavar="DIR")
    parser.add_argument("--ranks", type=int, default=1, metavar="N")
    parser.add_argument("--env", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    found = checked(args.python, ServerType.VLLM)
    environment: dict[str, str] = {}
    for pair in args.env:
        name, _, text = pair.partition("=")
        environment[name] = text
    launch = Launch(
        interpreter=found.path, model=str(args.model), environment=environment,
        settings={"--enforce-eager": "", "--tensor-parallel-size": str(args.ranks)},
    )  # fmt: skip
    flags = timed("read settings", lambda: read_flags(launch, found.version))
    print(f"  vLLM {flags.version}: {len(flags.flags)} settings")
    assert not flags.problem(launch.settings), flags.problem(launch.settings)
    process = timed("start", lambda: started(launch))
    timed("chat", lambda: ask(process))
    timed("load", lambda: load(process))
    timed("stop", lambda: stopped(process))
    changed = replace(launch, settings={**launch.settings, "--max-num-seqs": "8"})
    again = timed("start, setting changed", lambda: started(changed))
    timed("kill -9", lambda: killed(again))
    last = timed("restart", lambda: started(changed))
    timed("chat", lambda: ask(last))
    timed("stop", lambda: stopped(last))


if __name__ == "__main__":
    main()

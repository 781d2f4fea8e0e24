"""The child's side: JSON lines, one run at a time.

    argument      {"model": FOLDER, "cache": FOLDER, "bits": 16, "kv_bits": 16, "num_threads": 2,
                  "max_len": 4352, "max_requests": 32, "kv_cache_gib": 4,
                  "programs": FOLDER or null}
    first line    {"engine": "name and version", "cost": {...} or null}     loaded, ready
    request       {"prompts": [[token ids], ...], "num_output": n}  all at once, greedy, without EOS
    answer        {"times": [[seconds since the request, one per token], ...]}
    instead       {"error": "..."}

The child ends with its standard input. Between runs it waits for a line, which takes no CPU time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LAST_LINES = 10
"""Of a converter that failed: the error and where it was raised."""
Options = dict[str, Any]
Prompts = list[list[int]]
Made = Callable[[int, int], None]
"""Called as tokens come: number of the prompt, count of its new tokens."""


class Engine(NamedTuple):
    """`run` serves all prompts together, so many tokens each; `prepare` comes before, untimed.
    `cost`: bytes and operations of the model, which this repository's engine counts for all."""

    name: str
    run: Callable[[Prompts, int, Made], None]
    prepare: Callable[[Prompts, int], None] = lambda prompts, num_output: None
    close: Callable[[], None] = lambda: None
    cost: dict[str, float] | None = None


def serve(load: Callable[[Options], Engine]) -> None:
    """Load the engine, then answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        engine = load(json.loads(sys.argv[1]))
        try:
            answer(engine=engine.name, cost=engine.cost)
            for line in sys.stdin:
                asked = json.loads(line)
                answer(times=_timed(engine, asked["prompts"], asked["num_output"]))
        finally:
            engine.close()
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        raise


def convert(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a converter. Raises RuntimeError with the last that it printed."""
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    print(done.stdout, file=sys.stderr)
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{last}")


def _timed(engine: Engine, prompts: Prompts, num_output: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in prompts]
    engine.prepare(prompts, num_output)
    began = time.perf_counter()

    def made(index: int, count: int) -> None:
        times[index] += [time.perf_counter() - began] * count

    engine.run(prompts, num_output, made)
    found = [len(each) for each in times]
    if found != [num_output] * len(prompts):
        raise RuntimeError(f"{num_output} tokens asked of each prompt, {found} made")
    return times

"""A process that measures cells, and tells the supervisor of each: a line of JSON per message.

    python -m tests.gpu.bench.worker      cells on standard input, messages on standard output

It ends when its standard input is closed, so that none outlives the supervisor.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.bench.bench import Bench

KINDS = {
    "machine": "machine:describe",
    "tests": "native_tests:run",
    "copy": "ceilings:copy",
    "product": "ceilings:product",
    "launch": "ceilings:launch",
    "round_trip": "ceilings:round_trip",
    "attention": "attention_cells:measure",
    "linear": "linear_cells:measure",
    "fused": "fused_cells:measure",
    "sampler": "sampler_cells:measure",
    "wave": "wave_cells:measure",
    "arrivals": "wave_cells:arrivals",
    "peer": "peer_cells:measure",
    "budget": "budget_cells:measure",
    "divided": "divided_cells:measure",
    "profile": "profile_cells:measure",
    "drafts": "draft_cells:measure",
}
"""Kind of a cell -> module and function, which gets a Bench and the cell's settings. A kind that is
not here names its module and function itself."""

BROKEN = 3
"""Exit status: the device answers no more in this process."""


def main() -> int:
    # what anything prints goes to the log; the messages have the real standard output to themselves
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    from tests.gpu.bench.bench import Bench

    bench = Bench(order["device"], order["quick"], lambda event: _tell(messages, event=event))
    try:
        for cell in order["cells"]:
            _tell(messages, event="begin", name=cell["name"])
            began = time.perf_counter()
            figures, error = _measure(bench, cell)
            seconds = time.perf_counter() - began
            answers = _answers(bench)
            _tell(
                messages, event="end", figures=figures, error=error, seconds=seconds,
                answers=answers,
            )  # fmt: skip
            if not answers:
                os._exit(BROKEN)  # what would tidy up might wait for the device
            if error:
                bench.settle()
    finally:
        bench.close()
    return 0


def _measure(bench: Bench, cell: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    from tests.gpu.bench.bench import UnableError

    try:
        return dict(_function(cell["kind"])(bench, **cell["settings"])), ""
    except UnableError as error:
        return {}, str(error)
    except Exception as error:
        traceback.print_exc()
        figures = getattr(error, "figures", {})
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.relpath(last.filename)}:{last.lineno}"
        return figures, f"{type(error).__name__}: {error} ({place})"[:2000]


def _function(kind: str) -> Callable[..., Mapping[str, Any]]:
    known = KINDS.get(kind)
    module, _, name = (f"tests.gpu.bench.{known}" if known else kind).partition(":")
    found: Callable[..., Mapping[str, Any]] = getattr(importlib.import_module(module), name)
    return found


def _answers(bench: Bench) -> bool:
    """Whether the device still works in this process: after some errors it never does again."""
    if "torch" not in sys.modules:  # nothing has touched it
        return True
    from tests.gpu.bench.timing import synchronize

    try:
        synchronize(bench.device)
    except Exception:  # whatever it says, it does not work
        return False
    return True


def _tell(messages: IO[str], **message: Any) -> None:
    messages.write(json.dumps(message) + "\n")
    messages.flush()


def _end_with_supervisor() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

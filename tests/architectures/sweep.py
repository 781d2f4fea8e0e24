"""Each class in a process of its own, with limits on time and memory."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from tests.architectures.trial import CRASHED, TIMEOUT, Outcome, outcome_of

SECONDS = 120
ADDRESS_SPACE = 12 * 2**30  # bytes, of which libraries map some that they never touch
_PRELOADED = ["torch", "transformers", "engine.llm_engine", "engine.lazy_transformers"]


def class_names() -> dict[str, str]:
    """The causal-LM class of each model type, as transformers lists them."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {
        model_type: name if isinstance(name, str) else name[0]
        for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    }


def sweep(model_types: Sequence[str], seconds: float = SECONDS) -> Iterator[Outcome]:
    """The outcome of each, in order."""
    names = class_names()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    for model_type in model_types:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(model_type, names[model_type], theirs))
        process.start()
        theirs.close()
        outcome = _received(ours, seconds)
        process.join(5 if outcome else 0)
        if process.is_alive():
            process.kill()
            process.join()
            ended = "did not end"
        else:
            ended = _ending(process.exitcode or 0)
        if outcome is None:
            kind = TIMEOUT if ended == "did not end" else CRASHED
            text = f"no result within {seconds:g} s" if kind == TIMEOUT else ended
            outcome = Outcome(model_type, names[model_type], kind, text)
        yield outcome


def _received(connection: Connection, seconds: float) -> Outcome | None:
    try:
        return connection.recv() if connection.poll(seconds) else None
    except EOFError:
        return None


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _child(model_type: str, class_name: str, connection: Connection) -> None:
    import os

    import torch

    torch.set_num_threads(1)
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    connection.send(outcome_of(model_type, class_name))

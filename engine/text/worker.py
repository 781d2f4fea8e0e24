"""A process that encodes texts: its limits, and the loop that serves it.

Neither Rust code nor one long operation of Python can be ended in a thread. This process can be:
its parent kills it when a text takes too much time or memory, and starts another. It imports
neither torch nor transformers, and ends when its input does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import IO

import msgspec

from engine.errors import InferdeckError
from engine.hardware.malloc import give_back
from engine.text.encoder import Encoder
from engine.text.tokenizer_json import check_folder
from engine.text.work import (
    Allowance,
    Check,
    Done,
    Failed,
    Message,
    Reply,
    Source,
    failure,
    read,
    reason_of,
    write,
)

_LARGE = 256 * 1024
"""After a message of so many bytes freed memory is returned to the system."""
_READER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, replies)


def serve(messages: IO[bytes], replies: IO[bytes]) -> None:
    """Answer each message, to the end of `messages`."""
    encoder: Encoder | None = None
    while (data := read(messages)) is not None:
        message, size = _READER.decode(data), len(data)
        del data
        allowance = Allowance.of(message, size)
        limit(allowance)
        reply: Reply = Done()
        try:
            if isinstance(message, Source):
                encoder = Encoder(message)
            elif isinstance(message, Check):
                check_folder(message)
            else:
                assert encoder is not None, "the source comes first"
                reply = Done(encoder.encode(message))
        except BaseException as error:  # a panic in Rust is no Exception
            reply = _failed(message, error, allowance)
        del message
        write(replies, msgspec.msgpack.encode(reply))
        del reply
        if size > _LARGE:
            give_back()


def _failed(message: Message, error: BaseException, allowance: Allowance) -> Failed:
    if isinstance(error, MemoryError):
        error = failure(message, allowance.memory_text)
    elif not isinstance(error, InferdeckError):
        error = failure(message, f"failed: {reason_of(error)}")
    return Failed(error.cause, error.remedy, type(error).__name__)


def limit(allowance: Allowance) -> None:
    """Let the system end this process where it uses more, even when its parent is gone. (Address
    space is not limited: torch reserves much more than it uses.)"""
    if sys.platform == "win32":
        return
    import resource

    used, hard = time.process_time(), resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = int(used + allowance.seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (_within(seconds, hard), hard))
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_within(allowance.memory, hard), hard))


def _within(value: int, hard: int) -> int:
    return value if hard < 0 else min(value, hard)

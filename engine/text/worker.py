"""A process that encodes texts: the loop that serves it.

Its parent ends it when a text takes too much time or memory, and starts another. It imports torch
and transformers only for a tokenizer that is written in Python, and ends when its input does.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO

import msgspec

from engine.errors import InferdeckError
from engine.hardware.malloc import give_back
from engine.python_process import limits
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
        reply: Reply = Done()
        try:
            with limits(allowance.seconds, allowance.memory):
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

"""A process that encodes, seen from the program: started, asked, watched, ended."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, cast

import msgspec

from engine.python_process import LOOK_S, PythonProcess, end_text
from engine.text.work import Allowance, Message, Reply, failure, read, write

_END_S = 2.0
_AT_ONCE = 2048
"""Bytes that a pipe takes whether or not somebody reads."""
_READER: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class WorkerProcess:
    """Started by the constructor, which raises OSError. One thread uses it. It ends with this
    program, however that ends. source: the tokenizer that it has."""

    def __init__(self) -> None:
        self.source: object = None
        self._process = PythonProcess(
            "engine.text.worker", subprocess.PIPE, subprocess.PIPE, subprocess.DEVNULL
        )
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="encoder-replies", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: Message, check: Callable[[], None] = lambda: None) -> Reply:
        """check: is called every 50 ms; what it raises ends the process. Raises
        InvalidRequestError (for a folder: CheckpointError) where the process takes too much time or
        memory, or dies."""
        data = msgspec.msgpack.encode(message)
        allowance = Allowance.of(message, len(data))
        if len(data) <= _AT_ONCE:
            self._write(data)
        else:  # one that does not read must not hold up its caller
            threading.Thread(
                target=self._write, args=(data,), name="encoder-message", daemon=True
            ).start()
        del data
        try:
            reason, reply = self._wait(allowance, check)
            if reply is None:
                raise failure(message, reason)
            return _READER.decode(reply)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it soon. Any thread may call this."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait for its end."""
        self._process.end()
        with suppress(OSError):
            cast(IO[bytes], self._process.stdin).close()
        self._reader.join()

    def _wait(self, allowance: Allowance, check: Callable[[], None]) -> tuple[str, bytes | None]:
        """The reply; without one, the reason."""
        deadline = time.monotonic() + allowance.seconds
        while True:
            try:
                reply = self._replies.get(timeout=LOOK_S)
            except queue.Empty:
                check()
                if time.monotonic() > deadline:
                    return allowance.time_text, None
                if self._process.memory() > allowance.memory:
                    return allowance.memory_text, None
                continue
            if reply is not None:
                return "", reply
            # libraries abort when memory ends
            return f"{allowance.memory_text}, or crashed ({self._end_text()})", None

    def _end_text(self) -> str:
        """Of a process that has closed its pipe."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return end_text(self._process.end())

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # it has ended: the reader reports it
            write(cast(IO[bytes], self._process.stdin), data)

    def _read(self) -> None:
        with cast(IO[bytes], self._process.stdout) as pipe:
            while (reply := read(pipe)) is not None:
                self._replies.put(reply)
                del reply
        self._replies.put(None)

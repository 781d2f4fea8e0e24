"""A process that encodes, seen from the program: started, asked, watched, ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO, cast

import msgspec
import psutil

from engine.text.work import Allowance, Message, Reply, failure, read, write

_LOOK_S = 0.05
_END_S = 2.0
_AT_ONCE = 2048
"""Bytes that a pipe takes whether or not somebody reads."""
_MAIN = """
import sys, json
sys.path[:] = json.loads(sys.argv[1])
from engine.text.worker import main
main()
"""
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
_READER: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class WorkerProcess:
    """Started by the constructor, which raises OSError. One thread uses it. It ends with this
    program, however that ends. source: the tokenizer that it has."""

    def __init__(self) -> None:
        self.source: object = None
        self._process = subprocess.Popen(
            # -S: without other packages' start-up files; its path is this program's
            [sys.executable, "-S", "-c", _MAIN, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
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

    def ask(self, message: Message) -> Reply:
        """Raises InvalidRequestError (for a folder: CheckpointError) where the process takes too
        much time or memory, or dies."""
        data = msgspec.msgpack.encode(message)
        allowance = Allowance.of(message, len(data))
        if len(data) <= _AT_ONCE:
            self._write(data)
        else:  # one that does not read must not hold up its caller
            threading.Thread(
                target=self._write, args=(data,), name="encoder-message", daemon=True
            ).start()
        del data
        reason, reply = self._wait(allowance)
        if reply is None:
            raise failure(message, reason)
        return _READER.decode(reply)

    def kill(self) -> None:
        """End it. Any thread may call this."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait for its end."""
        self.kill()
        with suppress(OSError):
            cast(IO[bytes], self._process.stdin).close()
        self._process.wait()
        self._reader.join()

    def _wait(self, allowance: Allowance) -> tuple[str, bytes | None]:
        """The reply; without one, the reason."""
        deadline = time.monotonic() + allowance.seconds
        while True:
            try:
                reply = self._replies.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() > deadline:
                    self._process.kill()
                    return allowance.time_text, None
                if self._memory() > allowance.memory:
                    self._process.kill()
                    return allowance.memory_text, None
                continue
            if reply is not None:
                return "", reply
            code = self._exit_code()
            # the process's own limits: see `worker.limit`
            if code == -getattr(signal, "SIGXCPU", 0):
                return allowance.time_text, None
            # libraries abort when memory ends
            return f"{allowance.memory_text}, or crashed (exit code {code})", None

    def _exit_code(self) -> int:
        """Of a process that has closed its pipe."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_S)
        self._process.kill()
        return self._process.wait()

    def _memory(self) -> int:
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # it has ended: the reader reports it
            write(cast(IO[bytes], self._process.stdin), data)

    def _read(self) -> None:
        with cast(IO[bytes], self._process.stdout) as pipe:
            while (reply := read(pipe)) is not None:
                self._replies.put(reply)
                del reply
        self._replies.put(None)

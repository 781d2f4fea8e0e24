"""One window per user: a second start forwards its arguments to the first one, and ends.

A lock file in the data folder names the first process, so a crash leaves nothing locked. A local
socket of this user takes the messages: one line of JSON, answered with one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import QDeadlineTimer, QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from engine.errors import CheckpointError, InferdeckError
from engine.json_file import decode_json
from engine.units import duration_text

ANSWER = b"ok\n"
TIMEOUT_MS, SLICE_MS = 3000, 20
MAX_LINE = 64 * 1024


class NotAnsweringError(InferdeckError):
    """The first instance does not respond."""


class SingleInstance(QObject):
    """`asked(values)`: the engine settings of a second start, possibly none."""

    asked = Signal(object)

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._name = socket_name(folder)
        self._lock = QLockFile(str(folder / "window.lock"))
        self._lock.setStaleLockTime(0)  # however old: it counts while its process lives
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)

    def claim(self, values: Mapping[str, Any]) -> bool:
        """Whether this process is the first. If not, the first one has received `values`.

        Raises NotAnsweringError if the first one does not respond.
        """
        if not self._lock.tryLock(0):
            if self._lock.error() is not QLockFile.LockError.LockFailedError:
                return True  # a folder that cannot be written must not keep the window from opening
            if not hand_over(self._name, values):
                raise self._not_answering()
            return False
        QLocalServer.removeServer(self._name)  # of a process that crashed
        self._server.listen(self._name)
        return True

    def release(self) -> None:
        self._server.close()
        self._lock.unlock()

    def _not_answering(self) -> NotAnsweringError:
        found: Any = self._lock.getLockInfo()
        process = f" (process {found[0]})" if isinstance(found, tuple) and found[0] else ""
        return NotAnsweringError(
            f"Inferdeck is already open{process} and did not respond within "
            f"{duration_text(TIMEOUT_MS / 1000)}.",
            "Wait until it responds, or end that process. Then start Inferdeck again.",
        )

    def _on_connection(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.readyRead.connect(lambda s=socket: self._read(s))
            socket.disconnected.connect(socket.deleteLater)
            self._read(socket)  # what came before anybody listened

    def _read(self, socket: QLocalSocket) -> None:
        if not socket.canReadLine():
            if socket.bytesAvailable() > MAX_LINE:
                socket.abort()
            return
        try:
            line = bytes(socket.readLine(MAX_LINE).data())
            values: dict[str, Any] = decode_json(line, dict, "second start")
        except CheckpointError:
            socket.abort()  # not one of ours
            return
        socket.write(ANSWER)
        socket.flush()
        self.asked.emit(values)


def hand_over(name: str, values: Mapping[str, Any], timeout_ms: int = TIMEOUT_MS) -> bool:
    """Send `values` to the first instance; whether it accepted. Blocks; needs no event loop."""
    socket = QLocalSocket()
    socket.connectToServer(name)
    if not socket.waitForConnected(timeout_ms):
        return False
    socket.write(json.dumps(_portable(values)).encode() + b"\n")
    deadline = QDeadlineTimer(timeout_ms)
    while not socket.canReadLine() and not deadline.hasExpired():
        # it writes what is left to write as well, and keeps Python's lock: so a little at a time
        socket.waitForReadyRead(SLICE_MS)
        time.sleep(0.001)
    return bytes(socket.readLine().data()) == ANSWER


def socket_name(folder: Path) -> str:
    """One per data folder, and so per user; short, as socket paths are limited."""
    digest = hashlib.sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:16]
    return f"inferdeck-{digest}"


def _portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with absolute paths, for a process with another working directory."""
    found = dict(values)
    if isinstance(found.get("model"), str):
        found["model"] = str(Path(found["model"]).expanduser().absolute())
    return found

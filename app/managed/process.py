"""`ManagedProcess`: an engine that runs: its log, progress, health and end.

    starting --(health answers)--> ready --(it ends)--> ended
        \\-------- stop() --------> stopping -----------^
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from app.managed.arguments import engine_environment
from app.managed.command import GRACE_S, LOOPBACK, command_words, free_port, is_taken
from app.managed.failures import why_ended
from app.managed.handle import Child, Staying
from app.managed.launch import Launch
from app.managed.log_progress import Progress, advanced, clean
from app.managed.ports import num_served
from engine.errors import ErrorInfo

log = logging.getLogger(__name__)

LINES = 500
"""Of the log that are kept."""
LOOK_S = 0.25
"""Between two looks at a process, and at the health of one that starts."""
BEAT_S = 10.0
"""Between two signs of life for its supervisor."""
HEALTH_TIMEOUT_S = 2.0
STOP_S = GRACE_S + 5.0
"""From stop to SIGKILL of what started it."""


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "stopped"


class Status(NamedTuple):
    """error: why it ended by itself."""

    state: State
    progress: Progress = Progress()
    error: ErrorInfo | None = None

    @property
    def is_running(self) -> bool:
        return self.state is not State.ENDED

    @property
    def text(self) -> str:
        if self.state is State.STARTING:
            return self.progress.text
        return "Ended" if self.error is not None else self.state.value.capitalize()


class ManagedProcess:
    """Started by the constructor, which raises OSError or InferdeckError. Any thread may use it.

    on_change: called by a thread of its own after `status` changed. name: of a container, and of
    the files of one that stays. port: to serve at where it is free, so that clients find a
    restarted engine again. found: one that runs already, at `port`.
    """

    def __init__(
        self, launch: Launch, on_change: Callable[[], None], name: str = "inferdeck",
        port: int = 0, found: Staying | None = None,
    ) -> None:  # fmt: skip
        self.launch = launch
        count = num_served(launch)
        is_free = port and not any(map(is_taken, range(port, port + count)))
        self.port = port if found is not None or is_free else free_port(count + 1)
        self._on_change = on_change
        self._lines: deque[str] = deque(maxlen=LINES)
        self._status = Status(State.STARTING)
        self._lock = threading.Lock()
        self._stopped_at: float | None = None
        self._is_left = False
        if found is None:
            words = command_words(launch, self.port, name)
            environment = engine_environment(launch.variables)
            self._handle: Child | Staying = (
                Staying.start(name, launch, self.port, words, environment) if launch.stays
                else Child(words, environment)
            )  # fmt: skip
        else:
            self._handle = found
        self.started_at = time.perf_counter()
        self._reader = threading.Thread(target=self._read, name="managed-log", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="managed-watch", daemon=True)
        self._reader.start()
        self._watcher.start()

    @classmethod
    def find(cls, on_change: Callable[[], None], name: str) -> ManagedProcess | None:
        """The engine of this name that an earlier window left, if it runs still."""
        found = Staying.find(name)
        if found is None:
            return None
        return cls(found.record.launch, on_change, name, found.record.port, found)

    @property
    def pid(self) -> int:
        """Of its supervisor."""
        return self._handle.pid

    @property
    def base_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def status(self) -> Status:
        return self._status

    @property
    def lines(self) -> list[str]:
        """The last of its log."""
        with self._lock:
            return list(self._lines)

    def stop(self) -> None:
        """SIGINT, after `GRACE_S` SIGKILL to its process group. Returns at once."""
        if self._stopped_at is None and self._status.is_running:
            self._stopped_at = time.monotonic()
            self._say(Status(State.STOPPING))
            self._handle.finish()

    def leave(self) -> None:
        """The window closes: one that stays goes on."""
        if isinstance(self._handle, Staying) and self._stopped_at is None:
            self._is_left = True
            self._handle.leave()
        else:
            self.stop()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        self._watcher.join(timeout_s)
        return not self._watcher.is_alive()

    # The threads -----------------------------------------------------------------------------

    def _read(self) -> None:
        for raw in self._handle.lines():
            line = clean(raw.decode("utf-8", "replace"))
            if not line:
                continue
            with self._lock:
                self._lines.append(line)
            log.info("port %d: %s", self.port, line)
            status = self._status
            if status.state is State.STARTING:
                progress = advanced(status.progress, line)
                if progress != status.progress:
                    self._say(status._replace(progress=progress), State.STARTING)

    def _watch(self) -> None:
        beat_at = 0.0
        while (code := self._handle.poll()) is None:
            if time.monotonic() >= beat_at:
                self._handle.beat()
                beat_at = time.monotonic() + BEAT_S
            time.sleep(LOOK_S)
            if self._is_left:
                return
            if self._status.state is State.STARTING and self._is_healthy():
                self._say(Status(State.READY), State.STARTING)
            stopped_at = self._stopped_at
            if stopped_at is not None and time.monotonic() - stopped_at > STOP_S:
                self._handle.kill()
        self._reader.join(1.0)  # a grandchild may hold the pipe
        self._handle.finish()
        error = None
        if self._stopped_at is None:
            error = why_ended(self.launch, code, self.lines)
        self._say(Status(State.ENDED, error=error))

    def _is_healthy(self) -> bool:
        """Whether it answers: any but an error of its own means that it serves."""
        # a router's own health, where one of its replicas is away
        for path in ("/liveness",) if self.launch.is_router else ("/health", "/v1/models"):
            try:
                with _opener.open(self.base_url + path, timeout=HEALTH_TIMEOUT_S):
                    return True
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in (401, 403):
                        return True
                    if error.code != 404:
                        return False
            except (OSError, ValueError):
                return False
            except Exception as error:  # not HTTP, or half of it
                log.debug("health: %r", error)
                return False
        return False

    def _say(self, status: Status, only_from: State | None = None) -> None:
        with self._lock:
            if only_from is not None and self._status.state is not only_from:
                return
            self._status = status
        self._on_change()


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The loopback is behind no proxy."""

"""A whole model from the hub into the cache: it can be stopped and goes on where it stopped."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from app.features.models.hub import Hub
from app.features.models.hub_errors import hub_error
from app.features.models.hub_files import RepoFolder
from app.features.models.hub_transfer import Source, Watch, check_space, fetch

SPEED_WINDOW_S = 5.0


class Stopped(Exception):  # noqa: N818 - no error: the user stopped it
    """The download was paused or cancelled."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes that are there of `total` (0: not known yet), bytes per second of late (0: not known),
    and what is being done beside receiving."""

    done: int = 0
    total: int = 0
    speed: float = 0.0
    stage: str = ""

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.speed if self.speed > 0 and self.total else None

    @property
    def fraction(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 0.0


class Speed:
    """Bytes per second over the last seconds. Times are `time.monotonic`."""

    def __init__(self, window_s: float = SPEED_WINDOW_S) -> None:
        self._window_s = window_s
        self._arrivals: deque[tuple[float, int]] = deque()

    def add(self, count: int, now: float) -> None:
        self._arrivals.append((now, count))
        self._forget(now)

    def at(self, now: float) -> float:
        self._forget(now)
        if not self._arrivals:
            return 0.0
        span = min(self._window_s, max(now - self._arrivals[0][0], 0.5))
        return sum(count for _, count in self._arrivals) / span

    def _forget(self, now: float) -> None:
        while self._arrivals and now - self._arrivals[0][0] > self._window_s:
            self._arrivals.popleft()


class ModelDownload:
    """Downloads one model. `run` in a thread; `stop` and `progress` from any other."""

    def __init__(self, hub: Hub, repo_id: str) -> None:
        self.repo_id = repo_id
        self._hub = hub
        self._folder = RepoFolder(hub.cache_dir, repo_id)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = 0
        self._stage = ""
        self._speed = Speed()

    @property
    def progress(self) -> Progress:
        with self._lock:
            speed = self._speed.at(time.monotonic())
            return Progress(max(0, self._done), self._total, speed, self._stage)

    def stop(self) -> None:
        """End `run` soon, with Stopped. What has arrived stays."""
        self._stop.set()

    def run(self) -> Path:
        """Download what is missing; the snapshot's folder.

        Raises Stopped after `stop`, and HubError: no such model, no access, no connection, a full
        disk, a wrong checksum. `run` again goes on from what is there.
        """
        self._speed = Speed()
        try:
            return self._run()
        except Stopped:
            raise
        except Exception as error:
            raise hub_error(error, self.repo_id, self._hub.endpoint) from error
        finally:
            self._stop.clear()
            self._set_stage("")

    def discard(self) -> None:
        """Remove what has arrived, unless a version of the model that is there uses it."""
        self._folder.discard()

    def _run(self) -> Path:
        self._set_stage("asking the hub")
        # asked again at every start: main may have moved on meanwhile
        details = self._hub.details(self.repo_id)
        files, commit = details.files.wanted, details.commit
        self._check()
        with self._lock:
            self._total = details.files.size
            self._done = self._folder.arrived(commit, files)
        check_space(self._folder, self._total - self._done)
        self._folder.make()
        source = Source(self._hub, self._folder, commit)
        watch = Watch(self._check, self._arrived, self._set_stage)
        for file in files:
            self._check()
            if not self._folder.has(commit, file):
                fetch(source, file, watch)
        return self._folder.publish(commit, files)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _arrived(self, count: int) -> None:
        with self._lock:
            self._done += count
            if count > 0:
                self._speed.add(count, time.monotonic())

    def _set_stage(self, stage: str) -> None:
        with self._lock:
            self._stage = stage

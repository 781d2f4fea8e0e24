"""The downloads: one after the other, each with its state, remembered over a restart.

waiting -> running -> done
              |-> pausing -> paused -> waiting ...
              |-> cancelling -> gone
              '-> failed -> waiting ... (resume)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from app.hub.download import ModelDownload, Progress, Stopped
from app.hub.hub import Hub
from app.tasks import run_task
from engine.errors import ErrorInfo

LOOK_MS = 250


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "downloading"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    FAILED = "failed"
    DONE = "done"


BUSY = (State.RUNNING, State.PAUSING, State.CANCELLING)


@dataclass
class Download:
    """One model on its way. `path` is where it lies once it is done."""

    repo_id: str
    state: State = State.WAITING
    progress: Progress = field(default_factory=Progress)
    error: ErrorInfo | None = None
    path: str = ""


class DownloadQueue(QObject):
    """`changed(repo_id)`: state or progress; `finished(repo_id, path)`; `gone(repo_id)`: it was
    cancelled or dismissed. `file` remembers what is not finished."""

    changed = Signal(str)
    finished = Signal(str, str)
    gone = Signal(str)

    def __init__(self, hub: Hub, file: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._hub, self._file = hub, file
        self._all: dict[str, Download] = {}
        self._workers: dict[str, ModelDownload] = {}
        self._closed = False
        self._timer = QTimer(self)
        self._timer.setInterval(LOOK_MS)
        self._timer.timeout.connect(self._look)
        self._read()

    def __iter__(self) -> Iterator[Download]:
        return iter(list(self._all.values()))

    def get(self, repo_id: str) -> Download | None:
        return self._all.get(repo_id)

    # What the user does ------------------------------------------------------------------------

    def start(self, repo_id: str) -> None:
        """Download a model, or go on with one that was paused or failed."""
        known = self._all.get(repo_id)
        if known is not None and known.state in (*BUSY, State.WAITING):
            return
        self._all[repo_id] = Download(repo_id, progress=known.progress if known else Progress())
        self._tell(repo_id)
        self._next()

    def pause(self, repo_id: str) -> None:
        download = self._all[repo_id]
        if download.state is State.RUNNING:
            download.state = State.PAUSING
            self._workers[repo_id].stop()
        elif download.state is State.WAITING:
            download.state = State.PAUSED
        self._tell(repo_id)

    def cancel(self, repo_id: str) -> None:
        """Stop it and remove what has arrived."""
        download = self._all[repo_id]
        if download.state is State.CANCELLING:
            return
        download.state = State.CANCELLING
        self._tell(repo_id)
        if repo_id in self._workers:
            self._workers[repo_id].stop()  # what is left is removed when it has stopped
        else:
            self._discard(repo_id)

    def dismiss(self, repo_id: str) -> None:
        """Forget one that is done."""
        if self._all[repo_id].state is State.DONE:
            del self._all[repo_id]
            self.gone.emit(repo_id)

    def close(self) -> None:
        """Stop; what has arrived waits for the next start."""
        self._timer.stop()
        self._write()
        self._closed = True
        for worker in self._workers.values():
            worker.stop()

    # What happens ------------------------------------------------------------------------------

    def _next(self) -> None:
        """Start the first that waits, unless one is busy: two at once would share the line."""
        if self._closed or any(download.state in BUSY for download in self):
            return
        download = next((d for d in self if d.state is State.WAITING), None)
        if download is None:
            self._timer.stop()
            return
        download.state = State.RUNNING
        repo_id = download.repo_id
        worker = self._workers[repo_id] = ModelDownload(self._hub, repo_id)
        run_task(
            self,
            lambda: _run(worker),
            lambda path: self._ended(repo_id, path, None),
            lambda error: self._ended(repo_id, None, error),
        )
        self._timer.start()
        self._tell(repo_id)

    def _ended(self, repo_id: str, path: Path | None, error: ErrorInfo | None) -> None:
        """`path` and `error` are both None for one that was stopped."""
        download = self._all[repo_id]
        download.progress = self._workers.pop(repo_id).progress
        if path is not None:
            download.state, download.path = State.DONE, str(path)
            self._tell(repo_id)
            self.finished.emit(repo_id, str(path))
        elif download.state is State.CANCELLING:
            self._discard(repo_id)
            return
        elif error is not None:
            download.state, download.error = State.FAILED, error
            self._tell(repo_id)
        else:
            download.state = State.PAUSED
            self._tell(repo_id)
        self._next()

    def _discard(self, repo_id: str) -> None:
        run_task(
            self,
            ModelDownload(self._hub, repo_id).discard,
            lambda _: self._discarded(repo_id, None),
            lambda error: self._discarded(repo_id, error),
        )

    def _discarded(self, repo_id: str, error: ErrorInfo | None) -> None:
        if error is None:
            del self._all[repo_id]
            self.gone.emit(repo_id)
            self._write()
        else:
            self._all[repo_id].state, self._all[repo_id].error = State.FAILED, error
            self._tell(repo_id)
        self._next()

    def _look(self) -> None:
        for repo_id, worker in self._workers.items():
            progress = worker.progress
            if progress != self._all[repo_id].progress:
                self._all[repo_id].progress = progress
                self.changed.emit(repo_id)

    def _tell(self, repo_id: str) -> None:
        self._write()
        self.changed.emit(repo_id)

    # What is remembered ------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            for repo_id, (done, total) in stored.items():
                progress = Progress(int(done), int(total))
                self._all[repo_id] = Download(repo_id, State.PAUSED, progress)
        except (OSError, ValueError, TypeError, AttributeError):
            return  # nothing remembered; what has arrived is found when it is started again

    def _write(self) -> None:
        open_ones = [d for d in self if d.state is not State.DONE]
        text = json.dumps({d.repo_id: [d.progress.done, d.progress.total] for d in open_ones})
        fresh = self._file.with_suffix(".tmp")
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, self._file)
        except OSError:
            return  # a full disk stops downloads by itself, and says so


def _run(worker: ModelDownload) -> Path | None:
    """The snapshot; None for a download that was stopped."""
    try:
        return worker.run()
    except Stopped:
        return None

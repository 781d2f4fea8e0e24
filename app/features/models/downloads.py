"""Download queue: one model at a time, with pause, resume and cancel; kept over a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal

from app.features.models.hub import Hub
from app.features.models.hub_download import ModelDownload, Progress, Stopped
from app.link.tasks import run_task
from app.storage.json_file import kept_aside, read_own, unread_text, write_soon
from app.window.progress import Work, WorkArea
from engine.errors import CheckpointError, ErrorInfo
from engine.units import bytes_text, progress_text, rough_duration, speed_text

LOOK_MS = 250
_WHAT = "The list of downloads"
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


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
    """One model in the queue. `path`: its snapshot folder when done."""

    repo_id: str
    state: State = State.WAITING
    progress: Progress = field(default_factory=Progress)
    error: ErrorInfo | None = None
    path: str = ""


class DownloadQueue(QObject):
    """`changed(repo_id)`: state or progress; `finished(repo_id, path)`; `gone(repo_id)`: cancelled
    or dismissed. `file` stores the unfinished ones."""

    changed = Signal(str)
    finished = Signal(str, str)
    gone = Signal(str)

    def __init__(self, hub: Hub, file: Path) -> None:
        super().__init__()
        self._hub, self._file = hub, file
        self._all: dict[str, Download] = {}
        self._workers: dict[str, ModelDownload] = {}
        self._closed = False
        self.problem = ""
        """What happened to an unreadable file; "" if nothing."""
        self._is_unread = False  # then the file may have content, and is not written
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
        """Download a model; resumes one that is paused or failed."""
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
        """Stop it and remove its partial files."""
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
        """Remove a finished one from the queue."""
        if self._all[repo_id].state is State.DONE:
            del self._all[repo_id]
            self.gone.emit(repo_id)

    def close(self) -> None:
        """Stop; the next start of the program resumes."""
        self._timer.stop()
        self._write()
        self._closed = True
        for worker in self._workers.values():
            worker.stop()

    # Running --------------------------------------------------------------------------------

    def _next(self) -> None:
        """Start the first waiting one unless one is running: concurrent downloads would share the
        bandwidth."""
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
        """A download ended; `path` and `error` are both None if it was stopped."""
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

    # Stored -------------------------------------------------------------------------------

    def _read(self) -> None:
        if not os.path.lexists(self._file):
            return
        try:
            stored = read_own(self._file, dict[str, tuple[_Bytes, _Bytes]])
        except OSError as error:
            self.problem = unread_text(self._file, _WHAT, error)
            self._is_unread = True
            return
        except CheckpointError as error:  # partial files are found when it is started again
            self.problem = kept_aside(self._file, _WHAT, error)
            return
        for repo_id, (done, total) in stored.items():
            self._all[repo_id] = Download(repo_id, State.PAUSED, Progress(done, total))

    def _write(self) -> None:
        if self._is_unread:
            return
        open_ones = [d for d in self if d.state is not State.DONE]
        text = json.dumps({d.repo_id: [d.progress.done, d.progress.total] for d in open_ones})
        # on a full disk the download itself reports the error
        with suppress(OSError, MemoryError):
            write_soon(self._file, text)


def _run(worker: ModelDownload) -> Path | None:
    """The snapshot folder; None for a stopped download."""
    try:
        return worker.run()
    except Stopped:
        return None


def figures_text(progress: Progress) -> str:
    """ "412 MiB of 1.40 GiB · 11.0 MiB/s · 1 min 31 s left"; unknown ones are omitted."""
    if not progress.total:
        return ""
    if progress.done >= progress.total:
        return bytes_text(progress.total)
    parts = [progress_text(progress.done, progress.total)]
    if progress.speed:
        parts.append(speed_text(progress.speed))
    if progress.seconds_left is not None:
        parts.append(f"{rough_duration(progress.seconds_left)} left")
    return " · ".join(parts)


def how_far(download: Download) -> str:
    """Progress of a download; speed and time left only while it runs."""
    progress = download.progress
    if download.state is not State.RUNNING:
        progress = Progress(progress.done, progress.total)
    return figures_text(progress)


def state_text(download: Download) -> str:
    """Stage, state or error."""
    if download.state is State.FAILED and download.error is not None:
        return f"{download.error.cause} {download.error.remedy}".strip()
    if download.state is State.RUNNING and download.progress.stage:
        return download.progress.stage
    return download.state.value


def subtitle(download: Download) -> str:
    """One short line for the list."""
    if download.progress.total and download.state is not State.DONE:
        return f"{download.state.value} · {100 * download.progress.fraction:.0f} %"
    return download.state.value


def actions(queue: DownloadQueue, download: Download) -> tuple[tuple[str, partial[None]], ...]:
    """Buttons for its state."""
    repo_id = download.repo_id
    pause = ("Pause", partial(queue.pause, repo_id))
    resume = ("Resume", partial(queue.start, repo_id))
    cancel = ("Cancel", partial(queue.cancel, repo_id))
    match download.state:
        case State.WAITING | State.RUNNING:
            return pause, cancel
        case State.PAUSED | State.FAILED:
            return resume, cancel
        case State.DONE:
            return (("Close", partial(queue.dismiss, repo_id)),)
        case _:
            return ()


class DownloadWork(QObject):
    """Shows downloads of this run in the work area. Paused ones of an earlier run stay on the
    Models page until resumed."""

    def __init__(
        self, queue: DownloadQueue, area: WorkArea, open_model: Callable[[str], object]
    ) -> None:
        super().__init__()
        self._queue, self._area, self._open_model = queue, area, open_model
        queue.changed.connect(self._show)
        queue.gone.connect(area.end)

    def _show(self, repo_id: str) -> None:
        download = self._queue.get(repo_id)
        if download is not None:
            self._area.show_work(self._as_work(download))

    def _as_work(self, download: Download) -> Work:
        possible = actions(self._queue, download)
        if download.state is State.DONE:
            possible = (("Open", partial(self._open, download)), *possible)
        return Work(
            key=download.repo_id,
            title=download.repo_id,
            stage=state_text(download),
            figures=how_far(download),
            fraction=download.progress.fraction if download.progress.total else None,
            moving=download.state in (State.RUNNING, State.PAUSING, State.CANCELLING),
            tone="error" if download.state is State.FAILED else "muted",
            actions=possible,
            page="Models",
            is_done=download.state is State.DONE,
        )

    def _open(self, download: Download) -> None:
        self._queue.dismiss(download.repo_id)
        self._open_model(download.path)

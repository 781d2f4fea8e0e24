"""The downloads in the area of long work, which stands on every page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject

from app.models.download_words import actions, how_far, state_text
from app.models.downloads import Download, DownloadQueue, State
from app.panels.work_area import Work, WorkArea


class DownloadWork(QObject):
    """Shows what was started in this run; what waits since an earlier one stays on the Models page
    until somebody resumes it."""

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
        )

    def _open(self, download: Download) -> None:
        self._queue.dismiss(download.repo_id)
        self._open_model(download.path)

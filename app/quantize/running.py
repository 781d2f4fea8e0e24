"""The run in the area of long work, which stands on every page but its own."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from app.panels.work_area import Work, WorkArea
from app.quantize.page import QuantizePage

KEY = "quantize"


class QuantizeWork(QObject):
    """Shows how far it is, and when it ended what came of it, until somebody has looked."""

    def __init__(self, page: QuantizePage, area: WorkArea, show_page: Callable[[], object]) -> None:
        super().__init__()
        self._page, self._area, self._show_page = page, area, show_page
        page.run_moved.connect(self._show)
        page.run_over.connect(self._show)
        page.seen.connect(self._show)

    def _show(self) -> None:
        work = self._work()
        if work is None or self._page.isVisible():
            self._area.end(KEY)
        else:
            self._area.show_work(work)

    def _work(self) -> Work | None:
        page = self._page
        if page.run is not None:
            shown = page.run.figures()
            return Work(KEY, shown.title, shown.stage, shown.time, shown.fraction,
                        actions=(("Show", self._show_page), ("Cancel", page.cancel)))  # fmt: skip
        if page.ending is None:
            return None
        text, is_error = page.ending
        tone = "error" if is_error else "muted"
        actions = (("Show", self._show_page), ("Close", self._close))
        return Work(KEY, "Quantize", text, moving=False, tone=tone, actions=actions)  # type: ignore[arg-type]

    def _close(self) -> None:
        self._page.ending = None
        self._area.end(KEY)

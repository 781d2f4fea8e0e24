"""LoopThread: a thread with an event loop. Clients of engines in other processes run in one."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class LoopThread(threading.Thread):
    """Runs `_live` until `_leave` ends it. Work posted before the start is done first."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._loop = asyncio.new_event_loop()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Disconnect; the engine keeps running. True if the thread ended."""
        self._post(self._leave)
        if self.is_alive():
            self.join(timeout_s)
        return not self.is_alive()

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._live())
        except asyncio.CancelledError:
            pass  # stopped before it was connected
        except BaseException as error:  # whoever waits for an answer hears of any end
            self._on_failed(error)

    def _post(self, work: Callable[..., None], *args: Any) -> None:
        """Call `work` on the loop; from any thread. Dropped after the end."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)

    @abstractmethod
    async def _live(self) -> None: ...

    @abstractmethod
    def _leave(self) -> None:
        """On the loop."""

    @abstractmethod
    def _on_failed(self, error: BaseException) -> None:
        """`_live` raised an unexpected error."""

"""Waits that a slow or busy machine passes too: one that succeeds costs nothing, however long it
may take, so none gives up early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytestqt.qtbot import QtBot

PATIENCE_MS = 30_000
"""The least that a wait of a test lasts before it gives up."""


class PatientBot(QtBot):
    """A qtbot whose waits last PATIENCE_MS at least; a longer `timeout` is taken as it is."""

    def waitUntil(self, callback: Callable[[], bool | None], *, timeout: int = 0) -> None:
        __tracebackhide__ = True
        super().waitUntil(callback, timeout=max(timeout, PATIENCE_MS))

    def waitSignal(
        self,
        signal: Any,
        *,
        timeout: int = 0,
        raising: bool | None = None,
        check_params_cb: Callable[..., bool] | None = None,
    ) -> Any:
        if raising is not False:  # that one looks whether nothing comes
            timeout = max(timeout, PATIENCE_MS)
        return super().waitSignal(
            signal, timeout=timeout, raising=raising, check_params_cb=check_params_cb
        )

"""Full collections of Python's cyclic garbage, in the thread that may make them.

An object of Qt must end in its own thread, but a collection ends what it finds in the thread that
makes it. A window therefore collects by itself (see `app.main.garbage`), and the engine asks it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _collect_here() -> bool:
    gc.collect()
    return True


_collector: Callable[[], bool] = _collect_here


def collect() -> bool:
    """A full collection, or a request for one. Whether it is done."""
    return _collector()


def use(collector: Callable[[], bool]) -> None:
    """`collect` calls `collector` from now on."""
    global _collector
    _collector = collector


@contextmanager
def paused() -> Iterator[None]:
    """No collection by itself: for work that makes many records, and no cycles of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

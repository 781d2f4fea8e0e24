"""Collections of garbage that look at the tests' own objects alone.

A full collection takes a quarter of a second where torch and transformers are imported, and every
engine that is loaded, changed or shut down makes one. Therefore what is there before a file's tests
is frozen, and the engine, which freezes its model and thaws everything behind it, finds both doing
nothing: its model stays among what is looked at, so what is not given back is found as it would be.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from engine.hardware import garbage

_freeze, _unfreeze = gc.freeze, gc.unfreeze


def replace() -> None:
    """From now on `gc.freeze` and `gc.unfreeze` do nothing. Nothing is collected while tests are
    imported: that is a third of the time, and finds nothing."""
    gc.freeze = gc.unfreeze = lambda: None  # type: ignore[assignment]
    gc.disable()


def settle() -> None:
    """What is there now, and is no garbage, is not looked at again."""
    gc.collect()
    _freeze()
    gc.enable()
    garbage.use(gc.collect)


def restore() -> None:
    """The process ends as it would: everything is looked at."""
    gc.freeze, gc.unfreeze = _freeze, _unfreeze
    gc.unfreeze()


@contextmanager
def as_it_is() -> Iterator[None]:
    """Within, the engine may freeze and thaw as it does in the program."""
    quiet = gc.freeze, gc.unfreeze
    gc.freeze, gc.unfreeze = _freeze, _unfreeze
    try:
        yield
    finally:
        gc.freeze, gc.unfreeze = quiet
        settle()

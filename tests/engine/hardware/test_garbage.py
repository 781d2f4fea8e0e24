"""Collections of cyclic garbage that are paused."""

from __future__ import annotations

import gc

import pytest

from engine.hardware import garbage


@pytest.mark.parametrize("was_on", [True, False])
def test_a_pause_ends_as_it_began(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(KeyError), garbage.paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()

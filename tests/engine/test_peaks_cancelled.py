"""The measurement of a machine's peaks is given up when the engine ends."""

from __future__ import annotations

import pytest
import torch

from engine.peaks import PeaksCancelledError, measure_peaks


@pytest.mark.parametrize("turns", [0, 2, 6])
def test_it_ends_before_the_next_turn(turns: int) -> None:
    """2 is among the sums, 6 among the products."""
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(len(asked))
        return len(asked) > turns

    before = torch.get_num_threads()
    with pytest.raises(PeaksCancelledError):
        measure_peaks("float32", 1, cancelled=cancelled)
    assert len(asked) == turns + 1
    assert torch.get_num_threads() == before

"""What the Quantize page adds to the menus, as data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.commands import Command

if TYPE_CHECKING:
    from app.quantize.page import QuantizePage

QUANTIZE, EVALUATE, REPORTS = 0, 1, 2
"""The page's tabs."""


def page_commands(page: QuantizePage) -> list[Command]:
    return [
        Command(
            "quantize.make", "Quantize a model…", partial(page.show_tab, QUANTIZE), "Tune",
            icon="quantize", section="quantize",
        ),
        Command(
            "quantize.evaluate", "Measure what a precision costs…",
            partial(page.show_tab, EVALUATE), "Tune", section="quantize",
        ),
        Command(
            "quantize.reports", "Reports of quality", partial(page.show_tab, REPORTS), "Tune",
            section="quantize",
        ),
        Command(
            "quantize.cancel", "Cancel the run", page.cancel, "Tune", section="quantize",
            is_enabled=lambda: page.run is not None,
        ),
    ]  # fmt: skip

"""What a layout is, and the ones that come with the program. Imports no Qt widget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.panels.docks import CLOSED_DOCKS, TUNE_DOCKS, DockPlan

CHAT, TUNING, PRESENTATION = "Chat", "Tuning", "Presentation"


@dataclass(frozen=True, slots=True)
class Layout:
    """`base`: the built-in layout whose plans hold for pages without a state; `page`: what is shown
    when it is chosen, "" for the page that is shown already; `text_size`: in percent, None for
    what the settings say; `states`: of the docks, by page."""

    name: str
    base: str = CHAT
    page: str = ""
    text_size: int | None = None
    states: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_built_in(self) -> bool:
        return self in BUILT_IN


BUILT_IN = (
    Layout(CHAT, CHAT, "Chat"),
    Layout(TUNING, TUNING, "Tune"),
    Layout(PRESENTATION, PRESENTATION, "", 130),
)
_PLANS: dict[str, dict[str, DockPlan]] = {
    CHAT: {},
    TUNING: {"Chat": TUNE_DOCKS},
    PRESENTATION: {
        "Chat": DockPlan("closed", (("live-charts",),), 420),
        "Tune": CLOSED_DOCKS,
        "Models": CLOSED_DOCKS,
    },
}


def plan_of(base: str, page: str, first: DockPlan) -> DockPlan:
    """Where a built-in layout has the docks of a page; `first`: what the page says of itself."""
    return _PLANS[base].get(page, first)

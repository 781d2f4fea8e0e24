"""`Theme`: the named colours of one mode, read from `light.json` and `dark.json`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from PySide6.QtGui import QColor

from widgets.theme.colors import MINIMUM_GRAPHIC_CONTRAST, MINIMUM_TEXT_CONTRAST, readable

Mode = Literal["light", "dark"]
_folder = Path(__file__).parents[2] / "resources" / "theme"


@dataclass(frozen=True, slots=True)
class SeriesColors:
    """What a colour means in every chart, map and timeline (Okabe-Ito, safe for the colour-blind).

    `owners` colours blocks by the request that holds them, in turn.
    """

    weights: str
    kv_used: str
    kv_cached: str
    other: str
    limit: str
    gpu_memory: str
    queued: str
    prefill: str
    cached: str
    decode: str
    draft: str
    preempted: str
    free: str
    p50: str
    p99: str
    tokens_in: str
    tokens_out: str
    running: str
    waiting: str
    kv_usage: str
    arithmetic: str
    launch: str
    python: str
    prefix_hits: str
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Theme:
    """Named colours of one mode, each "#rrggbb". Surfaces: window, panel and raised."""

    mode: Mode
    window: str
    panel: str
    raised: str
    border: str
    border_strong: str
    text: str
    text_muted: str
    text_disabled: str
    accent: str
    accent_text: str
    accent_hover: str
    accent_pressed: str
    hover: str
    pressed: str
    selection: str
    selection_text: str
    danger: str
    danger_text: str
    warning: str
    success: str
    badge_live: str
    badge_rebuild: str
    badge_reload: str
    state_idle: str
    state_busy: str
    state_loading: str
    state_error: str
    code_background: str
    code_text: str
    code_keyword: str
    code_string: str
    code_number: str
    code_comment: str
    code_function: str
    code_name: str
    user_bubble: str
    scrollbar: str
    grid: str
    axis: str
    sample_dot: str
    series: SeriesColors

    @property
    def is_dark(self) -> bool:
        return self.mode == "dark"

    def value(self, name: str) -> str:
        """A colour, or a series colour, by name. Raises KeyError for an unknown one."""
        for table in (self, self.series):
            found = getattr(table, name, None)
            if isinstance(found, str) and found.startswith("#"):
                return found
        raise KeyError(f"The theme has no colour named {name!r}.")

    def color(self, name: str, alpha: float = 1.0) -> QColor:
        """`value(name)` as a QColor with opacity `alpha` (0 to 1)."""
        found = QColor(self.value(name))
        found.setAlphaF(alpha)
        return found

    def line_color(self, name: str) -> str:
        """A series colour for a thin line on a panel: at least 3:1 against it."""
        return _readable(self.value(name), self.panel, MINIMUM_GRAPHIC_CONTRAST)

    def label_color(self, name: str, surface: str = "panel") -> str:
        """A series colour for text on `surface`: at least 4.5:1 against it."""
        return _readable(self.value(name), self.value(surface), MINIMUM_TEXT_CONTRAST)


_readable = cache(readable)


def set_theme_folder(path: Path) -> None:
    """Where light.json and dark.json are; call before `apply_theme`."""
    global _folder
    _folder = Path(path)
    load_theme.cache_clear()


@cache
def load_theme(mode: Mode) -> Theme:
    """The table of one mode. Raises ValueError that names missing, unknown or malformed colours."""
    path = _folder / f"{mode}.json"
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    series: dict[str, Any] = values.pop("series", {})
    _check_names(path, Theme, {*values, "series"})
    _check_names(path, SeriesColors, set(series))
    owners = tuple(series.pop("owners"))
    found = Theme(**values, series=SeriesColors(**series, owners=owners))
    colors = [v for k, v in values.items() if k != "mode"] + [*series.values(), *owners]
    bad = [c for c in colors if not QColor.isValidColorName(c) or len(c) != 7]
    if bad or found.mode != mode:
        raise ValueError(f"{path}: not a colour of the form #rrggbb: {bad}, mode {found.mode}")
    return found


def _check_names(path: Path, table: type, names: set[str]) -> None:
    expected = {field.name for field in dataclasses.fields(table)}
    if names != expected:
        missing, unknown = sorted(expected - names), sorted(names - expected)
        raise ValueError(f"{path}: missing {missing}, unknown {unknown}")

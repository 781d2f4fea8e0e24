"""`FlagRows`: the settings of a managed engine, searched in its own parser's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from app.managed.arguments import Flag, Flags
from engine.units import counted
from widgets.controls.layouts import dressed, empty_layout, vbox, wrapped
from widgets.controls.number_control import RowSpec
from widgets.controls.setting_row import SettingRow
from widgets.theme.theme import SPACE_3

ESSENTIAL = (
    "--tensor-parallel-size", "--tp-size", "--pipeline-parallel-size", "--pp-size",
    "--data-parallel-size", "--dp-size", "--enable-expert-parallel", "--expert-parallel-size",
    "--ep-size", "--max-model-len", "--context-length", "--gpu-memory-utilization",
    "--mem-fraction-static", "--max-num-seqs", "--max-running-requests",
    "--max-num-batched-tokens", "--quantization", "--kv-cache-dtype", "--speculative-config",
    "--speculative-algorithm", "--enable-lora", "--policy", "--cache-threshold",
    "--balance-abs-threshold", "--balance-rel-threshold", "--max-concurrent-requests",
)  # fmt: skip
"""Shown without a search, of vLLM, SGLang and vLLM's router."""
OWN = ("--host", "--port", "--model", "--model-path", "--config", "--worker-urls",
       "--prometheus-host", "--prometheus-port")  # fmt: skip
"""The window's, not the user's."""
MAX_ROWS = 24
SEARCH_MS = 200
BADGE = "restart"
SEARCH = "Search settings, or add --flag=value"
MAX_HINT = 110
_SENTENCE_END = re.compile(r"(?<!\.\w)\.\s+(?![a-z])|\n\s*\n")
"""Not that of an abbreviation, such as e.g., but that of a paragraph."""


class FlagRows(QWidget):
    """`changed`: by the user. `values`: texts by flag, as `Launch.settings` has them."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.flags: Flags | None = None
        self.rows: dict[str, SettingRow] = {}
        self.search = dressed(QLineEdit(), "Search settings")
        self.search.setPlaceholderText(SEARCH)
        self.search.setClearButtonEnabled(True)
        self.note = wrapped("small")
        self._list = vbox(spacing=SPACE_3)
        vbox(self.search, self.note, self._list, of=self)
        self._later = QTimer(self, singleShot=True, interval=SEARCH_MS)
        self._later.timeout.connect(self._fill)
        self.search.textChanged.connect(lambda _: self._later.start())
        self.search.returnPressed.connect(self._add_typed)
        self._fill()

    def show_values(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)
        self._fill()

    def show_flags(self, flags: Flags | None, note: str = "") -> None:
        """flags: of the engine; None, with the reason as a note, where they are not known."""
        self.flags = flags
        self.note.setText(note)
        self.note.setVisible(bool(note))
        self._fill()

    @property
    def problem(self) -> str:
        """Why the engine would refuse them; "" where it takes them, as far as is known."""
        return self.flags.problem(self.values) if self.flags is not None else ""

    # Rows ----------------------------------------------------------------------------------------

    def _shown(self) -> list[Flag]:
        """The chosen ones, then what is searched."""
        known = [one for one in self.flags.flags if one.flag not in OWN] if self.flags else []
        find = self.flags.find if self.flags else lambda flag: None
        chosen = [find(flag) or Flag(flag) for flag in self.values]
        words = self.search.text().strip()
        if words:
            found = [one for one in known if one.matches(words.removeprefix("--"))]
        else:
            found = [one for one in known if one.flag in ESSENTIAL]
        names = {one.flag for one in chosen}
        return chosen + [one for one in found if one.flag not in names]

    def _fill(self) -> None:
        self._later.stop()
        empty_layout(self._list)
        shown = self._shown()
        self.rows = {}
        for flag in shown[:MAX_ROWS]:
            row = self.rows[flag.flag] = SettingRow(_spec(flag, is_known=self.flags is not None))
            row.value_changed.connect(partial(self._on_value, flag))
            row.reset_wanted.connect(partial(self._on_value, flag, value=""))
            self._list.addWidget(row)
            self._show(flag)
        left = len(shown) - MAX_ROWS
        if left > 0:
            text = f"{counted(left, 'more setting')}. Refine the search."
            self._list.addWidget(wrapped("small", text))

    def _show(self, flag: Flag) -> None:
        row = self.rows[flag.flag]
        name = next((one for one in (flag.flag, *flag.aliases) if one in self.values), "")
        text = self.values.get(name, "")
        row.set_value(name if flag.is_switch else text)
        row.show_default((flag.default or "the engine's") if name else "")
        problem = self.flags.problem({name: text}) if self.flags and name else ""
        hint = _first_sentence(flag.help)
        row.set_hint(problem or hint, "error" if problem else "small")

    def _on_value(self, flag: Flag, _: str = "", value: object = "") -> None:
        for name in (flag.flag, *flag.aliases):
            self.values.pop(name, None)
        text = str(value)
        if text and flag.is_switch:
            self.values[text] = ""
        elif text:
            self.values[flag.flag] = text
        self._show(flag)
        self.changed.emit()

    def _add_typed(self) -> None:
        """A flag as on a command line, known or not."""
        typed = self.search.text().strip()
        name, _, text = typed.partition("=")
        if typed.startswith("--") and " " not in name and name not in OWN:
            self.values[name] = text
            self.search.clear()
            self._fill()
            self.changed.emit()


def _spec(flag: Flag, *, is_known: bool) -> RowSpec:
    label = flag.flag.removeprefix("--").replace("-", " ").capitalize()
    parts = (flag.flag, flag.group, flag.help)
    about = "\n".join(part for part in parts if part)
    default = f"Default: {flag.default}" if flag.default else "Default"
    if flag.is_switch:
        off = next((one for one in flag.aliases if one.startswith("--no-")), "")
        choices = [("", default), (flag.flag, "On")] + ([(off, "Off")] if off else [])
        return RowSpec(flag.flag, label, about, BADGE, tuple(choices))
    if flag.choices:
        choices = [("", default), *((one, one) for one in flag.choices)]
        return RowSpec(flag.flag, label, about, BADGE, tuple(choices))
    auto = default if is_known else "no value"
    return RowSpec(flag.flag, label, about, BADGE, auto=auto, is_text=True)


def _first_sentence(text: str) -> str:
    first = " ".join(_SENTENCE_END.split(text, maxsplit=1)[0].split()).rstrip(".:")
    return first if len(first) <= MAX_HINT else f"{first[:MAX_HINT]}…"

"""Sections and entries of the settings dialog, and their search. No widgets."""

from __future__ import annotations

from dataclasses import dataclass

from app.window.program_settings import PREFERENCES, Preference
from app.window.setting_specs import Machine, help_of
from app.window.setting_specs import sections as engine_rows
from engine.config import SETTINGS
from widgets.controls.number_control import RowSpec

PROGRAM, ENGINE = "Program", "Engine"


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting. `about`: its description; `text`: for the search."""

    spec: RowSpec
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """`group`: program or engine."""

    title: str
    group: str
    entries: tuple[Entry, ...]

    def found(self, words: str) -> tuple[Entry, ...]:
        """The entries with every word, in any order; all for no words."""
        wanted = words.lower().split()
        return tuple(e for e in self.entries if all(word in e.text for word in wanted))


def all_sections(machine: Machine) -> list[Section]:
    """The program's, then the engine's."""
    entries: dict[str, list[Entry]] = {}
    for preference in PREFERENCES.values():
        entries.setdefault(preference.section, []).append(_entry(preference))
    return [Section(title, PROGRAM, tuple(found)) for title, found in entries.items()] + [
        Section(title, ENGINE, tuple(_engine_entry(title, spec) for spec in specs))
        for title, specs in engine_rows(machine).items()
    ]


def _entry(preference: Preference) -> Entry:
    bounds = preference.range if not preference.choices else ""
    about = f"{preference.help} {bounds[:1].upper()}{bounds[1:]}.".replace(" .", "")
    spec = RowSpec(
        name=preference.name,
        label=preference.label,
        help=preference.help,
        badge=preference.applies.value,
        choices=preference.choices,
        minimum=preference.minimum,
        maximum=preference.maximum,
        steps=preference.steps,
        unit=preference.unit,
        is_folders=isinstance(preference.default, tuple),
    )
    words = (preference.label, preference.help, *preference.words, preference.range,
             preference.section, preference.name, preference.applies.value)  # fmt: skip
    return Entry(spec, about, " ".join(words).lower())


def _engine_entry(section: str, spec: RowSpec) -> Entry:
    setting = SETTINGS[spec.name]
    words = (setting.label, setting.help, setting.name, setting.flag, section, ENGINE,
             setting.change.value, *(text for _, text in spec.choices))  # fmt: skip
    return Entry(spec, help_of(setting), " ".join(words).lower())

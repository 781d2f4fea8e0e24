"""Settings of the program: every one is declared whole, checked, kept, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QSettings
from pytestqt.qtbot import QtBot

from app.features.preferences.catalog import all_sections
from app.paths import settings_file
from app.window.program_settings import PREFERENCES, Preference, PreferenceError, Preferences
from app.window.setting_specs import Machine
from app.window.settings_store import SettingsStore

ALL = list(PREFERENCES.values())


@pytest.fixture
def preferences(qtbot: QtBot, tmp_path: Path) -> Preferences:
    return Preferences(QSettings(str(tmp_path / "x.ini"), QSettings.Format.IniFormat))


def another(preference: Preference) -> Any:
    """A value that is allowed and not the default."""
    if preference.choices:
        return next(v for v, _ in preference.choices if v != preference.default)
    if isinstance(preference.default, bool):
        return not preference.default
    if isinstance(preference.default, tuple):
        return ("/models", "/with, comma")
    assert preference.maximum is not None
    return int(preference.maximum)


@pytest.mark.parametrize("preference", ALL, ids=lambda p: p.name)
def test_a_value_comes_back_and_only_what_differs_is_written(
    preferences: Preferences, preference: Preference
) -> None:
    changed: list[str] = []
    preferences.changed.connect(changed.append)
    name, value = preference.name, another(preference)
    assert preferences.get(name) == preference.default and not preferences.is_changed(name)
    preference.check(preference.default)
    preferences.set(name, value)
    preferences._ini.sync()
    again = Preferences(QSettings(preferences._ini.fileName(), QSettings.Format.IniFormat))
    assert again.get(name) == value and type(again.get(name)) is type(preference.default)
    preferences.set(name, value)  # no change
    preferences.reset(name)
    assert changed == [name, name] and not preferences._ini.contains(preference.place)


@pytest.mark.parametrize("preference", ALL, ids=lambda p: p.name)
def test_what_is_not_allowed_is_refused_and_never_read(
    preferences: Preferences, preference: Preference
) -> None:
    bad: list[Any] = [None, 10**9, "purple", 3.5]
    for value in bad:
        with pytest.raises(PreferenceError, match=preference.label):
            preferences.set(preference.name, value)
    for text in ("{", "null", "1000000000", "purple", "[1, 2]"):
        preferences._ini.setValue(preference.place, text)
        preference.check(preferences.get(preference.name))


def test_an_effect_that_fails_stops_no_other(preferences: Preferences) -> None:
    applied: list[Any] = []
    failed: list[str] = []

    def fail(value: Any) -> None:
        raise OSError(28, "No space left on device", "/logs/inferdeck.log")

    preferences.failed.connect(failed.append)
    preferences.bind("log_size", fail)
    preferences.bind("log_size", applied.append)
    preferences.changed.connect(applied.append)
    preferences.set("log_size", 20)
    assert applied == [1, 20, "log_size"] and failed == ["log_size", "log_size"]
    assert "/logs/inferdeck.log" in preferences.failures["log_size"].cause
    assert preferences.get("log_size") == 20


def test_a_refusal_names_the_range() -> None:
    with pytest.raises(PreferenceError, match=r"300.*80.*160"):
        PREFERENCES["text_size"].check(300)
    with pytest.raises(PreferenceError, match="Light, Dark"):
        PREFERENCES["theme"].check("purple")


def test_a_newer_file_is_copied_aside_and_what_is_known_is_used(qtbot: QtBot) -> None:
    text = "[General]\nversion=7\n\n[look]\ntheme=dark\n\n[unheard]\nof=1\n"
    settings_file().write_text(text, encoding="utf-8")
    store = SettingsStore()
    assert store.theme == "dark" and "version 7" in store.problem
    aside = settings_file().with_name("window.version-7.ini")
    assert aside.read_text(encoding="utf-8") == text
    store.sync()
    assert "[unheard]" in settings_file().read_text(encoding="utf-8")
    assert not SettingsStore().problem


def test_the_search_looks_at_titles_descriptions_keywords_and_flags() -> None:
    sections = all_sections(Machine())

    def found(words: str) -> list[str]:
        return [entry.spec.name for section in sections for entry in section.found(words)]

    assert found("colour") == ["theme"]
    assert found("FONT size") == ["text_size"]
    assert found("--max-num-seqs") == ["max_num_seqs"]
    assert "model_folders" in found("directory") and "log_level" in found("verbose")
    assert not found("no such thing")
    names = [entry.spec.name for section in sections for entry in section.entries]
    assert found("") == names and len(names) == len(set(names)) and set(PREFERENCES) <= set(names)

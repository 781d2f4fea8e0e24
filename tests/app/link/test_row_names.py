"""In the window the engine's settings have the names of their rows, whoever speaks of them."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.features.models.estimate import estimate
from app.link.bridge import EngineBridge
from app.link.row_names import by_row, event_by_row
from app.main.application import Application
from app.paths import starter_model
from app.window.notices import error_notice
from engine import messages
from engine.config import SETTINGS, EngineConfig
from engine.errors import ErrorInfo
from engine.sampling_params import PARAMETERS
from tests.app.window_fixtures import application, open_model, script, send

__all__ = ["application", "script"]

TOO_LONG = ErrorInfo(
    "The prompt has 9,000 tokens; the context holds 4,096, reply included.",
    "Shorten the prompt, or raise max_model_len if the model allows it.",
)
BY_ROW = TOO_LONG.remedy.replace("max_model_len", f"“{SETTINGS['max_model_len'].label}”")


@pytest.mark.parametrize("name", [name for name in SETTINGS if "_" in name])
def test_every_setting_is_called_as_its_row(name: str) -> None:
    assert by_row(f"Raise {name}.") == f"Raise “{SETTINGS[name].label}”."
    assert by_row(f"--{name}s and my_{name} are others.") == f"--{name}s and my_{name} are others."


def test_sampling_is_called_as_in_the_chat() -> None:
    label = PARAMETERS["max_tokens"].label
    assert by_row("Raise the cache size, or lower max_tokens.").endswith(f"lower “{label}”.")


def test_an_event_keeps_the_rest_and_a_crash_its_every_word() -> None:
    failed = messages.RequestFailed("r", TOO_LONG)
    assert event_by_row(failed).error.remedy == BY_ROW
    assert event_by_row(failed).error.cause == TOO_LONG.cause
    unloaded = messages.Unloaded()
    assert event_by_row(unloaded) is unloaded
    crash = messages.EngineCrashed(ErrorInfo("TypeError: max_model_len"), "traceback")
    assert event_by_row(crash) is crash


def test_a_refused_prompt_names_the_row_in_the_chat(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    send(qtbot, application, "Hello")
    reply = application.pages.chat.current.path()[-1]
    bridge: EngineBridge = application.bridge
    bridge.on_event(messages.RequestFailed(reply.id, TOO_LONG))
    qtbot.waitUntil(lambda: reply.error is not None, timeout=5000)
    assert reply.error is not None
    assert reply.error.remedy == BY_ROW


def test_notices_and_the_models_page_do_so_too() -> None:
    notice = error_notice("load", "", TOO_LONG)
    assert "“Context length”" in notice.remedy and "max_model_len" not in notice.details
    found = estimate(EngineConfig(model=str(starter_model()), max_model_len=10**9))
    assert "“Context length”" in found.problem and "max_model_len" not in found.problem

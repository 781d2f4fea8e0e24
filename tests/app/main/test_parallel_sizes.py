"""Settings of earlier versions that ran a model on several devices: vLLM is offered for them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.serve.page import OTHERS
from app.main.application import Application
from app.managed.launch import PARALLEL, parallel_flags
from app.storage.profiles import Profile
from app.window.settings_store import RecentModel
from engine.config import SETTINGS
from tests.app.fakes import Script
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.window_fixtures import application, open_model, script

__all__ = ["application", "ring", "script"]
TENSOR, PIPELINE = PARALLEL


@given(st.dictionaries(st.sampled_from([*PARALLEL, "seed"]), st.integers(-1, 8) | st.text()))
def test_flags_are_those_of_sizes_above_one(stored: Mapping[str, object]) -> None:
    assert not set(PARALLEL) & set(SETTINGS)
    wanted = {
        PARALLEL[name]: str(size) for name, size in stored.items()
        if name in PARALLEL and isinstance(size, int) and size > 1
    }  # fmt: skip
    assert parallel_flags(stored) == wanted


def test_a_profile_with_a_size_offers_vllm_with_it(
    qtbot: QtBot, application: Application, script: Script, ring: MemoryKeyring
) -> None:
    open_model(qtbot, application, "/models/large")
    panel = application.engine_settings
    profile = Profile("Two GPUs", {"max_num_seqs": 4}, {TENSOR: 2, PIPELINE: 1})
    with qtbot.waitSignal(application.bridge.reconfigured, timeout=3000):
        panel.profiles.chosen.emit(profile)
    notice = application.notices.notice("parallel")
    assert notice is not None and "--tensor-parallel-size 2" in notice.cause
    ((_, run),) = notice.actions
    run()
    page = application.pages.server
    assert application.window.page.name == "Server"
    assert page.tabs.currentIndex() == OTHERS
    launch = page.connections.launches.form.launch
    assert (launch.model, launch.settings) == ("/models/large", {"--tensor-parallel-size": "2"})


@pytest.mark.slow
def test_so_does_a_model_that_was_opened_with_one(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    store = application.settings
    store.recent = [RecentModel("/models/large", settings={PIPELINE: 3, "seed": 7})]
    application.session.open("/models/large")
    qtbot.waitUntil(lambda: application.session.is_open("/models/large"), timeout=3000)
    notice = application.notices.notice("parallel")
    assert notice is not None and "--pipeline-parallel-size 3" in notice.cause
    assert store.settings_of("/models/large", "auto") == {"seed": 7}
    application.notices.dismiss("parallel")
    open_model(qtbot, application, "/models/other")
    assert application.notices.notice("parallel") is None

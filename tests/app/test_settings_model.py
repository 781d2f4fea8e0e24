"""Collecting, sending, answering and undoing settings; how they are shown and copied. No Qt."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.panels.setting_specs import Machine, is_choosable, sections
from app.panels.settings_model import SettingsModel, costliest
from app.panels.vllm_command import VLLM_FLAGS, vllm_command, without_vllm_flag
from engine.config import SETTINGS, Change, EngineConfig

RESOLVED = EngineConfig(model="/m", dtype="float32", max_model_len=2048, num_threads=2)


def opened(**chosen: Any) -> SettingsModel:
    model = SettingsModel()
    model.open(RESOLVED.replace(**chosen), chosen)
    return model


def test_a_live_change_is_sent_at_once_and_can_be_undone() -> None:
    model = opened()
    sent = model.choose("max_num_seqs", 32)
    assert sent is not None and sent.changes == {"max_num_seqs": 32}
    assert model.shown("max_num_seqs") == 32
    model.accept(RESOLVED.replace(max_num_seqs=32))
    assert model.chosen == {"max_num_seqs": 32}
    back = model.undo()
    assert back is not None and back.changes == {"max_num_seqs": 16}
    model.accept(RESOLVED)
    assert model.chosen == {} and not model.can_undo


def test_a_live_change_can_be_taken_back_before_it_is_answered() -> None:
    model = opened()
    model.choose("max_num_seqs", 32)
    back = model.choose("max_num_seqs", 16)
    assert back is not None and back.changes == {"max_num_seqs": 16}
    model.accept(RESOLVED.replace(max_num_seqs=32))
    assert model.shown("max_num_seqs") == 16  # still on its way
    model.accept(RESOLVED)
    assert model.chosen == {} and model.shown("max_num_seqs") == 16


def test_costly_changes_are_collected_and_applied_together() -> None:
    model = opened()
    assert model.choose("block_size", 32) is None
    assert model.choose("dtype", "bfloat16") is None
    assert model.pending == {"block_size": 32, "dtype": "bfloat16"}
    assert costliest(model.pending) is Change.RELOAD
    sent = model.apply()
    assert sent is not None and sent.changes == {"block_size": 32, "dtype": "bfloat16"}
    assert not model.pending and model.shown("block_size") == 32


def test_going_back_by_hand_leaves_nothing_pending() -> None:
    model = opened()
    model.choose("block_size", 32)
    model.choose("block_size", 16)
    assert not model.pending
    model.choose("max_model_len", 1024)
    model.choose("max_model_len", None)  # as it was chosen, though 2048 is what it came to
    assert not model.pending


def test_undo_first_drops_what_was_not_applied() -> None:
    model = opened()
    model.choose("max_num_seqs", 32)
    model.accept(RESOLVED.replace(max_num_seqs=32))
    model.choose("block_size", 64)
    assert model.undo() is None and not model.pending
    again = model.undo()
    assert again is not None and again.changes == {"max_num_seqs": 16}


def test_a_refused_change_leaves_the_value_before_and_no_history() -> None:
    model = opened()
    model.choose("block_size", 64)
    model.apply()
    failed = model.reject(RESOLVED)
    assert failed is not None and failed.changes == {"block_size": 64}
    assert model.shown("block_size") == 16 and not model.can_undo and model.chosen == {}


def test_defaults_undo_what_was_chosen_and_leave_what_was_resolved() -> None:
    model = opened(max_num_seqs=4, block_size=8)
    sent = model.reset()
    assert sent is not None and sent.changes == {"max_num_seqs": 16, "block_size": 16}
    model.accept(RESOLVED)
    assert model.chosen == {}
    assert model.reset() is None


def test_undo_goes_back_to_auto_and_not_to_what_auto_came_to() -> None:
    model = opened()
    model.choose("dtype", "bfloat16")
    model.apply()
    model.accept(RESOLVED.replace(dtype="bfloat16"))
    sent = model.undo()
    assert sent is not None and sent.changes == {"dtype": "auto"}


LIVE = st.sampled_from(["max_num_seqs", "max_num_batched_tokens"])


@given(st.lists(st.tuples(LIVE, st.integers(1, 512)), max_size=12))
def test_undoing_everything_comes_back_to_the_beginning(changes: list[tuple[str, int]]) -> None:
    model = opened()
    config = RESOLVED
    for name, value in changes:
        sent = model.choose(name, value)
        if sent is not None:
            config = config.replace(**sent.changes)
            model.accept(config)
    while model.can_undo:
        sent = model.undo()
        assert sent is not None
        config = config.replace(**sent.changes)
        model.accept(config)
    assert config == RESOLVED and model.chosen == {}


# How they are shown ------------------------------------------------------------------------------


def test_every_setting_with_a_choice_has_a_row_with_its_badge() -> None:
    rows = {spec.name: spec for specs in sections(Machine()).values() for spec in specs}
    assert set(rows) == {name for name, s in SETTINGS.items() if is_choosable(s)}
    for name, spec in rows.items():
        assert spec.badge == SETTINGS[name].change.value
        assert SETTINGS[name].help in spec.help


def test_usual_values_are_allowed_ascending_and_include_the_default() -> None:
    for specs in sections(Machine(num_cpus=4)).values():
        for spec in specs:
            assert list(spec.steps) == sorted(set(spec.steps))
            default = SETTINGS[spec.name].default
            for step in spec.steps:
                SETTINGS[spec.name].check(SETTINGS[spec.name].type(step))
            if spec.steps and default is not None:
                assert default in spec.steps


# The command line of a server -------------------------------------------------------------------


def test_vllm_command_has_only_its_flags_and_survives_a_shell() -> None:
    config = EngineConfig(
        model="/models/my model's", max_num_seqs=8, block_size=32, enable_prefix_caching=False,
        dtype="bfloat16", max_model_len=4096, batching="static", watermark=0.1,
    )  # fmt: skip
    words = shlex.split(vllm_command(config))
    assert words[:3] == ["vllm", "serve", "/models/my model's"]
    flags = {word for word in words if word.startswith("--")}
    known = {SETTINGS[name].flag for name in VLLM_FLAGS}
    assert flags <= known | {"--no-enable-prefix-caching", "--no-enable-chunked-prefill"}
    assert "--no-enable-prefix-caching" in flags and "--batching" not in flags
    assert words[words.index("--max-num-seqs") + 1] == "8"
    assert words[words.index("--block-size") + 1] == "32"
    assert without_vllm_flag(config) == ["Batching", "Watermark"]


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_vllm_command_quotes_any_path(path: str) -> None:
    assert shlex.split(vllm_command(EngineConfig(model=path)))[2] == path

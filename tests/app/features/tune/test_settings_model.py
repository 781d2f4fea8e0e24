"""Collecting, sending, answering, undoing and redoing settings; how they are shown. No Qt."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.features.tune.settings_model import SettingsModel, costliest
from app.window.setting_specs import Machine, help_of, is_choosable, sections
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
    sent = model.choose_all({})
    assert sent is not None and sent.changes == {"max_num_seqs": 16, "block_size": 16}
    model.accept(RESOLVED)
    assert model.chosen == {}
    assert model.choose_all({}) is None


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


def answered(model: SettingsModel, config: EngineConfig, sent: Any) -> EngineConfig:
    """The engine takes what was sent."""
    assert sent is not None
    config = config.replace(**sent.changes)
    model.accept(config)
    return config


def test_what_was_undone_can_be_done_again_until_something_else_is_changed() -> None:
    model = opened()
    config = answered(model, RESOLVED, model.choose("max_num_seqs", 32))
    config = answered(model, config, model.undo())
    assert model.can_redo and not model.can_undo
    config = answered(model, config, model.redo())
    assert config.max_num_seqs == 32 and model.can_undo and not model.can_redo
    config = answered(model, config, model.undo())
    answered(model, config, model.choose("watermark", 0.1))
    assert not model.can_redo and model.redo() is None


def test_an_undo_that_is_refused_can_be_tried_again() -> None:
    model = opened()
    model.choose("block_size", 64)
    bigger = answered(model, RESOLVED, model.apply())
    model.undo()
    model.reject(bigger)
    assert model.can_undo and not model.can_redo
    answered(model, bigger, model.undo())
    model.redo()
    model.reject(RESOLVED)
    assert model.can_redo


@given(st.lists(st.tuples(LIVE, st.integers(1, 512)), min_size=1, max_size=8), st.integers(1, 8))
def test_redoing_what_was_undone_comes_back_to_the_end(
    changes: list[tuple[str, int]], steps: int
) -> None:
    model, config = opened(), RESOLVED
    for name, value in changes:
        sent = model.choose(name, value)
        if sent is not None:
            config = answered(model, config, sent)
    end, chosen = config, dict(model.chosen)
    done = 0
    while model.can_undo and done < steps:
        config = answered(model, config, model.undo())
        done += 1
    for _ in range(done):
        config = answered(model, config, model.redo())
    assert config == end and model.chosen == chosen and not model.can_redo


def test_a_profile_is_one_step_and_resets_what_it_does_not_name() -> None:
    model = opened(max_num_seqs=4, block_size=8)
    sent = model.choose_all({"max_num_seqs": 64, "dtype": "bfloat16"})
    assert sent is not None
    assert sent.changes == {"max_num_seqs": 64, "dtype": "bfloat16", "block_size": 16}
    config = answered(model, RESOLVED.replace(max_num_seqs=4, block_size=8), sent)
    assert model.chosen == {"max_num_seqs": 64, "dtype": "bfloat16"}
    assert model.choose_all(model.chosen) is None
    back = model.undo()
    assert back is not None and back.changes == {
        "max_num_seqs": 4, "dtype": "auto", "block_size": 8,
    }  # fmt: skip
    answered(model, config, back)
    assert model.chosen == {"max_num_seqs": 4, "block_size": 8}


# How they are shown ------------------------------------------------------------------------------


def test_every_setting_with_a_choice_has_a_row_with_its_badge() -> None:
    rows = {spec.name: spec for specs in sections(Machine()).values() for spec in specs}
    assert set(rows) == {name for name, s in SETTINGS.items() if is_choosable(s)}
    for name, spec in rows.items():
        assert spec.badge == SETTINGS[name].change.value
        assert help_of(SETTINGS[name]) in spec.help


def test_usual_values_are_allowed_ascending_and_include_the_default() -> None:
    for specs in sections(Machine(num_cpus=4)).values():
        for spec in specs:
            assert list(spec.steps) == sorted(set(spec.steps))
            default = SETTINGS[spec.name].default
            for step in spec.steps:
                value = int(step) if spec.all else step  # a number as text beside two words
                SETTINGS[spec.name].check(SETTINGS[spec.name].type(value))
            if spec.steps and default is not None:
                assert default in (*spec.steps, spec.auto)

"""Workloads are seeded, have the lengths they say, and avoid the model's special tokens."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from app.bench.load import Pace
from app.bench.workload import (
    Length,
    Workload,
    fixed,
    of_prompts,
    preset,
    preset_names,
    special_token_ids,
    usable_token_ids,
)
from app.paths import starter_model
from engine.errors import ConfigError

VOCABULARY = list(range(10, 500))


def test_the_presets_of_the_field_are_there() -> None:
    assert {"voice-bot", "query-rewrite", "shared-system-prompt", "mixed-lengths"} <= set(
        preset_names()
    )


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_lengths_it_says(name: str) -> None:
    workload = preset(name)
    assert workload.title
    assert workload.description
    for variant, shared in workload.variants.items():
        requests = workload.requests(variant, VOCABULARY, seed=1)
        assert len(requests) == workload.num_requests
        for request in requests:
            assert workload.input.low <= len(request.prompt_token_ids) <= workload.input.high
            assert workload.output.low <= request.output_len <= workload.output.high
            assert request.output_len <= request.max_tokens
            assert (
                len(request.prompt_token_ids) + request.max_tokens <= workload.longest_request
            )
            assert set(request.prompt_token_ids) <= set(VOCABULARY)
        beginnings = {request.prompt_token_ids[:shared] for request in requests}
        assert len(beginnings) == 1  # of length 0 where nothing is shared
        assert len({request.prompt_token_ids for request in requests}) > 1


def test_the_voice_bot_is_the_field_s() -> None:
    requests = preset("voice-bot").requests("unique", VOCABULARY, seed=0)
    mean = sum(len(r.prompt_token_ids) for r in requests) / len(requests)
    assert mean == pytest.approx(1950, abs=50)
    assert {r.output_len for r in requests} == {200}


def test_unknown_presets_are_refused_with_the_known() -> None:
    with pytest.raises(ConfigError, match="voice-bot"):
        preset("../voice-bot")


def test_equal_seeds_repeat_and_salts_keep_the_lengths() -> None:
    workload = preset("mixed-lengths")
    first = workload.requests("unique", VOCABULARY, seed=5, salt=1)
    assert workload.requests("unique", VOCABULARY, seed=5, salt=1) == first
    salted = workload.requests("unique", VOCABULARY, seed=5, salt=2)
    assert salted != first
    assert [(len(r.prompt_token_ids), r.output_len) for r in salted] == [
        (len(r.prompt_token_ids), r.output_len) for r in first
    ]
    other = workload.requests("unique", VOCABULARY, seed=6, salt=1)
    assert [r.output_len for r in other] != [r.output_len for r in first]


@pytest.mark.parametrize("name", preset_names())
def test_a_stream_goes_on_with_equal_lengths_and_one_beginning(name: str) -> None:
    workload = preset(name)
    for variant, shared in workload.variants.items():
        one, other = (
            list(islice(workload.stream(variant, VOCABULARY, 3, salt), 2 * workload.num_requests))
            for salt in (0, 1)
        )
        lengths = [(len(r.prompt_token_ids), r.output_len) for r in one]
        assert lengths == [(len(r.prompt_token_ids), r.output_len) for r in other]
        first = workload.requests(variant, VOCABULARY, seed=3)
        assert lengths[: len(first)] == [(len(r.prompt_token_ids), r.output_len) for r in first]
        assert len({r.prompt_token_ids[:shared] for r in one}) == 1
        assert one[0].prompt_token_ids != other[0].prompt_token_ids


def test_variants_do_equal_work() -> None:
    workload = preset("shared-system-prompt")
    lengths = [
        [(len(r.prompt_token_ids), r.output_len) for r in workload.requests(v, VOCABULARY, seed=2)]
        for v in workload.variants
    ]
    assert lengths[0] == lengths[1]


def test_fixed_lengths_are_fixed() -> None:
    requests = fixed(7, 3, 4).requests("unique", VOCABULARY, seed=0)
    assert [(len(r.prompt_token_ids), r.output_len, r.max_tokens) for r in requests] == [
        (7, 3, 3)
    ] * 4


def test_a_log_normal_length_has_its_median() -> None:
    length = Length(1, 10_000, median=60, sigma=0.9)
    rng = random.Random(0)
    drawn = sorted(length.draw(rng) for _ in range(2001))
    assert drawn[1000] == pytest.approx(60, rel=0.1)
    assert drawn[-1] > 5 * drawn[1000]


def test_special_tokens_are_found_and_avoided(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 3]}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"pad_token_id": 4}))
    tokens = [{"id": 5, "special": True}, {"id": 6, "special": False}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"7": {}}}))
    special = special_token_ids(tmp_path)
    assert special == {1, 2, 3, 4, 5, 7}
    assert usable_token_ids(9, special) == [0, 6, 8]


def test_the_starter_model_s_end_of_turn_is_special() -> None:
    from engine.models.checkpoint import Checkpoint

    assert Checkpoint.open(starter_model()).eos_token_ids <= special_token_ids(starter_model())


def test_poisson_arrivals_have_their_rate_and_are_seeded() -> None:
    due = Pace(request_rate=4.0).due_times(2000, seed=1)
    assert due[0] == 0
    assert due == sorted(due)
    assert due[-1] / 1999 == pytest.approx(1 / 4, rel=0.1)
    assert Pace(request_rate=4.0).due_times(2000, seed=1) == due
    assert Pace(request_rate=4.0).due_times(2000, seed=2) != due


def test_without_a_rate_everything_is_due_at_once() -> None:
    assert Pace(concurrency=2).due_times(3, seed=0) == [0, 0, 0]


def test_the_longest_request_counts_the_allowance() -> None:
    workload = Workload("w", "W", 1, Length(5, 9), Length(1, 4), max_tokens=20)
    assert workload.longest_request == 29


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    chat = [{"role": "user", "content": "b"}]
    entries = ({"prompt": "a", "max_tokens": 3}, {"messages": chat, "max_tokens": 5})
    file.write_text("".join(json.dumps(one) + "\n" for one in entries))
    return file


def test_the_prompts_of_a_file_are_repeated_in_order(questions: Path) -> None:
    work = of_prompts(questions, num_requests=5)
    requests = work.requests("unique", VOCABULARY, seed=0)
    assert [r.output_len for r in requests] == [3, 5, 3, 5, 3]
    assert (work.output.low, work.output.high) == (3, 5)
    of_seven = of_prompts(questions, output_len=7).requests("unique", VOCABULARY, 0)
    assert [r.output_len for r in of_seven] == [7, 7]


def test_a_chat_model_gets_messages_unless_told_otherwise(questions: Path) -> None:
    user = lambda text: ({"role": "user", "content": text},)
    sent = lambda work: [r.prompt for r in work.requests("unique", VOCABULARY, seed=0)]
    assert sent(of_prompts(questions).for_model(True)) == [user("a"), user("b")]
    assert sent(of_prompts(questions).for_model(False)) == ["a", user("b")]
    assert sent(of_prompts(questions, is_raw=True).for_model(True)) == ["a", user("b")]

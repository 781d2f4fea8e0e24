"""Flags come from the registries, each of them, and refuse what the registries refuse."""

from __future__ import annotations

import argparse
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.main import Parser, build_parser
from app.cli.options import (
    add_engine_options,
    add_sampling_options,
    engine_config,
    sampling_params,
)
from app.paths import starter_model
from app.units import parse_bytes, setting_value
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError
from engine.sampling_params import SamplingParams
from engine.units import bytes_text


def parse_engine(*argv: str) -> EngineConfig:
    parser = Parser(prog="test")
    add_engine_options(parser)
    return engine_config(parser.parse_args(argv))


def parse_sampling(*argv: str) -> SamplingParams:
    parser = Parser(prog="test")
    add_sampling_options(parser)
    return sampling_params(parser.parse_args(argv))


def test_every_setting_has_its_flag() -> None:
    parser = Parser(prog="test")
    add_engine_options(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {setting.flag for setting in SETTINGS.values()} <= flags


def test_without_flags_it_is_the_default_on_the_starter_model() -> None:
    assert parse_engine() == EngineConfig(model=str(starter_model()))


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--model", "/m"], "model", "/m"),
        (["--max-num-seqs", "3"], "max_num_seqs", 3),
        (["--watermark", "0.1"], "watermark", 0.1),
        (["--dtype", "float32"], "dtype", "float32"),
        (["--kv-cache-dtype", "fp8"], "kv_cache_dtype", "fp8"),
        (["--kv-cache-dtype", "k=int8,v=fp8"], "kv_cache_dtype", "k=int8,v=fp8"),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--enable-chunked-prefill"], "enable_chunked_prefill", True),
        (["--kv-cache-memory-bytes", "512MiB"], "kv_cache_memory_bytes", 512 * 2**20),
        (["--max-model-len", "auto"], "max_model_len", None),
        (["--kv-allocation", "contiguous"], "kv_allocation", "contiguous"),
    ],
)
def test_a_flag_sets_its_setting(argv: list[str], name: str, value: object) -> None:
    config = parse_engine(*argv)
    assert getattr(config, name) == value
    assert set(config.differences(parse_engine())) <= {name}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--block-size", "0"], ("--block-size", "1 to 1,024 tokens")),
        (["--block-size", "many"], ("'many'", "integer")),
        (["--dtype", "float8"], ("'float8'", "bfloat16")),
        (["--watermark", "nan"], ("nan", "0 to 0.5")),
        (["--watermark", "2"], ("2", "0 to 0.5")),
        (["--kv-cache-memory-bytes", "2 apples"], ("'2 apples'", "2GiB")),
        (["--seed", "-1"], ("-1", "0 to ")),
        (["--kv-cache-dtype", "k=int8"], ("k=int8", "k=int8,v=fp8")),
    ],
)
def test_an_impossible_value_is_refused_with_what_is_possible(
    argv: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse_engine(*argv)
    assert end.value.code == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["true", "ON", "1"])
def test_a_switch_as_text(text: str) -> None:
    assert setting_value(SETTINGS["enable_prefix_caching"], text) is True


def test_a_switch_that_is_neither() -> None:
    with pytest.raises(ConfigError, match="perhaps"):
        setting_value(SETTINGS["enable_prefix_caching"], "perhaps")


def test_the_model_of_the_window_does_not_shadow_that_of_a_command() -> None:
    args = build_parser().parse_args(["generate", "--prompt", "x"])
    assert engine_config(args).model == str(starter_model())
    args = build_parser().parse_args(["generate", "--prompt", "x", "--model", "/m"])
    assert engine_config(args).model == "/m"


def test_one_flag_for_each_sampling_parameter() -> None:
    parser = Parser(prog="test", add_help=False)
    add_sampling_options(parser)
    fields = [field.name for field in dataclasses.fields(SamplingParams)]
    assert sorted(action.dest for action in parser._actions) == sorted(fields)


def test_sampling_defaults_differ_from_the_library_in_max_tokens_alone() -> None:
    assert parse_sampling() == SamplingParams(max_tokens=256)


def test_every_sampling_flag_reaches_its_parameter() -> None:
    params = parse_sampling(
        "--max-tokens", "9", "--temperature", "0.5", "--top-k", "4", "--top-p", "0.9",
        "--min-p", "0.1", "--repetition-penalty", "1.1", "--presence-penalty", "0.2",
        "--frequency-penalty", "0.3", "--logit-bias", "5=-100", "--logit-bias", "6=1.5",
        "--seed", "7", "--logprobs", "3", "--min-tokens", "2", "--stop", "a", "--stop", "b",
        "--stop-token-ids", "8, 9", "--ignore-eos", "--include-stop-str-in-output",
    )  # fmt: skip
    assert params == SamplingParams(
        max_tokens=9, temperature=0.5, top_k=4, top_p=0.9, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.3, logit_bias={5: -100.0, 6: 1.5}, seed=7,
        logprobs=3, min_tokens=2, stop=("a", "b"), stop_token_ids=(8, 9), ignore_eos=True,
        include_stop_str_in_output=True,
    )  # fmt: skip


def test_logprobs_alone_and_no_limit() -> None:
    params = parse_sampling("--logprobs", "--max-tokens", "none")
    assert (params.logprobs, params.max_tokens) == (0, None)


@pytest.mark.parametrize("argv", [["--logit-bias", "5"], ["--stop-token-ids", "a"]])
def test_malformed_pairs_and_lists_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_sampling(*argv)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("2GiB", 2 * 2**30), ("1.5 GB", 1_500_000_000), ("512m", 512 * 2**20),
     ("0b", 0)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@given(st.integers(0, 2**50))
def test_a_formatted_size_reads_back_within_its_digits(size: int) -> None:
    assert parse_bytes(bytes_text(size)) == pytest.approx(size, rel=0.005)


def test_the_namespace_holds_what_was_given_and_nothing_else() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    add_sampling_options_names = vars(parser.parse_args(["--block-size", "8"]))
    assert add_sampling_options_names == {"block_size": 8}

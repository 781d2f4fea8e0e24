"""The settings as command lines of other servers: only flags that they have, nothing dropped."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from app.features.tune.server_commands import DRAFT_SETTINGS as SETTINGS_OF_IT
from app.features.tune.server_commands import (
    UNTRANSLATED,
    Facts,
    ServerCommand,
)
from app.features.tune.servers import (
    SERVERS,
    sglang_command,
    tensorrt_llm_command,
    vllm_command,
)
from engine.config import SETTINGS, EngineConfig
from tests.figures import numbers

BASE = EngineConfig(
    model="/models/my model's", dtype="bfloat16", max_model_len=4096, max_num_batched_tokens=512
)

OTHER: dict[str, Any] = {
    "load_format": "dummy", "seed": 7, "max_num_seqs": 8, "max_num_batched_tokens": 1024,
    "batching": "static", "enable_prefix_caching": False, "enable_chunked_prefill": False,
    "watermark": 0.1, "block_size": 32, "kv_cache_memory_bytes": 2**30,
    "gpu_memory_utilization": 0.7, "kv_allocation": "contiguous",
    "quantization": "nf4", "quantization_head": "int8", "kv_cache_dtype": "fp8",
    "enforce_eager": True, "gpu_layers": "20",
}  # fmt: skip
"""A value of each setting that is not its default."""

WITH_OTHERS = (*UNTRANSLATED, *SETTINGS_OF_IT, "quantization_group_size")
CHECKED = [name for name in SETTINGS if name not in WITH_OTHERS]
"""What says something by itself."""


def words(command: ServerCommand) -> list[str]:
    """The command line as the shell splits it, without the file in front of it."""
    text = command.text.rpartition("\nEOF\n")[2]
    return shlex.split(text.replace("\\\n", ""))


def option(command: ServerCommand, flag: str) -> str:
    found = words(command)
    return found[found.index(flag) + 1]


def test_vllm_has_our_names_and_its_own_negation() -> None:
    command = vllm_command(BASE.replace(max_num_seqs=8, enable_prefix_caching=False, watermark=0.1))
    assert words(command)[:3] == ["vllm", "serve", "/models/my model's"]
    assert option(command, "--max-num-seqs") == "8" and option(command, "--dtype") == "bfloat16"
    assert "--no-enable-prefix-caching" in words(command) and "--batching" not in words(command)
    assert command.missing == ("Watermark (10 %)",)
    assert numbers(vllm_command(BASE.replace(block_size=8)).notes[0]) == [8, 16]


def test_sglang_says_the_same_in_its_own_words() -> None:
    command = sglang_command(BASE.replace(enable_prefix_caching=False, block_size=32))
    assert option(command, "--model-path") == "/models/my model's"
    assert option(command, "--max-running-requests") == "16"
    assert option(command, "--chunked-prefill-size") == "512"
    assert option(command, "--context-length") == "4096" and option(command, "--page-size") == "32"
    assert {"--disable-radix-cache", "--enable-mixed-chunk"} <= set(words(command))
    eager = BASE.replace(enforce_eager=True)
    assert "--disable-cuda-graph" in words(sglang_command(eager))
    assert "--enforce-eager" in words(vllm_command(eager))
    whole = sglang_command(BASE.replace(enable_chunked_prefill=False))
    assert option(whole, "--chunked-prefill-size") == "-1"
    assert "--enable-mixed-chunk" not in words(whole)


def test_tensorrt_llm_takes_the_rest_from_a_file() -> None:
    command = tensorrt_llm_command(BASE.replace(enable_prefix_caching=False))
    assert option(command, "--max_batch_size") == "16"
    assert option(command, "--max_num_tokens") == "512"
    file = option(command, "--extra_llm_api_options")
    head, _, rest = command.text.partition("\n")
    assert head == f"cat > {file} <<'EOF'"
    assert rest.partition("\nEOF\n")[0].splitlines() == [
        "dtype: bfloat16",
        "enable_chunked_prefill: true",
        "kv_cache_config:",
        "  enable_block_reuse: false",
        "  tokens_per_block: 16",
    ]
    for budget in (512, None):
        whole = BASE.replace(enable_chunked_prefill=False, max_num_batched_tokens=budget)
        command = tensorrt_llm_command(whole)
        assert option(command, "--max_num_tokens") == str(4096 + 16)  # a whole prompt in one step


@pytest.mark.parametrize("make", SERVERS)
def test_an_automatic_budget_is_left_to_the_server(make: Any) -> None:
    command = make(BASE.replace(max_num_batched_tokens=None))
    flags = ("--max-num-batched-tokens", "--chunked-prefill-size", "--max_num_tokens")
    assert not set(flags) & set(words(command)) and command.missing == ()


def test_a_cache_size_is_given_in_tokens_where_they_are_known() -> None:
    config = BASE.replace(kv_cache_memory_bytes=2**30)
    assert option(vllm_command(config), "--kv-cache-memory-bytes") == str(2**30)
    assert option(sglang_command(config, Facts(9000)), "--max-total-tokens") == "9000"
    assert "  max_tokens: 9000\n" in tensorrt_llm_command(config, Facts(9000)).text
    for make in (sglang_command, tensorrt_llm_command):
        assert make(config).missing == (f"{SETTINGS['kv_cache_memory_bytes'].label} (1.00 GiB)",)


@pytest.mark.parametrize("make", SERVERS)
@pytest.mark.parametrize("name", CHECKED)
def test_no_setting_is_dropped_silently(make: Any, name: str) -> None:
    """Changing it changes the command, or it is named as missing."""
    value = OTHER.get(name, getattr(BASE, name))
    before, after = make(BASE, Facts(4096)), make(BASE.replace(**{name: value}), Facts(4096))
    if value == getattr(BASE, name):
        assert str(value) in after.text
    else:
        is_named = any(SETTINGS[name].label in words for words in after.missing)
        assert is_named != (after.text != before.text)


def test_the_kv_precision_has_the_name_that_each_server_gives_it() -> None:
    fp8, int8 = (BASE.replace(kv_cache_dtype=name) for name in ("fp8", "int8"))
    assert option(vllm_command(fp8), "--kv-cache-dtype") == "fp8_per_token_head"
    assert option(vllm_command(int8), "--kv-cache-dtype") == "int8_per_token_head"
    assert any("int8_per_token_head" in note for note in vllm_command(int8).notes)
    assert option(sglang_command(fp8), "--kv-cache-dtype") == "fp8_e4m3"
    assert "  dtype: fp8\n" in tensorrt_llm_command(fp8).text
    for make in (sglang_command, tensorrt_llm_command):
        assert make(fp8).notes
        assert make(int8).missing == (f"{SETTINGS['kv_cache_dtype'].label} (INT8)",)
        assert "scale" not in make(int8).comments and "KV" not in make(BASE).comments


@pytest.mark.parametrize("make", SERVERS)
def test_keys_and_values_of_their_own_are_missing_everywhere(make: Any) -> None:
    split = make(BASE.replace(kv_cache_dtype="k=int8,v=fp8"))
    assert split.missing == (f"{SETTINGS['kv_cache_dtype'].label} (K INT8, V FP8)",)
    assert split.text == make(BASE).text
    same = make(BASE.replace(kv_cache_dtype="k=fp8,v=fp8"))  # only another way to write it
    assert same == make(BASE.replace(kv_cache_dtype="fp8"))


@pytest.mark.parametrize("make", SERVERS)
def test_a_division_that_no_server_makes_is_told(make: Any) -> None:
    divided = Facts(9000, "bfloat16", host_layers=12)
    whole, said = make(BASE, Facts(9000, "bfloat16")), make(BASE, divided)
    assert said.text == whole.text and not said.missing
    assert "12 layers" in said.comments and said.server in said.comments
    assert ("--cpu-offload-gb" in said.comments) == (said.server == "vLLM")
    assert make(BASE.replace(gpu_layers="all"), Facts(9000, "bfloat16")) == whole
    assert make(BASE.replace(gpu_layers="20"), divided).missing == ("GPU layers (20)",)


DRAFTING = BASE.replace(
    speculative_method="draft_model",
    speculative_model="/models/the draft",
    num_speculative_tokens=3,
)

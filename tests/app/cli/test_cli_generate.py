"""`inferdeck generate` on the starter model: streamed text, one JSON object, or a clear error."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.paths import starter_draft, starter_model
from tests.figures import numbers

GREEDY = [
    "--temperature", "0", "--num-threads", "1", "--kv-cache-memory-bytes", "16MiB",
    "--max-num-batched-tokens", "512",
]  # fmt: skip
TOKENS = [*GREEDY, "--ignore-eos", "--max-tokens"]


def generate(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["generate", *argv])
    return code, *capsys.readouterr()


def generate_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, out, err = generate(capsys, "--json", *argv)
    assert code == 0, err
    assert out.endswith("\n")
    assert out.count("\n") == 1
    return dict(json.loads(out))


def test_the_object_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    result = generate_json(capsys, "--prompt", "What is", *TOKENS, "5")
    assert set(result) == {
        "text", "token_ids", "logprobs", "finish_reason", "num_prompt_tokens",
        "num_cached_tokens", "metrics", "speculative",
    }  # fmt: skip
    assert result["finish_reason"] == "length"
    assert len(result["token_ids"]) == 5
    assert result["num_prompt_tokens"] > 0
    assert result["num_cached_tokens"] == 0
    assert result["logprobs"] is None
    assert result["speculative"] == {"drafted": 0, "accepted": 0, "per_position": []}
    metrics = result["metrics"]
    assert len(metrics["itl_ms"]) == 4
    assert metrics["ttft_ms"] + sum(metrics["itl_ms"]) == pytest.approx(metrics["e2e_ms"], rel=0.05)


@pytest.mark.slow
def test_a_draft_model_gives_the_same_tokens_in_fewer_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = ["--chat", "What is TTFT?", *TOKENS, "40"]
    plain = generate_json(capsys, *prompt)
    draft = ["--speculative-method", "draft_model", "--speculative-model", str(starter_draft())]
    drafting = generate_json(capsys, *prompt, *draft, "--no-speculative-adaptive")
    assert drafting["token_ids"] == plain["token_ids"]
    figures = drafting["speculative"]
    assert 0 < figures["accepted"] <= figures["drafted"]
    assert sum(figures["per_position"]) == figures["accepted"]
    _, _, summary = generate(capsys, *prompt, *draft)
    assert "accepted" in summary


def test_a_draft_that_does_not_fit_the_model_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    larger = ["--speculative-method", "draft_model", "--speculative-model", str(starter_model())]
    code, out, err = generate(capsys, "--model", str(starter_draft()), "--prompt", "x", *larger)
    assert (code, out) == (2, "")
    draft, target = numbers(err)[:2]
    assert draft > target > 0 and "parameters" in err


def test_logprobs_stand_beside_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    result = generate_json(
        capsys, "--prompt", "What is", "--logprobs", "2", *TOKENS, "4"
    )
    assert len(result["logprobs"]) == len(result["token_ids"]) == 4
    for token, logprob, top in zip(
        result["token_ids"], result["logprobs"], result["top_logprobs"], strict=True
    ):
        # greedy: what was chosen is the best alternative
        assert len(top) == 2
        assert (top[0]["token_id"], top[0]["logprob"]) == (token, pytest.approx(logprob, abs=1e-5))
        assert logprob <= 0


def test_text_and_token_ids_are_the_same_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    from app.paths import starter_model
    from engine.text.tokenizer import Tokenizer

    ids = Tokenizer.from_folder(starter_model(), allow_missing=False).encode("What is paging?")
    by_ids = generate_json(
        capsys, "--prompt-token-ids", ",".join(map(str, ids)), *TOKENS, "8"
    )
    by_text = generate_json(capsys, "--prompt", "What is paging?", *TOKENS, "8")
    assert by_ids["token_ids"] == by_text["token_ids"]


def test_the_streamed_text_is_the_text_of_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--chat", "What is TTFT?", "--max-tokens", "30", *GREEDY]
    expected = generate_json(capsys, *argv)["text"]
    code, out, err = generate(capsys, *argv)
    assert (code, out) == (0, expected + "\n")
    assert "TTFT" in err
    assert 30 in numbers(err)


def test_the_system_prompt_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    plain = generate_json(capsys, "--chat", "Hello", "--max-tokens", "1", *GREEDY)
    told = generate_json(
        capsys, "--chat", "Hello", "--system", "Be brief.", "--max-tokens", "1", *GREEDY
    )
    assert told["num_prompt_tokens"] > plain["num_prompt_tokens"]


def test_the_prompt_comes_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = generate_json(capsys, "--prompt", "Count to ten", *TOKENS, "3")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Count to ten")))
    read = generate_json(capsys, "--prompt", "-", *TOKENS, "3")
    assert read["token_ids"] == given["token_ids"]
    assert read["num_prompt_tokens"] == given["num_prompt_tokens"]


def test_a_seed_repeats_a_sampled_reply(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--prompt", "Once", *TOKENS, "12"]
    first = generate_json(capsys, *argv, "--seed", "3", "--temperature", "1.5")
    again = generate_json(capsys, *argv, "--seed", "3", "--temperature", "1.5")
    other = generate_json(capsys, *argv, "--seed", "4", "--temperature", "1.5")
    assert first["token_ids"] == again["token_ids"]
    assert first["token_ids"] != other["token_ids"]


def test_a_shape_with_random_weights_needs_no_tokenizer(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    result = generate_json(
        capsys, *tiny_flags, "--prompt-token-ids", "5 6 7", "--max-tokens", "3", "--ignore-eos",
        "--temperature", "0",
    )  # fmt: skip
    assert len(result["token_ids"]) == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prompt", "x", "--model", "/no/such/folder"], ("/no/such/folder", "does not exist")),
        (["--prompt", "", *GREEDY], ("prompt is empty",)),
        (["--prompt", "word " * 4000, *GREEDY], ("max_model_len",)),
        (["--prompt", "x", "--max-tokens", "1000", "--kv-cache-memory-bytes", "300KiB"],
         ("1,000", "kv_cache_memory_bytes")),
        (["--prompt-token-ids", "999999", *GREEDY], ("999999",)),
        (["--prompt", "x", "--system", "y"], ("--chat",)),
        (["--prompt", "x", "--max-model-len", "9999999"], ("9,999,999",)),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: tuple[str, ...]
) -> None:
    code, out, err = generate(capsys, "--json", *argv)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_a_truncated_checkpoint_is_named(
    capsys: pytest.CaptureFixture[str], tiny_shape: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(tiny_shape, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"\xff" * 100)
    code, out, err = generate(capsys, "--model", str(damaged), "--prompt", "x")
    assert (code, out) == (2, "")
    assert "model.safetensors" in err


def test_nan_logits_are_a_failure_and_not_a_reply(
    capsys: pytest.CaptureFixture[str], nan_model: Path
) -> None:
    code, out, err = generate(capsys, "--json", "--model", str(nan_model), "--prompt", "x", *GREEDY)
    assert (code, out) == (1, "")
    assert "NaN" in err
    assert "float32" in err


def test_only_one_prompt() -> None:
    with pytest.raises(SystemExit) as end:
        main(["generate", "--prompt", "x", "--chat", "y"])
    assert end.value.code == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT as a terminal does")
def test_ctrl_c_in_mid_reply_ends_quietly() -> None:
    argv = ["--prompt", "Once", "--ignore-eos", "--max-tokens", "none", "--num-threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "generate", *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # a shell's background job ignores Ctrl+C and hands that on to its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(5)  # it is writing
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")

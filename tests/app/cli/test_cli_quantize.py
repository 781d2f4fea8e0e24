"""`inferdeck quantize` on the starter model: a folder that the engine runs, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.cli import quantize
from app.cli.main import build_parser
from app.features.quantize.texts import calibration_texts
from app.paths import starter_draft, starter_model
from engine.errors import ConfigError
from tests.figures import numbers
from tests.tiers import first_fast

QUICK = ["--num-sequences", "4", "--sequence-length", "64"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["quantize", *argv])
    return code, *capsys.readouterr()


def generate(capsys: pytest.CaptureFixture[str], model: Path) -> dict[str, Any]:
    argv = ["--chat", "What is TTFT?", "--temperature", "0", "--max-tokens", "12", "--json"]
    code = main(["generate", "--model", str(model), *argv, "--kv-cache-memory-bytes", "16MiB"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return dict(json.loads(out))


@pytest.mark.parametrize("method", first_fast(1, ["awq", "gptq"]))
def test_a_calibrated_folder_is_written_and_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str
) -> None:
    output = tmp_path / "out"
    code, out, err = run(
        capsys, "--method", method, "--output", str(output), "--model", str(starter_draft()),
        "--group-size", "32", "--exclude", "layers.0.mlp", *QUICK, "--json",
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert result["output"] == str(output)
    assert result["bytes_after"] < result["bytes_before"]
    assert result["recipe"]["method"] == method and result["recipe"]["bits"] == 4
    assert result["calibration"] == {"num_sequences": 4, "num_tokens": 256}
    assert all(layer["output_error"] < 1 for layer in result["layers"])
    assert [name for name in result["kept"] if name.endswith("layers.0.mlp.up_proj")]
    reply = generate(capsys, output)
    assert len(reply["token_ids"]) == 12 or reply["finish_reason"] == "stop"


def test_a_summary_names_sizes_and_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "int8"
    model = starter_draft()
    code, out, _ = run(capsys, "--method", "int8", "--output", str(output), "--model", str(model))
    assert code == 0
    first, second, *rest = out.splitlines()
    assert first == str(output)
    assert second.startswith("1.06 MiB -> ") and "8 bits" in second
    assert rest == []
    assert (output / "model.safetensors").stat().st_size < 1.06 * 2**20


def test_the_text_is_the_users_where_there_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a few words"}\n')
    argv = ["--method", "gptq", "--calibration", str(text), "--output", str(tmp_path / "out")]
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert numbers(err.splitlines()[0])[:2] == [3, 256]
    text.write_text("{")
    assert 1 in numbers(run(capsys, *argv)[2].splitlines()[0].partition(" in ")[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.jsonl"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--method", "awq", "--bits", "8"], " 8-bit "),
        (["--method", "rtn", "--group-size", "48"], "size: 48"),
        (["--method", "int8", "--exclude", "nothing"], "'nothing'"),
        (["--method", "rtn", "--model", "/absent"], "/absent does not exist"),
    ],
)
def test_what_cannot_be_done_is_an_error_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str], words: str
) -> None:
    code, _, err = run(capsys, *argv, "--output", str(tmp_path / "out"))
    assert code == 2
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_every_flag_reaches_the_recipe() -> None:
    args = build_parser().parse_args(
        ["quantize", "--method", "gptq", "--output", "x", "--bits", "8", "--group-size", "64",
         "--no-symmetric", "--exclude", "a", "b", "--exclude", "c", "--num-sequences", "5",
         "--sequence-length", "99", "--desc-act", "--seed", "4"]
    )  # fmt: skip
    recipe = quantize.recipe_of(args)
    assert (recipe.method, recipe.chosen_bits, recipe.group_size) == ("gptq", 8, 64)
    assert (recipe.is_symmetric, recipe.exclude) == (False, ("a", "b", "c"))
    assert (recipe.num_sequences, recipe.sequence_length, recipe.seed) == (5, 99, 4)
    assert recipe.uses_desc_act


def test_built_in_texts_fit_the_model(tmp_path: Path) -> None:
    conversations = calibration_texts(starter_model(), None)
    assert len(conversations) == 400 and not isinstance(conversations[0], str)
    (english,) = calibration_texts(tmp_path, None)
    assert isinstance(english, str) and len(english) > 10_000
    with pytest.raises(ConfigError, match="cannot be read"):
        calibration_texts(starter_model(), tmp_path / "absent.txt")

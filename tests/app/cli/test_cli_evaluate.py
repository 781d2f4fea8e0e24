"""`inferdeck evaluate` on real weights and on a tiny shape: its report, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.cli.main import build_parser
from app.features.quantize.texts import builtin_text
from app.paths import evaluations_dir, starter_model
from app.storage.report_store import ReportStore
from engine.config import EngineConfig
from engine.evaluate import EvaluationTask, from_json, plain, run
from tests.figures import numbers

SHORT = ["--max-tokens", "300", "--context-length", "128", "--num-threads", "1"]


def evaluate(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code = main(["evaluate", "--json", *argv])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out.count("\n") == 1
    return dict(json.loads(out))


def test_the_report_is_that_of_the_library_and_goes_where_it_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    printed = evaluate(
        capsys, "--text", "starter", "--dtype", "bfloat16", "--reference-dtype", "float32",
        "--worst", "3", "--output-json", str(file), "--keep", "My  measurement", *SHORT,
    )  # fmt: skip
    assert json.loads(file.read_text()) == printed
    report = from_json(printed)
    (kept,) = ReportStore(evaluations_dir()).list().reports
    assert (kept.name, kept.report) == ("My measurement", report)

    text = builtin_text("starter").read()
    candidate = EngineConfig(model=str(starter_model()), dtype="bfloat16", num_threads=1)
    expected = run(
        EvaluationTask(
            candidate,
            reference=plain(candidate, dtype="float32"),
            text=text,
            scored=builtin_text("starter").scored(text),
            text_name="starter",
            context_length=128,
            max_tokens=300,
            num_worst=3,
        )
    )
    assert report.divergence == expected.divergence
    assert report.candidate_loss == expected.candidate_loss
    assert report.worst == expected.worst
    assert report.text == expected.text
    assert report.divergence is not None
    assert report.divergence.similarity is not None
    assert report.divergence.similarity.mean > 0.999
    assert report.candidate_loss is not None
    assert report.candidate_loss.perplexity < 3  # of answers like those that it learned from
    assert 0 < report.divergence.kl.mean < 0.01
    assert len(report.worst) == 3


@pytest.mark.slow
def test_people_get_a_table(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello", "max_tokens": 5}\n')
    code = main(
        ["evaluate", *tiny_flags, "--text", "english", "--max-tokens", "250", "--speed",
         "--dtype", "bfloat16", "--reference-dtype", "float32", "--prompts", str(prompts)]
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0, err
    title, scored = out.splitlines()[:2]
    assert "tiny, BF16" in title and "tiny, FP32" in title
    assert numbers(scored)[:4] == [249, 250, 1, 2048]
    header = next(line for line in out.splitlines() if line.split() == ["Reference", "Model"])
    for label in ("Perplexity ", "KL divergence, p99", "Identical answers", "Weights ", "Decode"):
        (line,) = [line for line in out.splitlines() if line.startswith(label)]
        assert len(line) == len(header)  # numbers stand under their column
    assert "Worst tokens" in out
    assert "of 1 answers" in out
    assert "249 tokens" in err


def test_without_anything_to_compare_with_it_is_perplexity(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    flags = [*tiny_flags, "--text", "english", "--max-tokens", "40"]
    assert main(["evaluate", *flags]) == 0
    out, err = capsys.readouterr()
    assert "Perplexity" in out
    assert "Reference" not in out
    assert "--reference" in err
    # named, it is compared even with itself
    folder = tiny_flags[tiny_flags.index("--model") + 1]
    report = evaluate(capsys, *flags, "--reference", folder)
    assert report["divergence"]["kl"]["max"] == 0.0


def test_chunks_of_the_flags_are_used(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str]
) -> None:
    flags = [*tiny_flags, "--text", "english", "--max-tokens", "60", "--dtype", "float32"]
    whole = evaluate(capsys, *flags)
    pieces = evaluate(capsys, *flags, "--max-num-batched-tokens", "7", "--context-length", "30")
    assert pieces["text"]["num_windows"] == 3
    assert pieces["text"]["num_scored"] == whole["text"]["num_scored"] == 59
    assert pieces["candidate"]["config"]["max_num_batched_tokens"] == 7


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty"), (b"\x89PNG\r\n\0", "is not a text"), (b"\xff\xffabc", "UTF-8"),
     (b"too short", "8 tokens")],
)  # fmt: skip
def test_a_text_that_cannot_be_measured_on(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path, data: bytes,
    words: str,
) -> None:  # fmt: skip
    file = tmp_path / "text.txt"
    file.write_bytes(data)
    assert main(["evaluate", *tiny_flags, "--text-file", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "text.txt" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ("text", "prompts")),
        (["--text", "latin"], ("'latin'", "english, starter")),
        (["--text-file", "/no/such.txt"], ("/no/such.txt",)),
        (["--text", "english", "--context-length", "9999"], ("9,999", "4,096")),
        (["--text", "english", "--context-length", "64", "--stride", "64"], ("1 to 63",)),
        (["--text", "english", "--reference", "/no/such"], ("/no/such",)),
        (["--text", "english", "--output-json", "/no/such/x.json"], ("/no/such",)),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], argv: list[str],
    words: tuple[str, ...],
) -> None:  # fmt: skip
    assert main(["evaluate", *tiny_flags, *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err


def test_prompts_need_a_reference_and_sense(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hi"}\n{"prompt": 7}\n')
    assert main(["evaluate", *tiny_flags, "--prompts", str(file)]) == 2
    assert "prompts.jsonl, line 2" in capsys.readouterr().err
    file.write_text('{"prompt": "hi"}\n')
    assert main(["evaluate", *tiny_flags, "--prompts", str(file)]) == 2
    assert "reference" in capsys.readouterr().err.splitlines()[0]


def test_tokenizers_that_differ(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(starter_model(), other)
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    assert main(["evaluate", "--model", str(other), "--reference", str(starter_model()),
                 "--text", "starter"]) == 2  # fmt: skip
    assert numbers(capsys.readouterr().err)[:2] == [2, 2048]


def test_an_interruption_ends_it_cleanly(
    capsys: pytest.CaptureFixture[str], tiny_flags: list[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    from app.cli.session import StatusLine

    def interrupted(self: StatusLine, text: str) -> None:
        if "reading the text" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(StatusLine, "show_at_times", interrupted)
    file = tmp_path / "report.json"
    flags = ["--text", "english", "--max-tokens", "50", "--output-json", str(file), "--keep"]
    assert main(["evaluate", *tiny_flags, *flags]) == 130
    assert capsys.readouterr().out == ""
    assert not file.exists()
    assert not evaluations_dir().exists()


@pytest.mark.parametrize("argv", [["--stride", "0"], ["--max-tokens", "-1"], ["--worst", "x"],
                                  ["--text", "english", "--text-file", "a"]])  # fmt: skip
def test_impossible_numbers_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(["evaluate", *argv])
    assert end.value.code == 2

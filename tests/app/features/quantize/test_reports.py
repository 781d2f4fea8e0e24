"""Reports side by side, exported and kept."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest

from app.features.quantize.texts import BUILTIN_TEXTS, builtin_text
from app.storage.report_export import as_csv, as_json, as_markdown, export, report_text
from app.storage.report_metrics import METRICS, NOTHING, Form, cautions, text_of, title_of
from app.storage.report_store import ReportStore
from app.storage.trash import Trash
from engine.evaluate.report import ReportError, TextFacts, from_json, to_json
from engine.evaluate.task import TextError
from tests.engine.evaluate.reports import make_facts, make_report
from tests.figures import numbers

ALONE = make_report(reference=None, reference_loss=None, divergence=None, worst=(), answers=None)


# What a report says ---------------------------------------------------------------------------


def test_every_metric_reads_its_own_figure() -> None:
    report = make_report()
    assert {m.key: m.value(report) for m in METRICS} == {
        "perplexity": 7.5, "perplexity_change": pytest.approx(7.5 / 7.25 - 1),
        "bits_per_byte": 0.75, "kl_mean": 0.01, "kl_p50": 0.005, "kl_p90": 0.02, "kl_p99": 0.1,
        "kl_max": 0.5, "top1_agreement": 0.97, "similarity_mean": 0.9991, "similarity_p1": 0.99,
        "mean_abs_logprob_change": 0.03, "identical_answers": 0.5, "equal_tokens": 0.75,
        "weights_bytes": 2000, "kv_bytes_per_token": 250.0, "decode_tokens_per_s": 50.5,
        "prefill_tokens_per_s": 1000.0,
    }  # fmt: skip
    references = {m.key: v for m in METRICS if (v := m.reference(report)) is not None}
    assert references == {
        "perplexity": 7.25, "bits_per_byte": 0.74, "weights_bytes": 4000,
        "kv_bytes_per_token": 500.0, "decode_tokens_per_s": 50.5, "prefill_tokens_per_s": 1000.0,
    }  # fmt: skip


def test_figures_that_were_not_measured_are_missing() -> None:
    quiet = dataclasses.replace(ALONE, text=None, candidate_loss=None,
                                candidate=make_facts("float32", 10, speed=None))  # fmt: skip
    present = {m.key for m in METRICS if m.value(quiet) is not None}
    assert present == {"weights_bytes", "kv_bytes_per_token"}
    assert not any(m.reference(quiet) for m in METRICS)


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (Form.NUMBER, 7.25, "7.250"), (Form.NUMBER, 0.01204, "0.0120"),
        (Form.NUMBER, 12345.6, "12,346"),
        (Form.SMALL, 0.0, "0"), (Form.SMALL, 0.01234, "0.0123"), (Form.SMALL, 2.5e-7, "2.50e-07"),
        (Form.SHARE, 0.9756, "97.56%"), (Form.CLOSE_SHARE, 0.99994, "99.994%"),
        (Form.CHANGE, 0.0123, "+1.23%"), (Form.CHANGE, -0.0123, "−1.23%"),
        (Form.BYTES, 2048, "2.00 KiB"), (Form.SHARE, None, NOTHING),
    ],
)  # fmt: skip
def test_values_are_written_for_people(form: Form, value: float | None, text: str) -> None:
    assert text_of(form, value) == text


def test_the_table_of_a_report() -> None:
    text = report_text(make_report())
    first, second = text.splitlines()[:2]
    assert "small, BF16" in first and "small, FP32" in first
    assert second.startswith("story.txt: ") and numbers(second)[:2] == [4000, 4001]
    (ratio,) = [line for line in text.splitlines() if line.startswith("Size vs. reference")]
    assert ratio.split()[-1] == "50.00%"
    assert "…the | small⏎[ cat]" in text
    assert "1 of 2" in text
    (place,) = [line.partition("…Hello")[0] for line in text.splitlines() if "…Hello" in line]
    assert numbers(place) == [1, 1]  # line, tokens
    assert "Reference" not in report_text(ALONE)


# Side by side ---------------------------------------------------------------------------------


def test_what_makes_a_comparison_doubtful_is_said() -> None:
    report = make_report()
    assert report.text is not None
    text = report.text
    others = {
        "text": make_report(text=dataclasses.replace(text, sha256="cd" * 32)),
        "stride": make_report(text=dataclasses.replace(text, stride=100)),
        "reference": make_report(reference=make_facts("bfloat16", 4000)),
        "machine": make_report(machine={"cpu": "another"}),
        "thread": make_report(candidate=make_facts("bfloat16", 2000, config={"num_threads": 7})),
    }
    for word, other in others.items():
        (caution,) = cautions([report, other])
        assert word in caution
    assert cautions([report]) == cautions([report, report]) == ()


def test_titles_name_the_precision() -> None:
    facts = make_facts(
        "bfloat16", 1, quantization="AWQ, 4-bit", config={"kv_cache_dtype": "k=int8,v=fp8"}
    )
    assert title_of(make_report(candidate=facts)) == "small, AWQ, 4-bit, K INT8, V FP8"
    facts = make_facts("bfloat16", 1, config={"kv_cache_dtype": "auto"})
    assert title_of(make_report(candidate=facts)) == "small, BF16"


# Exports --------------------------------------------------------------------------------------


def test_json_is_read_again() -> None:
    assert from_json(json.loads(as_json([make_report()]))) == make_report()
    assert [from_json(r) for r in json.loads(as_json([make_report(), ALONE]))] == [
        make_report(), ALONE
    ]  # fmt: skip


def test_csv_has_plain_numbers() -> None:
    rows = list(csv.reader(io.StringIO(as_csv([make_report()]))))
    assert rows[0] == ["metric", "unit", "small, FP32 (reference)", "small, BF16"]
    by_key = {row[0]: row[1:] for row in rows[1:]}
    assert by_key["perplexity"] == ["", "7.25", "7.5"]
    assert by_key["kl_mean"] == ["nats", "", "0.01"]
    assert by_key["weights_bytes"] == ["bytes", "4000", "2000"]
    rows = list(csv.reader(io.StringIO(as_csv([make_report(), ALONE]))))
    assert {row[0]: row[2:] for row in rows}["kl_mean"] == ["0.01", ""]


def test_markdown_survives_what_a_text_may_hold() -> None:
    text = as_markdown([make_report()])
    assert "| Perplexity | 7.250 | 7.500 |" in text
    assert "the \\| small⏎⟦ cat⟧ sat" in text
    assert "1 of 2" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith(" |") for line in tables)
    both = as_markdown([make_report(), make_report(machine={"cpu": "another"})])
    assert "Note: " in both
    assert "Worst tokens" not in both


def test_export_goes_by_the_ending_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ending, begin in ((".json", "{"), (".csv", "metric,"), (".md", "# Evaluation")):
        export([make_report()], tmp_path / f"report{ending}")
        assert (tmp_path / f"report{ending}").read_text().startswith(begin)
    with pytest.raises(ReportError, match="docx"):
        export([make_report()], tmp_path / "report.docx")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ReportError, match="No space left"):
        export([ALONE], tmp_path / "report.csv")
    monkeypatch.undo()
    assert "kl_mean" in (tmp_path / "report.csv").read_text()
    assert list(tmp_path.glob("*.part")) == []


# The store ------------------------------------------------------------------------------------


def test_reports_are_kept_newest_first(tmp_path: Path) -> None:
    store = ReportStore(tmp_path / "evaluations")
    assert store.list() == ((), ())
    older = store.add(make_report(created="2026-01-01T00:00:00+00:00"))
    newer = store.add(ALONE, "  Alone\n again ")
    again = ReportStore(tmp_path / "evaluations").list()
    assert again.reports == (newer, older)
    assert again.problems == ()
    assert older.name == "small, BF16"
    assert (newer.name, newer.report) == ("Alone again", ALONE)
    assert older.id != store.add(older.report).id


def test_names_change(tmp_path: Path) -> None:
    store = ReportStore(tmp_path)
    kept = store.add(make_report())
    assert store.rename(kept.id, "Better name").name == "Better name"
    assert store.load(kept.id) == dataclasses.replace(kept, name="Better name")
    with pytest.raises(ReportError):
        store.rename(kept.id, " \n ")


def test_a_deleted_report_comes_back(tmp_path: Path) -> None:
    store, trash = ReportStore(tmp_path / "evaluations"), Trash(tmp_path / "trash.json")
    kept = store.add(make_report())
    entry = trash.put(store.folder / kept.id)
    assert store.list() == ((), ())
    trash.restore(entry)
    assert store.list().reports == (kept,)
    trash.purge(trash.put(store.folder / kept.id))
    assert store.list() == ((), ())
    assert list((tmp_path / "evaluations").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "line 1, column 2"),
        ("[]", "JSON object"),
        ('{"version": 1}', "damaged"),
        ('{"version": 9}', "version 9"),
        ('{"version": 1, "name": "a", "notes": "", "report": {}}', "evaluation report"),
    ],
)
def test_a_damaged_report_hides_no_other(tmp_path: Path, content: str, words: str) -> None:
    store = ReportStore(tmp_path)
    kept = store.add(make_report())
    (tmp_path / "20250101-000000-aaaa").mkdir()
    (tmp_path / "20250101-000000-aaaa" / "report.json").write_text(content)
    (tmp_path / "something else").mkdir()
    found = store.list()
    assert found.reports == (kept,)
    (problem,) = found.problems
    assert words in problem.cause
    assert problem.remedy


def test_ids_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="etc"):
        ReportStore(tmp_path).load("../../etc")


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="evaluations"):
        ReportStore(tmp_path / "file" / "evaluations").add(make_report())


# Texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("builtin", BUILTIN_TEXTS, ids=lambda text: text.key)
def test_built_in_texts_are_there(builtin: object) -> None:
    assert builtin in BUILTIN_TEXTS
    text = builtin_text(builtin.key).read()  # type: ignore[attr-defined]
    assert 20_000 < len(text.encode()) < 40_000


def test_of_conversations_the_answers_count() -> None:
    builtin = builtin_text("starter")
    text = builtin.read()
    parts = [text[start:end] for start, end in builtin.scored(text)]
    assert len(parts) == text.count("<|im_start|>assistant")
    assert all(part.endswith("<|im_end|>") and "<|im_start|>" not in part for part in parts)
    assert sum(map(len, parts)) > 0.6 * len(text)
    assert builtin_text("english").scored(text) == ()


def test_texts_of_the_starter_are_those_of_its_corpus() -> None:
    from resources.starter.sample import make_chats, make_sample

    starter = builtin_text("starter")
    assert make_sample() == starter.read()
    assert make_chats() == starter.file.with_name("starter_chats.jsonl").read_text("utf-8")


def test_a_text_that_does_not_exist() -> None:
    with pytest.raises(TextError, match="english, starter"):
        builtin_text("latin")


def test_the_reports_of_this_test_are_reports() -> None:
    assert from_json(to_json(ALONE)) == ALONE
    assert isinstance(make_report().text, TextFacts)

"""Reports, comparisons and what else version 0.1 left in the folder of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QApplication

from app import paths
from app.features.compare.export import as_json as comparison_as_json
from app.features.compare.export import as_markdown as comparison_as_markdown
from app.features.compare.record import Comparison, PromptReplies, Side
from app.features.compare.replies import Reply, Stage
from app.features.models.downloads import DownloadQueue
from app.features.quantize.reports import made_of
from app.link.hardware_monitor import PeaksStore
from app.storage.report_export import as_csv, as_json, as_markdown
from app.storage.report_metrics import METRICS
from app.storage.report_store import ReportStore
from app.storage.trash import Trash
from app.window.crash_report import RunMarker
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.evaluate.report import from_json
from engine.evaluate.task import PromptLine
from tests.app.older_files import chats, conversation, older
from tests.figures import numbers
from widgets.tokens.record import TokenRecord

__all__ = ["older"]


def test_reports_are_there_with_how_they_were_made(older: Path) -> None:
    store = ReportStore(paths.evaluations_dir())
    four_bits, alone = store.list().reports
    assert store.list().problems == ()
    assert (four_bits.name, four_bits.notes) == ("Four bits, rounded", "")
    assert (alone.name, alone.notes) == ("Alone", "Measured on battery.\nAgain tomorrow.")
    figures = {one.key: one.value(four_bits.report) for one in METRICS}
    assert figures["perplexity"] == 8.25 and figures["kl_mean"] == 0.01
    assert figures["weights_bytes"] == 1250 and figures["decode_tokens_per_s"] == 50.5
    candidate, answers = four_bits.report.candidate, four_bits.report.answers
    assert candidate.quantization == "int4, groups of 128"
    assert candidate.config["kv_cache_dtype"] == "int8"
    assert answers is not None and answers.pairs[0].candidate == "Hello you"
    assert four_bits.report.worst[0].candidate_top[0].token == " dog"
    assert alone.report.reference is None and alone.report.divergence is None
    made = made_of(store, four_bits)
    assert made.commands[1] == "inferdeck evaluate --model /models/small-int4"
    assert [(row.label, row.error, row.rounding) for row in made.layers] == [
        ("0", 0.03, 0.06), ("1", 0.04, 0.06)
    ]  # fmt: skip
    assert made.layers[0].worst == "mlp.down_proj" and made.layers[0].notes == "wide"
    assert made_of(store, alone).commands == ()


def shape_of(markdown: str) -> list[tuple[int, list[float]]]:
    """Cells and figures of each line: what the words in labels leave as it is."""
    lines = markdown.lower().replace("top-1", "").splitlines()
    return [(line.count("|"), numbers(line)) for line in lines]


def test_exported_reports_are_read_and_exported_the_same(older: Path) -> None:
    read = lambda name: (older / "exports" / name).read_text(encoding="utf-8")
    whole = from_json(json.loads(read("evaluation.json")))
    assert as_json([whole]) == read("evaluation.json")
    # precisions have other names today, the columns and the figures are the same
    heads, *rows = as_csv([whole]).splitlines()
    older_heads, *older_rows = read("evaluation.csv").splitlines()
    assert rows == older_rows and heads.count('",') == older_heads.count('",')
    assert shape_of(as_markdown([whole])) == shape_of(read("evaluation.md"))
    first, second = map(from_json, json.loads(read("evaluations.json")))
    assert first == whole and second.candidate.name == "small-int4"


def test_measured_peaks_are_there(older: Path) -> None:
    store = PeaksStore()
    config = EngineConfig(dtype="float32", num_threads=4)
    cpu = store.find(config, "A processor, 8 cores")
    assert cpu is not None and (cpu.read_bytes_per_s, cpu.flops_per_s) == (40e9, 8e11)
    card = store.find(config.replace(dtype="bfloat16"), "A card")
    assert card is not None and card.measured_at == 1.78e9 + 60
    assert store.find(config, "A card") is None


def test_downloads_wait_and_what_was_deleted_is_known(qapp: QApplication, older: Path) -> None:
    queue = DownloadQueue(None, paths.downloads_file())  # type: ignore[arg-type] # none is started
    told = [(d.repo_id, d.state.value, d.progress.done, d.progress.total) for d in queue]
    assert told == [
        ("somebody/model-a", "paused", 1_500_000, 6_000_000), ("somebody/model-b", "paused", 0, 0)
    ]  # fmt: skip
    queue.close()
    (entry,) = Trash(paths.trash_file()).entries
    assert entry.original == Path("/models/thrown-away")
    assert entry.aside == Path("/models/.inferdeck-deleted-0123456789ab")


def test_what_a_run_that_crashed_left_is_found(older: Path) -> None:
    (left,) = RunMarker(older / "crashed").remains()
    assert left.fault.startswith("Fatal Python error")
    assert left.data["session"]["path"] == "/models/tiny"
    assert left.data["session"]["settings"] == {"max_num_seqs": 64}
    assert left.data["steps"] == ["step 812: 28.4 ms, 16 decode + 96 prefill tokens"]
    with chats() as store:
        assert left.data["session"]["chat"] == conversation(store, "What is paging?").id
    left.remove()
    assert list((older / "crashed").iterdir()) == []


def test_a_comparison_is_exported_the_same(older: Path) -> None:
    """The program does not read it; others do."""
    text = (older / "exports" / "comparison.json").read_text(encoding="utf-8")
    told = json.loads(text)

    def reply(values: dict[str, Any] | None) -> Reply | None:
        if values is None:
            return None
        tokens = [TokenRecord(token_id, "", 0.0, 1) for token_id in values.pop("token_ids")]
        problem = values.pop("problem")
        made = Reply(stage=Stage.DONE, tokens=tokens, **values)
        if problem:
            made.fail(ErrorInfo(problem))
        return made

    sides = [Side(**side) for side in told["sides"]]
    pairs = [
        PromptReplies(
            PromptLine(one["line"], one["prompt"]), [reply(values) for values in one["answers"]]
        )
        for one in told["prompts"]
    ]
    made = Comparison(told["model"], told["started"], sides, pairs, told["way"])
    assert comparison_as_json(made) == text
    markdown = (older / "exports" / "comparison.md").read_text(encoding="utf-8")
    assert shape_of(comparison_as_markdown(made)) == shape_of(markdown)

"""Files that version 0.1 wrote are opened as before: `tests/fixtures/version_0_1`.

How they were made is in `tests/fixtures/README.md`. Each test works on a copy.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

# What reads the files. Where modules move, these lines follow; the tests below stay.
from app import paths
from app.clients.attached_line import stream_url
from app.clients.target import ServerType, parse_address
from app.features.chat.conversation import Conversation, Message, sampling_from_dict
from app.features.chat.figures import note_of
from app.features.chat.files import Bundle, collect, dump, keep, parse
from app.features.chat.markdown import from_markdown
from app.features.chat.reply_data import ReplyTokens, unpack_times
from app.features.compare.export import as_json as comparison_as_json
from app.features.compare.export import as_markdown as comparison_as_markdown
from app.features.compare.record import Comparison, PromptReplies, Side
from app.features.compare.replies import Reply, Stage
from app.features.models.downloads import DownloadQueue
from app.features.quantize.reports import made_of
from app.features.recording import file as flight_file
from app.features.serve.connections import KeyCache
from app.features.serve.controller import KEY as SERVER_KEY
from app.link.child_process import LogSender, Ready, parse_ready, parse_record, ready_line
from app.link.hardware_monitor import PeaksStore
from app.main.application import Application
from app.storage import NEW, TIMES, TOKENS, ChatStore
from app.storage.report_export import as_csv, as_json, as_markdown
from app.storage.report_metrics import METRICS
from app.storage.report_store import ReportStore
from app.storage.trash import Trash
from app.window.crash_report import RunMarker
from app.window.keymap import KeyMap
from app.window.layouts import LayoutStore
from app.window.settings_store import LoadChoice, SettingsStore
from app.wire.codec import EventReader, EventWriter, read_command, write_command
from app.wire.protocol import (
    VERSION,
    Ping,
    Pong,
    Welcome,
    encode,
    read_answer,
    read_frame,
    read_hello,
)
from app.wire.sequencer import Sequencer
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.evaluate.report import from_json
from engine.evaluate.task import PromptLine
from engine.snapshot import PackedTokens
from tests.app.fakes import FakeEngineThread, Script
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.window_fixtures import open_model
from tests.figures import numbers
from widgets.theme.fonts import point_size
from widgets.theme.theme import theme
from widgets.tokens.record import Alternative, Origin, TokenRecord

__all__ = ["ring"]  # a fixture

OLDER = Path(__file__).parents[1] / "fixtures" / "version_0_1"
ANSWER = "<think>Blocks of a cache.</think>\n\nPaging keeps the cache in **blocks**."
NOTES = "# Notes\n\n```python\nprint('größe')\n```\n"
CHOSEN = {
    "max_num_seqs": 64, "kv_cache_dtype": "k=int8,v=fp8", "quantization": "int4",
    "quantization_group_size": 64, "speculative_method": "ngram", "num_speculative_tokens": 6,
    "watermark": 0.1, "enable_prefix_caching": False, "max_model_len": 1024,
    "kv_cache_memory_bytes": 2**27, "gpu_layers": "3", "device": "cpu",
}  # fmt: skip
"""The settings that were chosen for /models/tiny, and saved as a profile."""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy whose folders "data" and "config" are those of the program in this test."""
    shutil.copytree(OLDER, tmp_path, dirs_exist_ok=True)
    return tmp_path


# Chats ----------------------------------------------------------------------------------------


@contextmanager
def chats() -> Iterator[ChatStore]:
    store = ChatStore(paths.chats_file())
    try:
        yield store
    finally:
        store.close()


def conversation(store: ChatStore, title: str) -> Conversation:
    (record,) = [one for one in store.conversations() if one.title == title]
    found = Conversation.from_record(record)
    found.load(store.messages(record.id))
    return found


def tokens_of(store: ChatStore, message: Message) -> ReplyTokens:
    packed = store.packed(TOKENS, message.id)
    assert packed is not None
    return ReplyTokens.unpack(packed)


def test_the_chats_are_there_with_their_settings(older: Path) -> None:
    with chats() as store:
        assert store.problem is None
        found = {one.title: one for one in store.conversations()}
        assert list(found) == [  # the last used first
            "Count to ten", "Say hello", "What is paging?", "Notes, in short",
            "Why is the sky blue?",
        ]  # fmt: skip
        paging, notes = found["What is paging?"], found["Notes, in short"]
        assert [one.title for one in found.values() if one.is_pinned] == [paging.title]
        assert [t for t, one in found.items() if one.is_archived] == ["Why is the sky blue?"]
        assert paging.title_is_automatic and not notes.title_is_automatic
        assert paging.system_prompt == "Answer in one sentence."
        sampling = sampling_from_dict(paging.sampling)
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.35, 0.9, 0)
        assert (sampling.max_tokens, sampling.seed, sampling.stop) == (512, 11, ("END", "\n\n"))
        assert sampling.logprobs == 5  # of every chat where it was not changed
        assert (paging.preset, notes.preset) == ("Short and dry", "")
        assert sampling_from_dict(store.presets()["Short and dry"]) == sampling
        assert sampling_from_dict(notes.sampling).top_k == 40
        assert store.unsent() == {
            NEW: "A question that waits", paging.id: "and how large is a block?"
        }  # fmt: skip
        assert all(0 < one.created <= one.updated for one in found.values())


def test_branches_are_there_with_the_one_that_was_shown(older: Path) -> None:
    with chats() as store:
        paging = conversation(store, "What is paging?")
        assert len(paging.messages) == 8
        asked, answer = paging.path()
        assert (asked.text, answer.text) == ("What is paging?", ANSWER)
        assert paging.version_of(asked) == (1, 2) and paging.version_of(answer) == (1, 3)
        texts = [version.text for version in paging.versions(asked.id)]
        assert texts == [ANSWER, "Another answer.", "Another Segments follow."]
        other = paging.versions(None)[1]
        paging.show(other)
        assert [message.text for message in paging.path()] == [
            "What is paging, in German?", "Seitenverwaltung: Blöcke. 🙂",
            "And in French?", "La pagination.",
        ]  # fmt: skip


def test_replies_have_their_figures_tokens_and_times(older: Path) -> None:
    with chats() as store:
        paging = conversation(store, "What is paging?")
        first, cut, branch = paging.versions(paging.path()[0].id)
        figures = first.figures
        assert figures is not None and figures.model == "Qwen3-0.6B"
        assert (figures.num_tokens, figures.num_prompt_tokens) == (5, 803)
        assert (figures.num_cached_tokens, figures.finish_reason) == (768, "stop")
        assert figures.ttft_ms == pytest.approx(84) and figures.queue_ms == pytest.approx(3)
        assert figures.itl_ms == pytest.approx(18.2) and figures.itl_p99_ms is None
        assert cut.figures is not None and cut.figures.finish_reason == "length"
        assert branch.figures is not None and branch.figures.num_given_tokens == 2

        packed = store.packed(TIMES, first.id)
        assert packed is not None
        times = unpack_times(packed)
        assert (times.first_scheduled, times.finished) == (0.003, 0.175)
        assert [event.num_tokens for event in times.tokens] == [1] * 5
        assert times.ttft_s == 0.084 and times.itl_s == pytest.approx([0.0182] * 4)

        records = tokens_of(store, branch).records
        assert [record.text for record in records] == [
            "Another ", "Segments", "Another Segments", " follow."
        ]  # fmt: skip
        assert [r.origin for r in records[:3]] == [Origin.KEPT, Origin.CHOSEN, Origin.SAMPLED]
        assert (records[1].token_id, records[1].logprob, records[1].rank) == (7001, -1.5, 2)
        assert records[1].alternatives[2] == Alternative(7002, "Swap", -2.25)
        has_tokens, has_times = (
            sum(len(store.messages_with(table, one.id)) for one in store.conversations())
            for table in (TOKENS, TIMES)
        )
        assert (has_tokens, has_times) == (9, 7)

        hello = conversation(store, "Say hello").path()[-1]
        drafted = tokens_of(store, hello)
        assert drafted.model == "Tiny"
        assert [record.is_draft for record in drafted.records] == [False, True, False]
        assert drafted.records[2].rejected == (" friend", "!")


def test_files_precisions_and_ends_of_replies_are_there(older: Path) -> None:
    with chats() as store:
        asked, answer = conversation(store, "Notes, in short").path()
        assert [file["name"] for file in asked.attachments] == ["notes.md", "data.csv"]
        assert asked.attachments[0]["text"] == NOTES
        assert [(p.start, p.num_tokens, p.precision) for p in answer.passages] == [
            (0, 0, "bf16"), (11, 2, "bf16 · int8 weights")
        ]  # fmt: skip
        words = "Written in bf16, from token 3 on in bf16 · int8 weights."
        assert note_of(answer.passages) == words
        _, failed, _, stopped = conversation(store, "Why is the sky blue?").path()
        assert (failed.state.value, failed.text) == ("error", "")
        assert failed.error is not None and "9,000 tokens" in failed.error.cause
        assert failed.error.remedy == "Shorten it."
        assert (stopped.state.value, stopped.text) == ("stopped", "It is ")
        counted = conversation(store, "Count to ten").path()[-1]  # it was being written
        assert (counted.state.value, counted.text) == ("interrupted", "one two three")


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("größe", ["Notes, in short"]),  # in a file that was given
        ("Segments follow", ["What is paging?"]),  # in a branch that is not shown
        ("two three", ["Count to ten"]),
        ("forget", []),  # deleted
    ],
)
def test_the_chats_are_searched(older: Path, words: str, titles: list[str]) -> None:
    with chats() as store:
        found = {one.id: one.title for one in store.conversations()}
        assert [found[hit.conversation_id] for hit in store.search(words)] == titles


def of_bundle(bundle: Bundle) -> tuple[Any, ...]:
    return bundle.conversation, bundle.messages, dict(bundle.tokens), dict(bundle.times)


def test_exported_chats_are_what_is_stored_and_are_exported_the_same(older: Path) -> None:
    text = (older / "exports" / "chats.json").read_text(encoding="utf-8")
    bundles = parse(text)
    assert len(bundles) == 4 and dump(bundles) == text
    with chats() as store:
        stored = {one.id: one for one in store.conversations()}
        for bundle in bundles:
            there = collect(store, stored[bundle.conversation.id])
            assert of_bundle(there) == of_bundle(bundle)
    with_times = {i: times for bundle in bundles for i, times in bundle.times.items()}
    assert len(with_times) == 7


def test_exported_chats_are_imported_where_there_are_none(older: Path) -> None:
    paths.chats_file().unlink()
    text = (older / "exports" / "chats.json").read_text(encoding="utf-8")
    with chats() as store:
        for bundle in parse(text):
            assert of_bundle(keep(store, bundle)) == of_bundle(bundle)
        assert conversation(store, "What is paging?").path()[-1].text == ANSWER


def test_chats_as_markdown_are_imported(older: Path) -> None:
    read = lambda name: from_markdown((older / "exports" / name).read_text(encoding="utf-8"))
    paging, notes = read("chat.md"), read("chat_with_files.md")
    assert paging.conversation.title == "What is paging?"
    assert paging.conversation.system_prompt == "Answer in one sentence."
    asked, answer = paging.messages
    assert asked.text == "What is paging?"
    assert answer.text.replace("\n", "") == ANSWER.replace("\n", "")  # lines of thought apart
    asked, answer = notes.messages
    assert [file["name"] for file in asked.attachments] == ["notes.md", "data.csv"]
    assert asked.attachments[0]["text"] == NOTES
    assert (asked.text, answer.text) == ("Summarize both files.", "Two files: notes and figures.")


# Settings -------------------------------------------------------------------------------------


def test_the_settings_of_the_program_are_those_that_were_chosen(older: Path) -> None:
    store = SettingsStore()
    assert store.problem == ""
    assert {name: store.preferences.get(name) for name in (
        "theme", "text_size", "chart_span", "open_at_start", "single_instance", "engine_place",
        "serve_at_start", "confirm_links", "confirm_leave", "model_folders", "notice_seconds",
        "notices_kept", "log_level", "log_size",
    )} == {
        "theme": "dark", "text_size": 110, "chart_span": 300, "open_at_start": "none",
        "single_instance": False, "engine_place": "process", "serve_at_start": True,
        "confirm_links": False, "confirm_leave": False,
        "model_folders": ("/models", "/more models, größer"), "notice_seconds": 30,
        "notices_kept": 500, "log_level": "warning", "log_size": 5,
    }  # fmt: skip
    assert store.load_choice == LoadChoice("voice-bot", "shared", 32, 2.5, True)
    assert store.quantize_rates == {"rtn": 1.5e6, "gptq": 2.5e5}
    assert store.switch_times == {
        "load /models/tiny|auto|int4/64/none/auto": 3.25, "/models/tiny|auto|int8/-/none/auto": 1.5
    }  # fmt: skip
    assert not store.flag("chat-list", True) and store.flag("welcomed", False)
    assert store.layout == "On stage" and store.flag("layout-text", False)
    assert store.dock_height_of("Chat") == 333 and store.dock_height_of("Tune") is None
    assert not store.docks_of("Chat").isEmpty() and not store.geometry.isEmpty()


def test_the_last_models_are_there_with_the_settings_that_were_chosen(older: Path) -> None:
    tiny, random, third = SettingsStore().recent
    assert [one.path for one in (tiny, random, third)] == [
        "/models/tiny", "/models/random", "/models/third"
    ]  # fmt: skip
    assert (tiny.title, random.load_format) == ("tiny", "dummy")
    assert tiny.settings == CHOSEN and third.settings == {}
    assert random.settings == {"seed": 7, "block_size": 32}
    assert tiny.config() == EngineConfig(model="/models/tiny", **CHOSEN)  # none is refused


def test_what_the_server_was_started_with_is_there(older: Path) -> None:
    choice = SettingsStore().serving
    assert (choice.is_public, choice.port, choice.model_name) == (True, 8123, "house model")
    assert choice.origins == ("http://localhost:3000", "https://example.invalid")
    assert (choice.max_queued, choice.max_connections) == (64, 32)
    assert (choice.max_output_tokens, choice.max_body_mib) == (2048, 16)
    assert not choice.allows_control


def test_profiles_are_there_and_keep_what_is_not_known(older: Path) -> None:
    store = SettingsStore().profiles
    assert store.problem == ""
    empty, later, many = store.profiles
    assert (empty.name, dict(empty.settings)) == ("Empty", {})
    assert later.name == "From a later version"
    assert later.settings == {"block_size": 32, "batching": "static"}
    assert later.unknown == {"setting_of_later": 3}
    assert many.name == "many & at once" and many.settings == CHOSEN


def test_layouts_are_there(older: Path) -> None:
    store = LayoutStore(paths.config_dir() / "layouts.json")
    assert store.problem == ""
    night, stage = store.own
    assert (night.name, night.base, night.page, night.text_size) == (
        "Night shift", "Tuning", "Tune", None
    )  # fmt: skip
    assert (stage.name, stage.base, stage.page, stage.text_size) == (
        "On stage", "Presentation", "Chat", 130
    )  # fmt: skip
    assert set(night.states) == {"Tune", "Server"} and set(stage.states) == {"Chat", "Tune"}
    assert all(len(state) > 100 for one in store.own for state in one.states.values())


def test_keys_are_bound_as_they_were(older: Path) -> None:
    file = paths.config_dir() / "shortcuts.json"
    keymap = KeyMap(file)
    keymap.declare({
        "model.open": "Ctrl+O", "model.unload": "", "chat.list": "Ctrl+B", "dock.log": "",
        "tune.load": "F8", "app.quit": "Ctrl+Q", "layout.own.on stage": "", "chat.new": "Ctrl+N",
    })  # fmt: skip
    assert keymap.problem == ""
    assert {command: keymap.keys(command) for command in keymap} == {
        "model.open": "", "model.unload": "Ctrl+O", "chat.list": "Ctrl+Alt+L", "dock.log": "F8",
        "tune.load": "", "app.quit": "", "layout.own.on stage": "Ctrl+Alt+9",
        "chat.new": "Ctrl+N",
    }  # fmt: skip
    keymap.bind("chat.new", "Ctrl+Alt+N")  # a command that this run does not have keeps its keys
    kept = json.loads(file.read_text(encoding="utf-8"))["shortcuts"]
    assert kept["plugin.of_another_run"] == "Ctrl+Alt+F9"


def test_connections_are_there_and_their_keys_are_found_in_the_keyring(
    qtbot: QtBot, older: Path, ring: MemoryKeyring
) -> None:
    entries = json.loads((older / "keyring.json").read_text(encoding="utf-8"))
    ring.kept.update({(entry["service"], entry["user"]): entry["key"] for entry in entries})
    found = {one.name: one for one in SettingsStore().connections}
    told = {
        name: (one.base_url, one.server_type, one.version, one.model) for name, one in found.items()
    }
    assert told == {
        "Big box": ("http://box.invalid:8000", ServerType.INFERDECK, "0.1.0", ""),
        "Rack vLLM": ("https://rack.invalid/v1", ServerType.VLLM, "0.11.0", "qwen3-32b"),
        "Laptop": ("http://127.0.0.1:9", ServerType.LLAMA_CPP, "b4000", ""),
        "Gateway": ("https://gateway.invalid/openai", ServerType.OPENAI, "", "gpt-x"),
        "Never reached": ("http://new.invalid:1234", None, "", ""),
    }
    assert [name for name, one in found.items() if one.is_watched] == ["Laptop"]
    keys = KeyCache()
    names = {name: one.key_name for name, one in found.items()} | {"": SERVER_KEY}
    for name in names.values():
        keys.fetch(name)
    qtbot.waitUntil(lambda: all(map(keys.is_known, names.values())))
    assert {name: keys.key(key_name) for name, key_name in names.items()} == {
        "Big box": "sk-box", "Rack vLLM": "sk-rack", "Laptop": "", "Gateway": "sk-gateway",
        "Never reached": "", "": "sk-of-the-server",
    }  # fmt: skip


# What else is in the folder of the data ---------------------------------------------------------


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


# Recordings -----------------------------------------------------------------------------------


def test_a_recording_has_all_its_frames(older: Path) -> None:
    recording = flight_file.read(older / "recordings" / "run.inferdeck-flight")
    assert recording.notice == ""
    assert recording.about["machine"]["cpu"] == "A processor, 8 cores"
    assert recording.about["versions"]["Inferdeck"] == "0.1.0"
    events = [frame.event for frame in recording.frames]
    assert [type(event).__name__ for event in events] == [
        "Loaded", "Unloaded", "Loaded", "EngineCrashed", "Loaded", "PeaksMeasured",
        "SnapshotEvent", "OutputEvent", "SnapshotEvent", "Reconfigured", "SnapshotEvent",
        "SnapshotEvent",
    ]  # fmt: skip
    times = [frame.time for frame in recording.frames]
    assert times == sorted(times)
    crashed, loaded, peaks, first, ended, busy, changed, _, last = map(plain, events[3:])
    assert loaded["model"]["name"] == "Tiny" and loaded["config"]["max_num_seqs"] == 8
    assert loaded["plan"]["host_layers"] == 2 and peaks["peaks"]["read_bytes_per_s"] == 3.2e12
    assert ended["finish_reason"] == "stop" and ended["text"] == "" and ended["token_ids"] == []
    assert [event["num_tokens"] for event in ended["times"]["tokens"]] == [1, 1, 1]
    assert changed["change"] == "live" and crashed["error"]["kind"] == "OutOfMemoryError"

    one = first["snapshot"]
    assert [r["state"] for r in one["requests"]] == ["running", "waiting"]
    assert one["speculation"]["accepted_per_position"] == [7, 4, 1]
    assert one["speculation"]["speed_up"]["factor"] == 1.75
    assert [gpu["name"] for gpu in one["gpus"]] == ["A card", "A part"]
    assert one["threads"]["found"][1] == {"first": 2, "last": 7, "threads": 3}
    step = one["steps"][0]
    assert (step["held_back"], step["kv_usage"], step["exchange_s"]) == (["b"], 0.25, 0.0005)

    two = busy["snapshot"]  # what did not change is as before
    assert two["model"] == one["model"] and two["gpus"] == one["gpus"]
    assert two["blocks"]["owner"] == [0, 0, 1, -1, -2, -1, 1, -1]
    assert two["blocks"]["fill"] == [16, 7, 16, 0, 16, 0, 5, 0]
    assert two["blocks"]["tables"] == [[0, 1], [2, 6]]
    assert [len(r["times"]["tokens"]) for r in two["requests"]] == [3, 1]
    assert two["steps"][1]["entries"][1]["is_resumed"]

    end = last["snapshot"]
    assert (end["time"], end["step_index"]) == (10.75, 4)
    assert end["config"]["max_num_seqs"] == 3 and end["config"]["kv_cache_dtype"] == "k=int8,v=fp8"
    counters = end["counters"]
    assert (counters["generation_tokens"], counters["finished"]) == (5, {"stop": 1, "length": 1})
    assert end["memory"]["kv_used"] == 0 and end["memory"]["host_weights"] == 2**21
    assert end["speculation"] is None and end["threads"] is None and end["steps"] == []
    (request,) = end["requests"]
    assert request["finish_reason"] == "length" and request["times"]["finished"] == 10.45
    assert len(request["times"]["tokens"]) == 2


# What goes over lines and pipes -----------------------------------------------------------------


def plain(value: Any) -> Any:
    """A record as JSON has it: fields by name."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(part) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value))
    if isinstance(value, (tuple, list, PackedTokens)):
        return list(map(plain, value))
    return value


def assert_holds(found: Any, told: Any, where: str = "") -> None:
    """Everything that was told then is there now; fields that came later may be there too."""
    if isinstance(told, dict):
        assert isinstance(found, dict) and told.keys() <= found.keys(), where
        for name, part in told.items():
            assert_holds(found[name], part, f"{where}.{name}")
    elif isinstance(told, list):
        assert isinstance(found, list) and len(found) == len(told), where
        for place, (one, other) in enumerate(zip(found, told, strict=True)):
            assert_holds(one, other, f"{where}[{place}]")
    else:
        assert found == told and type(found) is type(told), where


def assert_goes_on(sent: Any, then: Any, where: str = "") -> None:
    """What is sent now is what was sent then, maybe with more behind it: a program of then reads
    it."""
    if isinstance(then, dict):
        assert isinstance(sent, dict) and then.keys() <= sent.keys(), where
        for name, part in then.items():
            assert_goes_on(sent[name], part, f"{where}.{name}")
    elif isinstance(then, list):
        assert isinstance(sent, list) and len(sent) >= len(then), where
        for place, part in enumerate(then):
            assert_goes_on(sent[place], part, f"{where}[{place}]")
    else:
        assert sent == then, where


def transcript() -> dict[str, Any]:
    return json.loads((OLDER / "wire" / "attach.json").read_text(encoding="utf-8"))


BEATS = {"ping": Ping, "pong": Pong}


def test_the_greeting_is_read_and_the_address_is_the_same() -> None:
    said = transcript()
    assert stream_url(parse_address("http://host:8000/v1")) == f"ws://host:8000{said['path']}"
    for one, read in zip(said["said"], (read_hello, read_answer, read_answer), strict=False):
        data = bytes.fromhex(one["bytes"])
        words = read(data)
        assert type(words).__name__.lower() == one["what"]
        assert_holds(plain(words), one["means"])
        assert_goes_on(msgspec.msgpack.decode(encode(words)), msgspec.msgpack.decode(data))
        if isinstance(words, Welcome):
            assert words.version == VERSION and words.offers[0].name == "tiny"


def test_every_command_and_event_is_read_and_sent_as_before() -> None:
    """Frames of both sides, in order: snapshots among them as what changed."""
    reader, writer = EventReader(), EventWriter()
    decoded = msgspec.msgpack.decode
    sequencers = {"window": Sequencer(), "server": Sequencer()}
    kinds: dict[str, set[str]] = {"window": set(), "server": set()}
    for one in transcript()["said"]:
        if one["what"] != "frame":
            continue
        data, side = bytes.fromhex(one["bytes"]), one["from"]
        frame = read_frame(data)
        assert (frame.number, frame.ack) == (one["number"], one["ack"])
        taken = sequencers["server" if side == "window" else "window"].receive(frame)
        again = []
        for (kind, body), told in zip(taken, one["messages"], strict=True):
            assert kind == told["kind"]
            kinds[side].add(kind)
            if kind in BEATS:
                beat: Any = decoded(body, type=BEATS[kind])
                assert_holds(plain(beat), told["means"], kind)
                again.append((kind, encode(beat)))
                continue
            means: Any
            if side == "window":
                means = read_command(kind, body)
                again.append(write_command(means))
            else:
                means = reader.read(kind, body)
                again.append(writer.write(means))
            assert_holds(plain(means), told["means"], kind)
        sequencer = sequencers[side]
        sent = sequencer.number(again) if frame.number else sequencer.unnumbered(again)
        assert_goes_on(decoded(sent), decoded(data), side)
    assert kinds["window"] == {
        "load", "unload", "add", "abort", "reconfigure", "inspect", "peaks", "count", "cancel",
        "ping",
    }  # fmt: skip
    assert kinds["server"] == {
        "progress", "loaded", "load-failed", "unloaded", "output", "failed", "reconfigured",
        "reconfigure-failed", "snapshot", "block", "peaks", "counted", "crashed", "history",
        "made-room", "pong",
    }  # fmt: skip


def test_lines_of_a_child_are_read_and_written_as_before(capsys: pytest.CaptureFixture) -> None:
    ready = (OLDER / "wire" / "child.stdout").read_text(encoding="utf-8").rstrip("\n")
    assert parse_ready(ready) == Ready(41235, 4321) and ready_line(Ready(41235, 4321)) == ready
    lines = (OLDER / "wire" / "child.stderr").read_text(encoding="utf-8").split("\n")[:-1]
    loaded, printed, failed = map(parse_record, lines)
    assert printed is None and loaded is not None and failed is not None
    assert (loaded.name, loaded.levelno) == ("engine.loading", logging.INFO)
    assert (loaded.getMessage(), loaded.created) == ("loaded Tiny in 812 ms", 1_780_000_000.25)
    assert failed.levelno == logging.ERROR
    assert failed.getMessage() == "a step failed\nValueError: größer"
    LogSender().emit(loaded)
    assert capsys.readouterr().err == f"{lines[0]}\n"


# The whole window -----------------------------------------------------------------------------


@pytest.fixture
def application(qapp: QApplication, older: Path) -> Iterator[Application]:
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script()))
    made.show()
    try:
        yield made
    finally:
        # what holds for the whole process is as the other tests know it
        made.window.commands.run("layout.chat")
        for name in ("theme", "text_size", "log_level", "log_size"):
            made.settings.preferences.reset(name)
        made.shutdown()


def test_the_window_opens_with_all_of_it(
    qtbot: QtBot, application: Application, older: Path
) -> None:
    window, pages, commands = application.window, application.pages, application.window.commands
    assert application.history.records == []  # nothing is said of files that could not be read

    page, chat = pages.chat_page, pages.chat
    assert [record.title for record in page.list.records] == [  # the pinned one first
        "What is paging?", "Count to ten", "Say hello", "Notes, in short"
    ]  # fmt: skip
    assert [one.title for one in chat.archived] == ["Why is the sky blue?"]
    assert not page.panes.list_wanted and page.composer.text == "A question that waits"
    assert "Short and dry" in [preset.name for preset in chat.presets if preset.is_own]
    chat.open(page.list.records[0].id)
    assert [message.text for message in chat.current.path()] == ["What is paging?", ANSWER]
    assert page.composer.text == "and how large is a block?"
    assert chat.current.sampling.temperature == 0.35
    assert chat.tokens.has(chat.current.path()[1].id)

    assert application.layouts.current.name == "On stage" and application.layouts.text_size == 130
    assert window.page.name == "Chat" and theme().is_dark
    assert not application.log_dock.isHidden() and application.settings_dock.isHidden()
    stage = point_size("body")
    commands.run("layout.own.night shift")
    assert window.page.name == "Tune" and point_size("body") < stage
    assert not application.settings_dock.isHidden()
    keys = ("model.unload", "model.open", "chat.list", "layout.own.on stage", "dock.log")
    assert [commands.action(name).shortcut().toString() for name in keys] == [
        "Ctrl+O", "", "Ctrl+Alt+L", "Ctrl+Alt+9", "F8"
    ]  # fmt: skip

    open_model(qtbot, application, "/models/tiny")
    applied = application.engine_settings.model.applied
    assert applied is not None and applied.max_num_seqs == 64
    assert application.engine_settings.rows["watermark"].value() == 0.1
    profiles = application.settings.profiles.profiles
    assert [one.name for one in profiles] == ["Empty", "From a later version", "many & at once"]

    assert pages.server.panel.form.port.value() == 8123
    names = [one.name for one in pages.server.store.connections]
    assert names == ["Big box", "Rack vLLM", "Laptop", "Gateway", "Never reached"]
    assert [one.repo_id for one in pages.models.queue] == ["somebody/model-a", "somebody/model-b"]
    commands.run("page.runs")
    qtbot.waitUntil(lambda: len(pages.runs.table.runs) == 2)

    application.recordings.open(older / "recordings" / "run.inferdeck-flight")
    qtbot.waitUntil(lambda: bool(application.recordings.windows))
    replay = application.recordings.windows[-1]
    qtbot.waitUntil(lambda: replay.views.kv_blocks.map.blocks is not None)
    replay.player.seek(replay.player.duration)
    qtbot.waitUntil(lambda: not replay.player.is_jumping)
    assert replay.views.timeline.view.history.end == 4
    replay.close()

"""How both sides of a comparison get an engine, over scripted engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication, QComboBox
from pytestqt.qtbot import QtBot

from app.features.compare.placement import Decision, Placement, Setup, decide, other_settings
from app.features.compare.record import LEFT, RIGHT, PromptReplies
from app.features.compare.replies import Reply, Stage
from app.features.compare.runner import Phase
from app.features.compare.view import CompareView
from app.features.models.estimate import Estimate, Need
from app.main.application import Application
from app.storage.run_records import Kind
from engine import messages
from engine.config import EngineConfig
from engine.evaluate.task import PromptLine
from engine.snapshot import MemoryPlan
from tests.app.fakes import FakeEngineThread, Script
from tests.app.parts import Parts, parts_over
from tests.app.window_fixtures import open_model
from tests.figures import numbers
from widgets.tokens.record import TokenRecord

MIB = 2**20
CONFIG = EngineConfig(model="/models/tiny", dtype="float32")


def plan(limit: int) -> MemoryPlan:
    return MemoryPlan(limit, limit, 0, limit, 300 * MIB, 50 * MIB, 250 * MIB, MIB, 250)


def needs(weights: int, limit: int = 2**40) -> Estimate:
    need = Need(4096, "float32", weights, 10 * MIB, 90 * MIB, limit, limit, limit)
    return Estimate(None, need)  # type: ignore[arg-type]


def test_two_engines_at_once_only_where_both_fit_the_budget() -> None:
    setup = Setup({"quantization": "int8"}, "int8 weights")
    wanted = setup.config(CONFIG)
    both = decide(wanted, CONFIG, plan(1000 * MIB), needs(100 * MIB), "right")
    assert both.placement is Placement.CONCURRENT and both.config is not None
    assert both.config.kv_cache_memory_bytes == 90 * MIB
    assert numbers(both.why) == [600, 200, 1000]
    assert both.why.index("left") < both.why.index("right")
    tight = decide(wanted, CONFIG, plan(700 * MIB), needs(100 * MIB), "left")
    assert numbers(tight.why) == [600, 200, 700]
    assert tight.why.index("right") < tight.why.index("left")
    assert tight.placement is Placement.RECONFIGURE
    other = CONFIG.replace(model="/models/other")
    assert (
        decide(other, CONFIG, plan(700 * MIB), needs(100 * MIB), "right").placement
        is Placement.RELOAD
    )
    busy = decide(wanted, CONFIG, plan(1000 * MIB), needs(100 * MIB, limit=150 * MIB), "right")
    assert busy.placement is Placement.RECONFIGURE  # others hold the memory now
    nothing = Estimate(None, None, "No config.")  # type: ignore[arg-type]
    unknown = decide(wanted, CONFIG, plan(10**12), nothing, "right")
    assert unknown.placement is Placement.RECONFIGURE and "No config." in unknown.why


def test_settings_beside_the_precision_are_named() -> None:
    setup = Setup({"quantization": "int8", "speculative_method": "ngram", "max_num_seqs": 4}, "")
    named = other_settings(setup, CONFIG)
    assert "ngram" in named and named.endswith(" 4") and "int8" not in named
    assert other_settings(Setup({"speculative_method": "off"}, ""), CONFIG) == ""


def test_models_with_other_tokens_are_compared_by_their_text() -> None:
    def reply(*texts: str) -> Reply:
        tokens = [TokenRecord(hash(text) % 999, text, 0.0, 1) for text in texts]
        return Reply(stage=Stage.DONE, text="".join(texts), tokens=tokens)

    pair = PromptReplies(
        PromptLine(1, "p"), [reply("he", "llo", " you"), reply("hello ", "me")], True
    )
    assert pair.parts(LEFT) == ("hello", " you", "") and pair.num_equal == 2
    assert pair.parts(RIGHT) == ("hello ", "me", "")
    same = PromptReplies(PromptLine(1, "p"), [reply("he", "llo"), reply("hello")], True)
    assert same.is_identical and same.equal_share == 1.0


@pytest.fixture
def script() -> Script:
    return Script(replies=4)


@pytest.fixture
def engines() -> list[FakeEngineThread]:
    """All that were started, in order."""
    return []


@pytest.fixture
def parts(
    qapp: QApplication, qtbot: QtBot, script: Script, engines: list[FakeEngineThread]
) -> Iterator[Parts]:
    def make(on_event: Any) -> FakeEngineThread:
        engines.append(FakeEngineThread(on_event, script))
        return engines[-1]

    with parts_over(qapp, make) as made:
        for path in ("/models/other", "/models/tiny"):
            open_model(qtbot, made, path)
        yield made


@pytest.fixture
def window(parts: Parts) -> CompareView:
    parts.show("runs")
    parts.runs.show_form(Kind.COMPARE)
    parts.runs.compare.prompt.setPlainText("one")
    return parts.runs.compare


def fit(window: CompareView, weights: int) -> None:
    """The right side needs so much."""
    window._runner._weigh = lambda config: needs(weights)


def run(qtbot: QtBot, window: CompareView) -> Decision:
    """Start, wait for the end; how both sides got an engine."""
    assert window.start.isEnabled(), window.status.text()
    window.start.click()
    qtbot.waitUntil(lambda: not window._runner.is_running, timeout=8000)
    assert window._runner.problem == "", window._runner.problem
    replies = [reply for pair in window._pairs for reply in pair.replies]
    assert replies and all(reply is not None and reply.is_done for reply in replies)
    decision = window._runner.decision
    assert decision is not None and window.placement.text() == decision.why
    return decision


def requests(engine: FakeEngineThread) -> list[messages.AddRequest]:
    return [c for c in engine.commands if isinstance(c, messages.AddRequest)]


def reconfigured(engine: FakeEngineThread) -> bool:
    return any(isinstance(c, messages.Reconfigure) for c in engine.commands)


@pytest.mark.slow
def test_sampling_alone_needs_one_engine(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread]
) -> None:
    window.sides[1].precision.choose({"quantization": "none"})
    assert not window.start.isEnabled()
    window.sides[1].sampling.setCurrentIndex(2)
    window.sides[1].sampling.activated.emit(2)
    window.seed.setValue(7)
    window.together.click()
    assert run(qtbot, window).placement is Placement.SHARED
    first, second = requests(engines[0])
    assert (first.params.temperature, first.params.seed) == (0.0, 7)
    assert second.params.temperature > 0 and second.params.seed == 7
    assert len(engines) == 1 and not reconfigured(engines[0])
    assert window.sides[1].sampling.currentText() in window.columns.sides[1].title.text()
    assert "TTFT" not in window.columns.line.text()  # the columns have the means


def test_two_engines_are_loaded_at_once_where_they_fit(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread]
) -> None:
    fit(window, MIB)
    window.sides[1].precision.choose({"quantization": "int8"})
    assert run(qtbot, window).placement is Placement.CONCURRENT
    left, right = engines
    assert len(requests(left)) == len(requests(right)) == 1 and not reconfigured(left)
    load = next(c for c in right.commands if isinstance(c, messages.Load))
    assert (load.config.quantization, load.config.kv_cache_memory_bytes) == ("int8", 90 * MIB)
    qtbot.waitUntil(lambda: not right.is_alive(), timeout=3000)  # its memory is given back


def test_they_go_one_after_the_other_where_they_do_not(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread]
) -> None:
    fit(window, 2**45)
    window.sides[1].precision.choose({"quantization": "int8"})
    made = run(qtbot, window)
    assert made.placement is Placement.RECONFIGURE and "TiB" in made.why
    assert len(engines) == 1 and len(requests(engines[0])) == 2 and reconfigured(engines[0])


def pick(box: QComboBox, text: str) -> None:
    """As the user chooses it."""
    box.setCurrentIndex(box.findText(text))
    box.activated.emit(box.currentIndex())


def told(engine: FakeEngineThread) -> list[str]:
    """What an engine was asked and made into, in words."""
    found = []
    for command in engine.commands:
        match command:
            case messages.AddRequest():
                found.append("ask")
            case messages.Reconfigure(changes):
                found.append(str(changes["quantization"]))
            case messages.Load(config):
                found.append(config.model.rpartition("/")[2])
    return found


@pytest.mark.slow
def test_the_left_begins_as_what_is_loaded_and_can_be_another(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread]
) -> None:
    fit(window, 2**45)
    left, right = (side.precision for side in window.sides)
    assert left.settings["quantization"] == "auto" and right.settings["quantization"] == "int8"
    left.choose({"quantization": "int8"})
    assert not window.start.isEnabled()
    right.choose({"quantization": "int4"})
    assert run(qtbot, window).placement is Placement.RECONFIGURE
    assert told(engines[0])[2:] == ["int8", "ask", "int4", "ask", "auto"]


@pytest.mark.slow
def test_where_the_right_is_what_is_loaded_nothing_is_switched_first(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread]
) -> None:
    fit(window, 2**45)
    window.sides[0].precision.choose({"quantization": "int8"})
    window.sides[1].precision.choose({"quantization": "auto"})
    assert run(qtbot, window).placement is Placement.RECONFIGURE
    assert told(engines[0])[2:] == ["ask", "int8", "ask", "auto"]


@pytest.mark.slow
def test_two_engines_that_are_both_not_the_one_of_the_window(
    qtbot: QtBot, parts: Parts, window: CompareView,
    engines: list[FakeEngineThread],
) -> None:  # fmt: skip
    fit(window, MIB)
    pick(window.sides[0].model, "other")
    window.sides[1].precision.choose({"quantization": "int8"})
    assert run(qtbot, window).placement is Placement.CONCURRENT
    assert told(engines[0]) == ["other", "tiny", "other", "ask", "tiny"]
    assert told(engines[1]) == ["tiny", "ask"]
    lines = [*(c.title for c in window.columns.sides), *(side.what for side in window.sides)]
    assert [line.text().split(" ·")[0] for line in lines] == 2 * ["other", "tiny"]
    assert all(line.text().count("tiny") < 2 for line in lines)
    assert parts.bridge.config is not None
    assert parts.bridge.config.model == "/models/tiny"


@pytest.mark.slow
def test_what_cannot_be_the_left_leaves_the_engine_as_it_was(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread], script: Script
) -> None:
    fit(window, 2**45)
    window.sides[0].precision.choose({"quantization": "int8"})
    window.sides[1].precision.choose({"quantization": "int4"})
    script.failing_settings = ("quantization",)
    window.start.click()
    qtbot.waitUntil(lambda: not window._runner.is_running, timeout=8000)
    assert window._runner.problem and "9 GiB of 3 GiB" in window.status.text()
    assert told(engines[0])[2:] == ["int8"]


@pytest.mark.parametrize("weights", [MIB, 2**45])
def test_another_model_beside_or_in_place_of_the_one_that_is_open(
    qtbot: QtBot, parts: Parts, window: CompareView,
    engines: list[FakeEngineThread], weights: int,
) -> None:  # fmt: skip
    fit(window, weights)
    other = window.sides[1].model.findText("other")
    window.sides[1].model.setCurrentIndex(other)
    window.sides[1].model.activated.emit(other)
    window.sides[1].speculation.setCurrentIndex(2)
    window.sides[1].speculation.activated.emit(2)
    run(qtbot, window)
    loads = [c.config for e in engines for c in e.commands if isinstance(c, messages.Load)]
    asked = next(c for c in loads[2:] if c.model == "/models/other")
    assert asked.speculative_method == "ngram"
    names = [c.model.rpartition("/")[2] for c in loads]
    if weights == MIB:
        assert len(engines) == 2 and names == ["other", "tiny", "other"]
    else:
        assert len(engines) == 1 and names == ["other", "tiny", "other", "tiny"]
    assert parts.bridge.config is not None
    assert parts.bridge.config.model == "/models/tiny"
    assert parts.session.current is not None
    assert parts.session.current.path == "/models/tiny"
    assert "ngram" in window.columns.sides[1].title.text()
    assert window._pairs[0].is_by_text


def test_a_second_engine_that_is_not_loaded_leaves_the_other_way(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread], script: Script
) -> None:
    fit(window, MIB)
    script.broken_models = ("/models/tiny",)  # from now on
    window.sides[1].precision.choose({"quantization": "int8"})
    assert run(qtbot, window).placement is Placement.RECONFIGURE
    assert len(engines) == 2 and reconfigured(engines[0])


@pytest.mark.slow
def test_stopping_while_a_second_engine_loads_ends_it(
    qtbot: QtBot, window: CompareView, engines: list[FakeEngineThread], script: Script
) -> None:
    fit(window, MIB)
    script.load_steps, script.load_step_s = 10_000, 0.02
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    qtbot.waitUntil(lambda: window._runner.phase is Phase.LOADING, timeout=5000)
    window.start.click()
    qtbot.waitUntil(lambda: not window._runner.is_running, timeout=5000)
    qtbot.waitUntil(lambda: not engines[1].is_alive(), timeout=3000)


def test_the_program_can_end_in_the_middle(
    qtbot: QtBot, parts: Parts, window: CompareView,
    engines: list[FakeEngineThread], script: Script,
) -> None:  # fmt: skip
    fit(window, MIB)
    script.replies, script.step_s = 100_000, 0.01
    window.sides[1].precision.choose({"quantization": "int8"})
    window.start.click()
    qtbot.waitUntil(lambda: window._runner.phase is Phase.ANSWERING, timeout=5000)
    parts.runs.program_ends.emit()
    assert not engines[1].is_alive()


@pytest.mark.slow
def test_the_program_can_end_while_a_second_engine_gives_its_memory_back(
    qtbot: QtBot, parts: Parts, window: CompareView,
    engines: list[FakeEngineThread], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    obey = FakeEngineThread._obey

    def slowly(engine: FakeEngineThread, command: messages.Command) -> None:
        if isinstance(command, messages.Unload):
            engine._ending.wait()
        obey(engine, command)

    monkeypatch.setattr(FakeEngineThread, "_obey", slowly)
    fit(window, MIB)
    window.sides[1].precision.choose({"quantization": "int8"})
    run(qtbot, window)
    assert engines[1].is_alive()
    parts.runs.program_ends.emit()
    assert not engines[1].is_alive()


@pytest.fixture
def real(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    """With the real engine."""
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=120_000):
        made.startup.open_first_model({"num_threads": 1, "kv_cache_memory_bytes": 8 * MIB})
    yield made
    made.shutdown()


@pytest.mark.slow
def test_the_real_engines_answer_at_the_same_time(qtbot: QtBot, real: Application) -> None:
    application = real
    before = application.bridge.config
    application.window.commands.run("chat.compare")
    window = application.pages.runs.compare
    window.max_tokens.setValue(16)
    window.prompt.setPlainText("What is TTFT?")
    window.sides[1].precision.choose({"quantization": "int8", "quantization_head": "int8"})
    window.together.click()
    window.start.click()
    qtbot.waitUntil(lambda: not window._runner.is_running, timeout=120_000)
    assert window._runner.decision is not None, window.status.text()
    assert window._runner.decision.placement is Placement.CONCURRENT
    left, right = window._pairs[0].replies
    assert left is not None and right is not None and len(left.tokens) == len(right.tokens) == 16
    sides = window._runner.comparison.sides  # type: ignore[union-attr]
    assert "INT8 weights" in sides[1].precision and "INT8" not in sides[0].precision
    assert sides[1].weights_bytes < sides[0].weights_bytes  # type: ignore[operator]
    assert application.bridge.config == before

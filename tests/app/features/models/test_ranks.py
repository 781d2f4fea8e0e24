"""A model whose ranks or stages are on several GPUs, before it is loaded: what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from pytestqt.qtbot import QtBot

import engine.host.resolve
from app.features.compare.placement import Placement, decide
from app.features.inspect.memory_view import MemoryPanel
from app.features.models.estimate import NOTHING, Estimate, Need, estimate
from app.features.models.fit import Fit
from app.features.models.fit_rows import FitRows, MemoryBar
from app.features.models.model_card import ModelCard
from app.features.models.placement import RANKS, STAGES, most_ranks, most_stages
from app.main.application import Application
from app.storage.model_sources import shape_sources
from engine.config import EngineConfig
from engine.models.checkpoint import Checkpoint
from engine.snapshot import MemoryPlan
from tests.app.fakes import Script
from tests.app.features.models.test_open_model import report
from tests.app.window_fixtures import application, open_model, script
from tests.figures import numbers
from tests.widgets import synthetic

__all__ = ["application", "script"]

GIB = 2**30
LLAMA = shape_sources()[2]
CONFIG = EngineConfig(
    model=LLAMA.path,
    load_format="dummy",
    dtype="bfloat16",
    max_model_len=8192,
    device="cuda:0",
    tensor_parallel_size=2,
)
Pretend = Callable[..., None]


STAGED = CONFIG.replace(tensor_parallel_size=1, pipeline_parallel_size=2)


@pytest.mark.parametrize("name", [RANKS, STAGES])
@pytest.mark.parametrize(
    ("device", "count", "found"),
    [
        ("cpu", 4, ("cpu",)),
        ("cuda:0", 1, ("cuda:0",)),
        ("cuda:3", 3, ("cuda:3", "cuda:4", "cuda:5")),
    ],
)
def test_parts_are_on_the_gpus_from_the_chosen_one_on(
    name: str, device: str, count: int, found: tuple[str, ...]
) -> None:
    assert EngineConfig(device=device).replace(**{name: count}).devices == found


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """GPUs of which so many GiB are free, half of each, beside plenty of RAM."""

    def pretend(*free: int) -> None:
        def free_memory(device: str = "cpu") -> tuple[int, int]:
            size = (64 if device == "cpu" else free[int(device.partition(":")[2])]) * GIB
            return size, 2 * size

        real = engine.host.resolve.resolve

        def resolve(
            config: EngineConfig, in_use: Mapping[str, int]
        ) -> tuple[EngineConfig, Checkpoint]:
            several = {name: getattr(config, name) for name in (RANKS, STAGES)}
            resolved, checkpoint = real(config.replace(**dict.fromkeys(several, 1)))
            return resolved.replace(**several), checkpoint

        monkeypatch.setattr("engine.hardware.machine.free_memory", free_memory)
        monkeypatch.setattr("engine.memory.plan.free_memory", free_memory)
        monkeypatch.setattr("engine.host.resolve.resolve_device", lambda device: "cuda:0")
        monkeypatch.setattr("engine.host.resolve.default_dtype", lambda *found: "bfloat16")
        monkeypatch.setattr("engine.host.resolve.resolve", resolve)
        monkeypatch.setattr("app.features.models.placement.gpus", lambda: free)

    return pretend


def need_of(config: EngineConfig, held: dict[str, int] | None = None) -> Need:
    need = estimate(config, held or {}).need
    assert need is not None
    return need


def test_the_gpu_with_the_least_free_decides(gpus: Pretend) -> None:
    gpus(40, 30, 50)
    need = need_of(CONFIG)
    assert estimate(CONFIG).most_ranks == 3
    assert (need.num_gpus, need.free, need.total) == (2, 30 * GIB, 60 * GIB)
    assert numbers(need.where) == [2] and need.fits
    assert need.kv_bytes_per_token == 2 * need.kv_cache / need.max_model_len
    alone = need_of(CONFIG.replace(tensor_parallel_size=1))
    assert (alone.num_gpus, alone.free, alone.where) == (1, 40 * GIB, "")
    assert need.weights <= alone.weights
    held = {"cuda:0": 5 * GIB, "cuda:1": 15 * GIB}
    assert need_of(CONFIG, held).free == 45 * GIB


def test_the_stage_that_needs_most_decides(gpus: Pretend) -> None:
    gpus(40, 30, 50)
    need, alone = need_of(STAGED), need_of(STAGED.replace(pipeline_parallel_size=1))
    assert estimate(STAGED).most_stages == 3
    assert (need.num_gpus, need.free, numbers(need.where)) == (2, 30 * GIB, [2])
    assert 0.5 * alone.weights <= need.weights < 0.6 * alone.weights
    assert need.kv_bytes_per_token == alone.kv_bytes_per_token
    three = need_of(STAGED.replace(pipeline_parallel_size=3))  # 32 layers: 10, 11, 11
    assert three.kv_bytes_per_token == alone.kv_bytes_per_token
    assert three.kv_cache == alone.kv_cache * 11 // 32
    held = {"cuda:0": 5 * GIB, "cuda:1": 15 * GIB}
    assert need_of(STAGED, held).free == 45 * GIB


@pytest.mark.parametrize("config", [CONFIG, STAGED], ids=["ranks", "stages"])
def test_the_cpu_computes_no_layers_beside_several_gpus(
    gpus: Pretend, config: EngineConfig
) -> None:
    gpus(5, 5)
    found = estimate(config)
    assert found.need is not None and found.need.in_ram is None
    assert not found.can_open and found.proposed_len is None
    one = config.replace(tensor_parallel_size=1, pipeline_parallel_size=1)
    assert need_of(one).in_ram is not None


def test_fewer_gpus_than_ranks_are_no_fault_of_the_program(gpus: Pretend) -> None:
    gpus(40)
    found = estimate(CONFIG)
    assert found.need is None and not found.can_open
    assert "cuda:1" in found.problem
    assert "“Tensor parallel size”" in found.problem
    problem = estimate(STAGED).problem
    assert "cuda:1" in problem
    assert "“Pipeline parallel size”" in problem


def test_ranks_on_the_cpu_are_in_one_memory() -> None:
    found = estimate(
        EngineConfig(
            model=shape_sources()[0].path, load_format="dummy", device="cpu", max_model_len=256,
            tensor_parallel_size=2,
        ),
        NOTHING,
    )  # fmt: skip
    assert found.need is not None and found.need.num_gpus == 1 and found.need.where == ""


PART = Need(
    4096, "bfloat16", 7 * GIB, GIB // 8, GIB // 4, 12 * GIB, 16 * GIB, 11 * GIB, "cuda:0", 32,
    num_gpus=2,
)  # fmt: skip


def test_the_card_says_on_how_many_gpus(qtbot: QtBot) -> None:
    card = ModelCard()
    qtbot.addWidget(card)
    known = report(num_layers=32, context_length=4096)
    card.show_source(LLAMA, {})
    card.show_estimate(Estimate(known, PART, fitting_len=4096))
    assert numbers(card.verdict) == [16, 7.38, 11.0, 2]
    assert card.fact("KV cache per token") == "128 KiB"  # of both
    card.show_estimate(Estimate(known, replace(PART, weights=20 * GIB)))
    assert numbers(card.verdict)[:3] == [20.4, 2, 11.0]
    card.show_estimate(Estimate(known, replace(PART, num_gpus=1, weights=20 * GIB)))
    assert numbers(card.verdict)[:2] == [20.4, 11.0]


def test_ranks_are_chosen_on_the_card_where_there_are_places_for_them(qtbot: QtBot) -> None:
    """Only numbers that divide the heads, and nothing is asked where there is one place."""
    card, asked = ModelCard(), []
    qtbot.addWidget(card)
    card.options_changed.connect(lambda: asked.append(card.chosen().get(RANKS)))
    offered = lambda: [card.ranks.itemData(i) for i in range(card.ranks.count())]
    card.show_source(LLAMA, {})
    alone = replace(PART, num_gpus=1)
    card.show_estimate(Estimate(report(), alone, fitting_len=4096))
    assert card.ranks.isHidden() and card.ranks.label.isHidden() and RANKS not in card.chosen()
    card.show_estimate(Estimate(report(), alone, fitting_len=4096, most_ranks=8))
    assert offered() == [1, 2, 4, 8] and not card.ranks.isHidden()
    card.show_estimate(Estimate(report(num_kv_heads=2), alone, most_ranks=8))
    assert offered() == [1, 2] and card.chosen()[RANKS] == 1
    card.ranks.setCurrentIndex(1)
    card.ranks.activated.emit(1)
    assert asked == [2] and card.chosen()[RANKS] == 2
    card.show_estimate(Estimate(report(), None, "cuda:1 is not there."))  # to be taken back
    assert offered() == [1, 2] and card.chosen()[RANKS] == 2 and not card.ranks.isHidden()
    card.show_source(LLAMA, {})
    assert card.ranks.isHidden() and card.ranks.value == 1
    card.show_source(LLAMA, {RANKS: 4})
    assert offered() == [1, 4] and card.chosen()[RANKS] == 4


def test_stages_are_chosen_on_the_card_where_there_are_gpus_for_them(qtbot: QtBot) -> None:
    card = ModelCard()
    qtbot.addWidget(card)
    offered = lambda: [card.stages.itemData(i) for i in range(card.stages.count())]
    card.show_source(LLAMA, {})
    alone = replace(PART, num_gpus=1)
    card.show_estimate(Estimate(report(num_layers=3), alone, most_ranks=2))  # two NUMA nodes
    assert card.stages.isHidden() and STAGES not in card.chosen() and not card.ranks.isHidden()
    card.show_estimate(Estimate(report(num_layers=3), alone, most_ranks=8, most_stages=8))
    assert offered() == [1, 2] and card.stages.label.text() == "Pipeline parallel size"
    card.show_estimate(Estimate(report(num_layers=4), alone, most_ranks=8, most_stages=8))
    assert offered() == [1, 2, 4] and card.chosen()[STAGES] == 1
    card.show_source(LLAMA, {STAGES: 3})  # to be taken back where there are no more GPUs
    card.show_estimate(Estimate(report(), None, "cuda:1 is not there."))
    assert offered() == [1, 3] and card.chosen()[STAGES] == 3


def test_places_are_gpus_from_the_chosen_one_on_or_numa_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.features.models.placement.gpus", lambda: (object(),) * 4)
    monkeypatch.setattr(
        "app.features.models.placement.nodes", lambda: (frozenset({0}), frozenset({1}))
    )
    devices = ("cpu", "cuda:0", "cuda:3")
    assert [most_ranks(device) for device in devices] == [2, 4, 1]
    assert [most_stages(device) for device in devices] == [1, 4, 1]


def test_the_bars_say_so_too(qtbot: QtBot) -> None:
    bar, rows = MemoryBar(), FitRows()
    for widget in (bar, rows):
        qtbot.addWidget(widget)
    bar.show_need(PART)
    assert numbers(bar.text())[:2] == [2, 7.0] and "each" in bar.text()
    bar.resize(400, bar.sizeHint().height())
    one = bar.grab()
    bar.show_need(replace(PART, num_gpus=1))
    assert "each" not in bar.text() and bar.grab().toImage() != one.toImage()
    fit = Fit("bfloat16", PART, 4096)
    rows.show_fits([fit])
    assert numbers(rows.text()) == [16, 7.38, 2, 4096] and PART.where in rows.text()
    assert rows.text().startswith(fit.name) and rows.text().endswith(fit.text)
    assert numbers(rows.toolTip())[-3:] == [12.0, 2, 4096] and PART.where in rows.toolTip()


def test_a_comparison_says_on_how_many_gpus_each_side_is() -> None:
    plan = MemoryPlan(40 * GIB, 40 * GIB, 0, 40 * GIB, 4 * GIB, GIB, GIB, GIB, 1)
    taken = EngineConfig(model="/models/other", device="cuda:0", tensor_parallel_size=2)
    made = decide(CONFIG, taken, plan, Estimate(report(), PART), "right")
    assert made.placement is Placement.CONCURRENT
    numbers = ("6.00 GiB on each of 2 GPUs", "7.38 GiB on each of 2 GPUs", "40.0 GiB")
    assert all(number in made.why for number in numbers)
    stages = taken.replace(tensor_parallel_size=1, pipeline_parallel_size=2)
    same = decide(CONFIG, stages, plan, Estimate(report(), PART), "right")
    assert same.why == made.why
    one = decide(CONFIG, taken.replace(device="cpu"), plan, Estimate(report(), PART), "right")
    assert "6.00 GiB," in one.why


def test_the_memory_page_is_of_the_first_gpu(qtbot: QtBot) -> None:
    panel = MemoryPanel()
    qtbot.addWidget(panel)
    panel.show()
    seen = synthetic.snapshot(1.0)
    titles = []
    for device, ranks, stages in (
        ("cpu", 1, 1), ("cpu", 2, 1), ("cuda:1", 1, 1), ("cuda:1", 4, 1), ("cuda:1", 1, 3)
    ):  # fmt: skip
        model = replace(seen.model, device=device, num_ranks=ranks, num_stages=stages)
        panel.update_snapshot(replace(seen, model=model))
        titles.append((panel._plan_title.text(), panel._machine_title.text()))
    found = [(numbers(plan)[-1:], numbers(machine)) for plan, machine in titles]
    assert found == [([], []), ([], []), ([], [1]), ([4], [1]), ([3], [1])]


@pytest.mark.parametrize("name", [RANKS, STAGES])
def test_what_is_loaded_gives_back_its_part_of_every_gpu(
    qtbot: QtBot, application: Application, script: Script, name: str
) -> None:
    script.host_layers = 0
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open("/models/tiny", settings={name: 2})
    plan = application.bridge.plan
    assert plan is not None
    held = plan.predicted
    assert application.bridge.gives_back == {"cpu": 0, "cuda:0": held, "cuda:1": held}
    open_model(qtbot, application, "/models/other")
    assert application.bridge.gives_back == {"cpu": 0, "cuda:0": held}

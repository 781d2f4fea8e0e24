"""A model that is larger than the GPU's memory, before it is loaded: what is said of it, and what
can be chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from app.features.compare.placement import Placement, decide
from app.features.models.estimate import NOTHING, Estimate, InRam, Need, estimate
from app.features.models.fit import fits
from app.features.models.fit_rows import FitRows, MemoryBar
from app.storage.model_sources import shape_sources
from app.window.settings_store import RecentModel, SettingsStore
from engine.config import EngineConfig
from engine.host.resolve import resolve
from engine.memory.plan import plan_memory
from engine.snapshot import MemoryPlan
from tests.app.features.models.test_open_model import page_for, report
from tests.figures import numbers

GIB = 2**30
LLAMA = shape_sources()[2]
CONFIG = EngineConfig(
    model=LLAMA.path, load_format="dummy", dtype="bfloat16", max_model_len=8192, device="cuda:0"
)
Pretend = Callable[[int, int], None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """A GPU and RAM of which so many GiB are free: half of each."""

    def pretend(of_gpu: int, of_ram: int) -> None:
        def free_memory(device: str = "cpu") -> tuple[int, int]:
            size = (of_gpu if device == "cuda:0" else of_ram) * GIB
            return size, 2 * size

        monkeypatch.setattr("engine.hardware.machine.free_memory", free_memory)
        monkeypatch.setattr("engine.memory.plan.free_memory", free_memory)
        monkeypatch.setattr("engine.host.resolve.resolve_device", lambda device: "cuda:0")
        monkeypatch.setattr("engine.host.resolve.default_dtype", lambda *found: "bfloat16")

    return pretend


def need_of(config: EngineConfig, held: dict[str, int] | None = None) -> Need:
    need = estimate(config, held or {}).need
    assert need is not None
    return need


def test_as_many_layers_as_the_engine_would_have(gpu: Pretend) -> None:
    """Weights of 15 GiB on a GPU of 12."""
    gpu(12, 64)
    found = estimate(CONFIG)
    need = found.need
    assert need is not None and need.in_ram is not None and found.can_open
    resolved, checkpoint = resolve(CONFIG)
    plan = plan_memory(checkpoint, resolved)
    assert need.in_ram.layers == plan.host_layers > 0
    assert (need.weights, need.in_ram.weights) == (plan.weights, plan.host_weights)
    assert need.activations == plan.activations
    assert need.kv_cache == 512 * plan.bytes_per_block
    assert need.in_ram.kv_cache == 512 * plan.host_bytes_per_block
    assert numbers(need.layers) == [32 - plan.host_layers, 32, 0] and "cuda:0" in need.layers
    assert need.kv_bytes_per_token == 32 * 8 * 128 * 2 * 2
    assert need.fits and found.fitting_len == 8192 and found.whole_len is None


def test_the_division_that_was_chosen_is_kept(gpu: Pretend) -> None:
    gpu(24, 64)
    whole, chosen = need_of(CONFIG), need_of(CONFIG.replace(gpu_layers="20"))
    assert whole.fits and whole.in_ram is None
    assert need_of(CONFIG.replace(gpu_layers="all")) == whole
    assert chosen.fits and chosen.in_ram is not None and chosen.in_ram.layers == 12
    wanted = estimate(CONFIG.replace(gpu_layers="20"))
    assert (wanted.whole_len, wanted.proposed_len) == (None, None)
    gpu(12, 64)
    for layers in ("all", "31"):
        found = estimate(CONFIG.replace(gpu_layers=layers))
        assert not found.can_open and found.need is not None
        assert (found.need.in_ram is not None) == (layers == "31")
    gpu(12, 4)  # nowhere
    assert need_of(CONFIG).in_ram is None and not need_of(CONFIG).fits


def test_what_the_model_of_now_gives_back_counts_where_it_is(gpu: Pretend) -> None:
    gpu(8, 7)
    assert not need_of(CONFIG).fits
    assert need_of(CONFIG, {"cpu": 7 * GIB}).fits
    gpu(8, 64)
    before, after = need_of(CONFIG).in_ram, need_of(CONFIG, {"cuda:0": 4 * GIB}).in_ram
    assert before is not None and after is not None and after.layers < before.layers
    assert need_of(CONFIG, {"cpu": 4 * GIB}).in_ram == replace(before, limit=before.limit + 4 * GIB)


def test_a_shorter_context_is_told_of(gpu: Pretend) -> None:
    """With the whole model on the GPU, where there is such; else with what fits at all."""
    gpu(20, 64)
    found = estimate(CONFIG.replace(max_model_len=65536))
    assert found.need is not None and found.need.in_ram is not None and found.need.fits
    assert found.whole_len is not None and 4096 <= found.whole_len < 65536
    assert found.proposed_len == found.whole_len
    resolved, checkpoint = resolve(CONFIG.replace(max_model_len=65536))
    assert found.whole_len == plan_memory(checkpoint, resolved).undivided_model_len
    assert need_of(CONFIG.replace(max_model_len=found.whole_len)).in_ram is None
    gpu(12, 64)  # too small for the weights alone: few layers leave the GPU for the context
    own = estimate(CONFIG.replace(max_model_len=131072))
    assert own.need is not None and own.need.fits and own.proposed_len is not None
    at = {n: need_of(CONFIG.replace(max_model_len=n)).in_ram for n in (4096, own.proposed_len)}
    least, proposed, whole = at[4096], at[own.proposed_len], own.need.in_ram
    assert least is not None and proposed is not None and whole is not None
    assert least.layers <= proposed.layers <= least.layers + 2 < whole.layers
    assert own.proposed_len > 4096
    gpu(8, 14)
    long = estimate(CONFIG.replace(max_model_len=131072))
    assert not long.can_open and long.fitting_len is not None
    short = need_of(CONFIG.replace(max_model_len=long.fitting_len))
    assert short.fits and short.in_ram is not None
    assert not need_of(CONFIG.replace(max_model_len=2 * long.fitting_len)).fits


def test_precisions_say_which_are_divided(gpu: Pretend, qtbot: QtBot) -> None:
    gpu(12, 64)
    found = fits(CONFIG, NOTHING, estimate)
    texts = {fit.name: fit.text for fit in found}
    assert numbers(texts["BF16, FP16"])[-2:] == [32, 0]
    assert len(numbers(texts["INT4 weights"])) == 1  # a length
    rows = FitRows()
    qtbot.addWidget(rows)
    rows.resize(500, 200)
    rows.show_fits(found)
    assert not rows.grab().isNull()
    tip = rows.toolTip()
    whole = [fit for fit in found if fit.need.in_ram is None]
    rows.show_fits(whole)
    assert len(rows.toolTip()) < len(tip)


# The page and its card -------------------------------------------------------------------------


def divided(length: int, layers: int) -> Need:
    """Of 32 layers, with so many on the GPU."""
    need = Need(
        length, "bfloat16", layers * GIB // 2, GIB // 8, layers * length * 512, 12 * GIB, 16 * GIB,
        11 * GIB, "cuda:0", 32,
    )  # fmt: skip
    if layers == 32:
        return need
    part = 32 - layers
    in_ram = InRam(part, part * GIB // 2, GIB // 16, part * length * 512, 32 * GIB)
    return replace(need, in_ram=in_ram)


def scripted(config: EngineConfig, in_use: Any) -> Estimate:
    """20 of 32 layers fit at any context; none are on the GPU of a model in int8."""
    known = report(num_layers=32, context_length=65536)
    length = config.max_model_len or 65536
    wanted = {"auto": 20, "all": 32}.get(config.gpu_layers)
    need = divided(length, int(config.gpu_layers) if wanted is None else wanted)
    return Estimate(known, need, fitting_len=length if need.fits else None)


def test_a_model_that_is_divided_is_opened_as_it_was_said(qtbot: QtBot) -> None:
    store = SettingsStore()
    page = page_for(qtbot, store, scripted)
    page.library.list.choose(LLAMA)
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    card = page.detail.card
    assert numbers(card.verdict) == [20, 32, 0, 12, 6.44]
    bar = card._bar.text()
    assert "Weights 10.0 GiB" in bar and "Weights 6.00 GiB" in bar
    assert card.layers.isVisible() and card.layers.field.text() == "auto"
    card.layers.slider.setValue(30)
    qtbot.waitUntil(lambda: numbers(card.verdict)[:2] == [30, 32], timeout=5000)
    assert numbers(card.verdict)[-2:] == [0, 11.0]
    assert not page.inspector.can_open
    card.layers.slider.setValue(12)
    qtbot.waitUntil(lambda: "Fits with 12 of 32" in card.verdict, timeout=5000)
    with qtbot.waitSignal(page.model_chosen) as chosen:
        page.detail.primary.click()
    assert chosen.args is not None and chosen.args[2]["gpu_layers"] == "12"


def test_the_layers_chosen_before_are_offered_again(qtbot: QtBot) -> None:
    store = SettingsStore()
    store.remember_model(RecentModel(LLAMA.path, "dummy", "shape", {"gpu_layers": "16"}))
    page = page_for(qtbot, store, scripted)
    page.library.list.choose(LLAMA)
    qtbot.waitUntil(lambda: "Fits with 16 of 32" in page.detail.card.verdict, timeout=5000)
    assert page.detail.card.layers.field.text() == "16 of 32"


def test_a_shorter_context_is_proposed_before_the_cpu_computes(qtbot: QtBot) -> None:
    """And a longer one can still be chosen."""

    def roomy(config: EngineConfig, in_use: Any) -> Estimate:
        length = config.max_model_len or 65536
        if length <= 8192:
            need = replace(divided(length, 32), weights=GIB)
            return Estimate(report(context_length=65536), need, fitting_len=length)
        found = scripted(config, in_use)
        return replace(found, whole_len=8192, proposed_len=8192)

    page = page_for(qtbot, SettingsStore(), roomy)
    page.library.list.choose(LLAMA)
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    card = page.detail.card
    assert card.chosen()["max_model_len"] == 8192 and "BF16" in card.verdict
    card.choose_context(16384)
    card.options_changed.emit()
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    assert 8192 in numbers(card.verdict)
    assert card.chosen()["max_model_len"] == 16384


def test_without_a_gpu_no_layers_are_offered(qtbot: QtBot) -> None:
    page = page_for(qtbot, SettingsStore())
    page.library.list.choose(shape_sources()[0])
    qtbot.waitUntil(lambda: page.inspector.estimate is not None, timeout=30_000)
    assert page.detail.card.layers.isHidden() and "gpu_layers" not in page.detail.card.chosen()


def test_the_bar_grows_with_a_second_part(qtbot: QtBot) -> None:
    bar = MemoryBar()
    qtbot.addWidget(bar)
    bar.show_need(divided(4096, 32))
    one = bar.sizeHint().height()
    bar.show_need(divided(4096, 20))
    bar.resize(400, bar.sizeHint().height())
    assert bar.sizeHint().height() > one and not bar.grab().isNull()


# Two engines for a comparison --------------------------------------------------------------------


def test_a_second_engine_is_not_squeezed_in(qtbot: QtBot) -> None:
    plan = MemoryPlan(40 * GIB, 40 * GIB, 0, 40 * GIB, GIB, GIB, GIB, GIB, 1)
    found = Estimate(report(), divided(4096, 20))
    taken = EngineConfig(model="/models/other", device="cuda:0")
    wanted = EngineConfig(model="/m", device="cuda:0")
    squeezed = decide(wanted, taken, plan, found, "right")
    assert squeezed.placement is Placement.RELOAD
    chosen = decide(wanted.replace(gpu_layers="20"), taken, plan, found, "right")
    assert chosen.placement is Placement.CONCURRENT and chosen.config is not None
    assert chosen.config.kv_cache_memory_bytes == 32 * 4096 * 512  # of both parts

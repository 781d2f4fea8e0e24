"""bfloat16 weights in 12 bits: nothing is lost, products are those of the weights themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.kernels import linear
from engine.kernels.cpu import compressed
from engine.kernels.cpu import library as library_module
from engine.kernels.cpu.check import library
from engine.kernels.cpu.compressed import MOST_OTHERS, PANEL, CompressedWeights
from engine.kernels.cpu.library import Library
from tests.engine import tiny_models
from tests.engine.kernels.test_tiles import threads
from tests.tiers import examples

SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -3e38]


@pytest.fixture(scope="module")
def native() -> Library:
    found = library()
    if found is None or not found.has_amx:
        pytest.skip("needs AMX")
    return found


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16)


def random_weight(panels: int, steps: int, seed: int, spread: float = 0.0) -> Tensor:
    """spread: share of the numbers that have any bits at all, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    shape = PANEL * panels, PANEL * steps
    weight = (torch.randn(shape, generator=generator) * 0.02).bfloat16()
    any_bits = torch.randint(-(2**15), 2**15, shape, generator=generator).to(torch.int16)
    is_any = torch.rand(shape, generator=generator) < spread
    return torch.where(is_any, any_bits, bits(weight)).view(torch.bfloat16)


def compress(weight: Tensor, native: Library) -> CompressedWeights:
    found = CompressedWeights.of(weight, native)
    assert found is not None
    return found


@settings(deadline=None, max_examples=examples(40))
@given(
    panels=st.integers(1, 9),
    steps=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 1e-4, 0.015]),
    special=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(SPECIAL)), max_size=9),
    count=st.integers(1, 3),
)
def test_every_bit_comes_back(
    native: Library, panels: int, steps: int, seed: int, spread: float,
    special: list[tuple[int, float]], count: int,
) -> None:  # fmt: skip
    weight = random_weight(panels, steps, seed, spread)
    for place, number in special:
        weight.view(-1)[place % weight.numel()] = number
    with threads(count):
        held = CompressedWeights.of(weight, native)
    if held is None:
        share = MOST_OTHERS * 0.5 * weight.numel()  # half of any bits fit the exponents by chance
        assert spread * weight.numel() + len(special) > share
        return
    assert torch.equal(bits(held.dense()), bits(weight))
    some = torch.randint(0, len(weight), (7,))
    assert torch.equal(bits(held.rows(some)), bits(weight[some]))
    least = 0.75 * weight.nbytes
    assert least <= held.nbytes <= least + 8 * (MOST_OTHERS * weight.numel() + 3 * panels)


@settings(deadline=None, max_examples=examples(40))
@given(
    rows=st.integers(1, 600) | st.sampled_from([16, 32, 256]),
    panels=st.integers(1, 24),
    steps=st.integers(1, 20),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_products_are_those_of_the_weights_to_the_last_bit(
    native: Library, rows: int, panels: int, steps: int, has_bias: bool, seed: int
) -> None:
    """In any company and on any number of threads; weights that are parts of wider ones too."""
    wide = random_weight(panels, steps + 1, seed)
    weight = wide[:, PANEL:]
    generator = torch.Generator().manual_seed(seed)
    others = torch.rand(weight.shape, generator=generator) < 0.01
    weight[others] = torch.where(weight[others] > 0, 2.0**20, -(2.0**-60)).bfloat16()
    x = torch.randn(rows, weight.shape[1], generator=generator).bfloat16()
    bias = torch.randn(len(weight), generator=generator).bfloat16() if has_bias else None
    held = compress(weight, native)
    found = held.multiply(x, bias)
    assert torch.equal(found, native.tiled(x, weight, bias))
    for first, count in ((0, 1), (1, 2), (rows // 2, 6), (rows - 1, 3)):
        with threads(count):
            assert torch.equal(held.multiply(x[first:], bias), found[first:])


def test_a_recording_has_room_for_fewer_rows(
    native: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread has operands of its own in products of up to 256 rows: tiled.c."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(library_module, "workspace", lambda *sizes: asked.append(sizes))
    inputs = 4096
    native._tiled_workspace(521, inputs)
    ((shared, own),) = asked
    for rows in range(1, 522):
        whole = -(-rows // 16) * 16
        copies = 4 if rows <= 256 else 1
        assert own >= 32 * 2 * inputs
        assert shared >= copies * whole * inputs * native.element_bytes


def test_a_weight_of_too_many_exponents_stays_as_it_is(native: Library) -> None:
    assert CompressedWeights.of(random_weight(2, 2, 0, spread=0.5), native) is None
    zeros = torch.zeros(PANEL, PANEL, dtype=torch.bfloat16)
    assert torch.equal(bits(compress(zeros, native).dense()), bits(zeros))


def test_what_has_no_such_form(native: Library) -> None:
    fits = random_weight(2, 2, 0)
    assert compressed.fits(fits, native) and compressed.fits(fits[:32, 32:], native)
    for other in (fits.float(), fits.half(), fits[:33], fits[:, :48], fits.t(), fits[0], fits[:0]):
        assert not compressed.fits(other, native)


def test_outputs_that_there_are_not_are_zeros(native: Library) -> None:
    weight = random_weight(2, 1, 1)
    found = compress(weight, native).rows(torch.tensor([63, -1, 64, 2**40, 5]))
    assert torch.equal(found[[0, 4]], weight[[63, 5]]) and not found[1:4].any()


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_writes_the_same_with_a_quarter_less(
    native: Library, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head too, and embeddings that are tied to it; embeddings of their own stay plain."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 1024}
    model = tiny_models.make_model("llama", tie_word_embeddings=is_tied, **sizes)
    folder = tiny_models.save(model, tmp_path)
    prompts = tiny_models.make_prompts((5, 30, 17))

    def outcome() -> tuple[Any, int, int]:
        engine = LLMEngine(EngineConfig(model=str(folder), dtype="bfloat16", num_threads=2))
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
        outputs = engine.generate(prompts, params)
        info = engine.model_info
        assert ("12 bits" in info.kernels["linear"]) is (linear.compressed is compressed)
        engine.shutdown()
        found = [(list(o.token_ids), [entry.logprob for entry in o.logprobs]) for o in outputs]
        return found, info.weights_bytes, info.lookup_bytes

    small, bytes_then, lookup = outcome()
    monkeypatch.setattr(linear, "compressed", type("", (), {"fits": lambda *_: False}))
    plain, bytes_before, _ = outcome()
    for (tokens, chances), (wanted, expected) in zip(small, plain, strict=True):
        assert tokens == wanted and chances == pytest.approx(expected, abs=0.02)
    table = 1024 * 128 * 2
    kept = 0 if is_tied else table
    assert lookup == kept
    assert bytes_then - kept == pytest.approx(0.75 * (bytes_before - kept), rel=0.02)

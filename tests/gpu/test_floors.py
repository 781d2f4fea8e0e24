"""Floors against figures that were worked out by hand, and properties that every floor has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.bench.floors import (
    Ceilings,
    Load,
    decode_work,
    divided_floor,
    prefill_work,
    saturated_tokens_per_s,
    seconds,
    total,
    wave_floor,
)
from tests.gpu.bench.published import published
from tests.gpu.bench.shapes import LLAMA_1B, LLAMA_8B, Shape

SHAPE = Shape.named(LLAMA_8B)
H200 = Ceilings(4.3e12, {"bf16": 790e12})
A100 = Ceilings(2.039e12, {"bf16": 312e12}, "data sheet")
CONTEXT = 2000
FAST_ENOUGH = Ceilings(1e30, {"bf16": 1e30})


def step_ms(precision: str, kv: str, batch: int, ceilings: Ceilings = H200) -> float:
    work = decode_work(SHAPE, precision, kv, batch, CONTEXT)
    return seconds(work, ceilings, precision) * 1000


@pytest.mark.parametrize(
    ("precision", "kv", "batch", "wanted"),
    [
        ("bf16", "auto", 1, 3.55), ("int4", "auto", 1, 1.15),
        ("bf16", "auto", 8, 3.98), ("int4", "auto", 8, 1.58),
        ("bf16", "auto", 64, 7.39), ("int4", "auto", 64, 5.12), ("int4", "fp8", 64, 3.17),
        ("bf16", "auto", 256, 20.5), ("bf16", "fp8", 256, 12.7),
    ],
)  # fmt: skip
def test_steps_of_the_8b_shape_on_an_h200(
    precision: str, kv: str, batch: int, wanted: float
) -> None:
    assert step_ms(precision, kv, batch) == pytest.approx(wanted, rel=0.003)


def test_steps_and_a_prompt_on_an_a100() -> None:
    found = [step_ms("bf16", "auto", batch, A100) for batch in (1, 64, 256)]
    assert found == pytest.approx([7.49, 15.6, 45.2], rel=0.003)
    prompt = prefill_work(SHAPE, "bf16", "auto", 1, 1950)
    assert seconds(prompt, A100) * 1000 == pytest.approx(90, rel=0.01)
    assert seconds(prompt, H200) * 1000 == pytest.approx(35.7, rel=0.003)


def test_parameters_and_bytes_are_those_of_the_model() -> None:
    embeddings = SHAPE.head_parameters  # another matrix of the same size
    norms = SHAPE.hidden * (2 * SHAPE.num_layers + 1)
    assert SHAPE.body_parameters + SHAPE.head_parameters + embeddings + norms == 8_030_261_248
    assert SHAPE.kv_bytes_per_token("auto") == 131_072
    assert SHAPE.kv_bytes_per_token("fp8") == 65_536


waves = st.builds(Load, st.integers(1, 256), st.integers(2, 4000), st.integers(2, 500), st.just(0))


@given(waves, st.sampled_from(["bf16", "int4"]), st.sampled_from(["auto", "fp8"]))
def test_a_wave_is_its_prompts_and_all_its_steps(load: Load, precision: str, kv: str) -> None:
    """The step in the middle times their number is the sum over all steps, as long as reading (or
    computing) decides in all of them."""
    floor = wave_floor(SHAPE, precision, kv, load, H200)
    steps = sum(
        seconds(
            decode_work(SHAPE, precision, kv, load.concurrency, load.num_input + index), H200,
            precision,
        )
        for index in range(1, load.num_output)
    )  # fmt: skip
    assert floor.duration_s == pytest.approx(floor.ttft_s + steps, rel=1e-9)
    assert floor.tokens_per_s == pytest.approx(floor.requests_per_s * load.num_output)


@given(waves, st.integers(0, 4000))
def test_sharing_a_prefix_never_costs(load: Load, num_shared: int) -> None:
    shared = load._replace(num_shared=min(num_shared, load.num_input - 1))
    alone = wave_floor(SHAPE, "bf16", "auto", load, H200)
    together = wave_floor(SHAPE, "bf16", "auto", shared, H200)
    assert together.duration_s <= alone.duration_s * (1 + 1e-9)


@given(st.integers(1, 256), st.floats(1, 1e5), st.sampled_from(["bf16", "int8", "fp8", "int4"]))
def test_a_faster_device_has_a_lower_floor(batch: int, context: float, precision: str) -> None:
    work = decode_work(SHAPE, precision, "auto", batch, context)
    faster = Ceilings(2 * H200.bytes_per_s, {"bf16": 2 * H200.rate("bf16")})
    assert seconds(work, faster, precision) == pytest.approx(seconds(work, H200, precision) / 2)
    assert seconds(total([work, work]), H200) == pytest.approx(2 * seconds(work, H200))


def test_few_bits_and_few_tokens_read_less() -> None:
    sizes = [SHAPE.weight_bytes(precision) for precision in ("int4", "int8", "bf16")]
    assert sizes == sorted(sizes)
    assert Shape.named(LLAMA_1B).weight_bytes("bf16") < SHAPE.weight_bytes("int4")


@given(st.integers(0, 32), st.sampled_from(["bf16", "int4"]), st.floats(1, 1e5))
def test_both_parts_of_a_divided_model_have_its_work(
    host_layers: int, precision: str, context: float
) -> None:
    parts = [decode_work(s, precision, "auto", 1, context) for s in SHAPE.divided(host_layers)]
    whole = decode_work(SHAPE, precision, "auto", 1, context)
    assert total(parts) == pytest.approx(whole)
    host = Ceilings(H200.bytes_per_s / 80, {"bf16": H200.rate("bf16") / 400})
    floor = divided_floor(
        SHAPE, host_layers, lambda part: decode_work(part, precision, "auto", 1, context), host,
        H200, precision,
    )  # fmt: skip
    alone = seconds(whole, H200, precision)
    assert alone * 0.999 <= floor.total_s <= seconds(whole, host, precision) * 1.001
    assert floor.total_s == floor.host_s + floor.gpu_s and (floor.host_s > 0) == (host_layers > 0)


@given(st.integers(1, 4000), st.integers(2, 2000), st.floats(2e10, 2e11))
def test_a_full_device_is_faster_than_a_wave_and_slower_than_its_weights_alone(
    num_input: int, num_output: int, memory: float
) -> None:
    full = saturated_tokens_per_s(SHAPE, "bf16", "auto", num_input, num_output, memory, H200)
    one = wave_floor(SHAPE, "bf16", "auto", Load(1, num_input, num_output), H200)
    assert full > one.tokens_per_s * 0.999
    assert full < H200.rate("bf16") / (2 * SHAPE.body_parameters)


def test_nobody_has_published_more_than_the_device_can_do() -> None:
    data = published()
    assert data["figures"] and data["not_found"]
    for figure in data["figures"]:
        assert 0 < figure["fraction"] < 1, figure
        assert data["sources"][figure["source"]]["url"].startswith("https://")

"""Paged attention in Triton against plain softmax in float64, over random ragged batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.gpu.conftest import HAS_GPU, slow_without_gpu

pytest.importorskip("triton")

from engine.kernels.triton import attention
from engine.kernels.triton.attention import (
    FEW_TOKENS,
    Launch,
    paged_attention,
    plan_fixed,
    plan_launch,
)
from engine.kernels.triton.support import device_of
from tests.gpu.paged_scene import Scene, World

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROOM = 10**8
FORMS = ("plain", "plain", "int8", "fp8")

few = st.tuples(st.integers(0, 150), st.sampled_from((1, 1, 1, 3, 17)))
many = st.tuples(st.sampled_from((0, 7, 64)), st.sampled_from((33, 50)))
plain_scenes = st.builds(
    Scene,
    requests=st.lists(st.one_of(few, few, many), min_size=1, max_size=4).map(tuple),
    block_size=st.sampled_from((16, 24, 64, 256)),
    num_kv_heads=st.sampled_from((1, 2)),
    group=st.sampled_from((1, 3, 4, 7)),
    dims=st.sampled_from(((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256))),
    forms=st.tuples(st.sampled_from(FORMS), st.sampled_from(FORMS)),
    dtype=st.sampled_from(tuple(TOLERANCE)),
    window=st.sampled_from((None, 1, 9, 40, 100)),
    chunk=st.sampled_from((None, None, 16, 50)),
    softcap=st.sampled_from((None, 2.0)),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
)


@contextmanager
def short_splits() -> Iterator[None]:
    """Sequences of 65 keys are split, those of 129 and more into longer parts."""
    with patch.object(attention, "SPLIT", 64), patch.object(attention, "MAX_SPLITS", 2):
        yield


def run(world: World, launch: Launch, q: Tensor | None = None) -> Tensor:
    q = world.q if q is None else q
    out = q.new_full((q.shape[0], q.shape[1], world.scene.dims[1]), float("nan"))
    floats = max(1, launch.floats(world.scene.shape))
    workspace = torch.full((floats,), float("nan"), device=world.device)
    return paged_attention(
        q, world.keys, world.values, world.step_tables(), launch, world.options, out, workspace
    )


def planned(world: World, room: int = ROOM) -> Launch:
    return plan_launch(
        world.scene.shape, world.query_lens, world.seq_lens, world.options.most_keys,
        device_of(world.device), room,
    )  # fmt: skip


def fixed(world: World) -> Launch:
    scene = world.scene
    return plan_fixed(
        scene.shape, len(world.query_lens), sum(world.query_lens), 200, world.options.most_keys,
        device_of(world.device), ROOM,
    )  # fmt: skip


@slow_without_gpu
@settings(max_examples=24 if HAS_GPU else 8, derandomize=not HAS_GPU)
@given(scene=plain_scenes)
def test_every_token_sees_its_own_sequence(scene: Scene, device: torch.device) -> None:
    """Natively almost every scene has to be compiled, which takes longer than all the rest: there
    each is drawn with other numbers too, and with its requests in another order."""
    scenes = [scene]
    if HAS_GPU:
        turned = scene.requests[1:] + scene.requests[:1]
        scenes += [replace(scene, seed=scene.seed + i, requests=turned) for i in (1, 2)]
    for one in scenes:
        world = World(one, device)
        with short_splits():
            assert world.error(run(world, planned(world))) <= TOLERANCE[scene.dtype]


@slow_without_gpu
@settings(max_examples=8 if HAS_GPU else 3, derandomize=not HAS_GPU)
@given(scene=plain_scenes, padding=st.integers(0, 3))
def test_a_launch_by_shape_alone_gives_the_same(
    scene: Scene, padding: int, device: torch.device
) -> None:
    """With requests that only fill the batch up, whose results are zeros. To the bit where the
    tiles are the same, as they are of steps that only decode: tensor cores add up in an order that
    depends on their shape."""
    world = World(replace(scene, padding=padding), device)
    with short_splits():
        by_shape, by_lengths = fixed(world), planned(world)
        found, wanted = run(world, by_shape), run(world, by_lengths)
    if by_shape.tiles == by_lengths.tiles or not HAS_GPU:
        assert torch.equal(found, wanted)
    else:
        assert world.error(found) <= TOLERANCE[scene.dtype]


@slow_without_gpu
@settings(max_examples=8 if HAS_GPU else 3, derandomize=not HAS_GPU)
@given(scene=plain_scenes, which=st.integers(0, 2**20))
def test_decoded_tokens_do_not_depend_on_the_batch_nor_on_how_busy_the_device_is(
    scene: Scene, which: int, device: torch.device
) -> None:
    """To the bit, for the keys are always cut at the same places."""
    before, _ = scene.requests[which % len(scene.requests)]
    mates = tuple((b, 1 if n <= FEW_TOKENS else n) for b, n in scene.requests)
    alone = World(replace(scene, requests=((before, 1),)), device)
    together = World(replace(scene, requests=((before, 1), *mates)), device)
    # the same sequence: the first of both
    place(alone, together)
    with short_splits():
        wanted = run(alone, planned(alone))
        assert torch.equal(run(together, planned(together))[:1], wanted)
        assert torch.equal(run(alone, planned(alone, room=0)), wanted)


def place(alone: World, together: World) -> None:
    """Copy the only sequence and query of `alone` to the first request of `together`."""
    for source, target in ((alone.keys, together.keys), (alone.values, together.values)):
        for mine, theirs in zip(alone.tables[0], together.tables[0], strict=True):
            target.elements[theirs] = source.elements[mine]
            if target.scales is not None and source.scales is not None:
                target.scales[theirs] = source.scales[mine]
    together.q[0] = alone.q[0]
    if alone.options.sinks is not None and together.options.sinks is not None:
        together.options.sinks.copy_(alone.options.sinks)


def test_fp8_without_the_devices_own_conversion(device: torch.device) -> None:
    """As on devices before Ada."""
    scene = Scene(
        ((60, 3), (0, 40)), 16, 2, 2, (64, 64), ("fp8", "fp8"), torch.float32, None, None, False, 5
    )
    world = World(scene, device)
    wanted = run(world, planned(world))
    with patch.object(attention, "_form", lambda stored, device: "fp8_shift"):
        assert torch.equal(run(world, planned(world)), wanted)


def test_lanes_are_as_many_as_the_device_needs(device: torch.device) -> None:
    """And never more than there is room for, or than there are splits."""
    scene = Scene(
        ((9, 1),), 16, 8, 4, (128, 128), ("plain", "plain"), torch.bfloat16, None, None, False, 0
    )
    hopper = device_of(torch.device("cpu"))._replace(num_sms=132)

    def lanes(batch: int, length: int, window: int | None = None, room: int = ROOM) -> int:
        lens = [length] * batch
        return plan_launch(scene.shape, [1] * batch, lens, window, hopper, room).lanes

    assert lanes(1, 200) == 1
    assert lanes(1, 2000) == 8
    assert lanes(1, 128_000) == 64
    assert lanes(64, 2000) == 2
    assert lanes(256, 2000) == 1
    assert lanes(1, 128_000, window=512) == 4
    assert lanes(8, 128_000, room=1000) == 1


def test_sums_of_splits_lie_alike_whatever_their_number(device: torch.device) -> None:
    """Kernels are compiled for memory that is aligned, and again where it is not."""
    dims, forms = (64, 32), ("plain", "plain")
    seen: list[int] = []

    class Noted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *given, **_: seen.extend(t.data_ptr() % 16 for t in given[2:5])

    with short_splits(), patch.object(attention, "attend_pages", Noted()):
        for tokens in (1, 3, 5):
            scene = Scene(
                ((100, tokens),), 16, 1, 7, dims, forms, torch.float32, None, None, False, 0
            )
            world = World(scene, device)
            launch = planned(world)
            assert launch.lanes == 2 and tokens * 7 * launch.num_splits % 4
            run(world, launch)
    assert seen == [0] * 9


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["plain", "int8", "fp8"])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_real_sizes_natively(
    dtype: torch.dtype, form: str, dims: tuple[int, int], device: torch.device
) -> None:
    requests = ((0, 1500), (3000, 1), (1990, 17), (700, 300), (0, 40), (9000, 1), (17, 1))
    scene = Scene(requests, 16, 4, 4, dims, (form, form), dtype, None, None, False, 7)
    for variant in (scene, replace(scene, window=512, softcap=30.0, has_sinks=True)):
        world = World(variant, device)
        found = run(world, planned(world))
        assert world.error(found) <= TOLERANCE[dtype]
        assert torch.equal(run(world, planned(world)), found)  # deterministic


@pytest.mark.gpu
def test_decoded_tokens_do_not_depend_on_the_batch_natively(device: torch.device) -> None:
    dims, forms = (128, 128), ("plain", "plain")
    alone = World(
        Scene(((5000, 1),), 16, 8, 4, dims, forms, torch.bfloat16, None, None, False, 1), device
    )
    wanted = run(alone, planned(alone))
    for mates in (((100, 1),), ((2000, 1),) * 40, ((2000, 1),) * 200, ((0, 700), (3000, 1))):
        scene = replace(alone.scene, requests=((5000, 1), *mates), seed=2)
        together = World(scene, device)
        place(alone, together)
        assert torch.equal(run(together, planned(together))[:1], wanted), mates

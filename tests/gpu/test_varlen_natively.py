"""torch's paged attention on a GPU, as the engine calls it where Triton cannot be used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention import varlen as varlen_trial
from engine.attention.interface import LayerSpec
from engine.attention.pages import PagedCache, Pages
from engine.attention.varlen import VarlenSteps
from engine.batch.batch import Batch
from engine.numerics.kv_dtype import PLAIN

pytest.importorskip("triton")  # for what scenes are drawn with

from tests.gpu.paged_scene import Scene, World
from tests.gpu.test_paged_attention import place

pytestmark = pytest.mark.gpu

BLOCK_SIZE = 256
REQUESTS = ((0, 1500), (3000, 1), (1990, 17), (700, 300), (0, 40), (9000, 1), (255, 2), (256, 1))


def scene(dtype: torch.dtype, width: int) -> Scene:
    dims, forms = (width, width), ("plain", "plain")
    return Scene(REQUESTS, BLOCK_SIZE, 4, 4, dims, forms, dtype, None, None, False, 7)


def run(world: World) -> Tensor:
    shape = tuple(world.keys.elements.shape)
    sides = []
    for stored in (world.keys, world.values):
        pages = Pages(shape, world.scene.dtype, world.device)
        pages.elements = stored.elements
        sides.append(pages)
    starts = [0]
    for count in world.query_lens:
        starts.append(starts[-1] + count)
    none = torch.empty(0, dtype=torch.int64, device=world.device)
    steps = VarlenSteps(len(world.tables), max(map(len, world.tables)), world.device)
    steps.begin_step(
        Batch(none, none, none, none, starts, world.seq_lens, world.tables, BLOCK_SIZE)
    )
    return steps.attend(world.q, PagedCache(*sides), world.options)


def needs(dtype: torch.dtype, width: int, device: torch.device) -> None:
    """Skip where torch says that it is not for this GPU; what it computes wrongly is a failure."""
    specs = [LayerSpec(4, width, width)]
    why_not = varlen_trial.problem(device, specs, dtype, PLAIN, BLOCK_SIZE)
    assert "wrongly" not in why_not
    if torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip(why_not)
    assert not why_not


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_real_sizes(dtype: torch.dtype, width: int, device: torch.device) -> None:
    needs(dtype, width, device)
    for window in (None, 1, 512):
        world = World(replace(scene(dtype, width), window=window), device)
        found = run(world)
        assert world.error(found) <= varlen_trial.TOLERANCE[dtype], window
        assert torch.equal(run(world), found)  # deterministic


def test_decoded_tokens_do_not_depend_on_the_batch(device: torch.device) -> None:
    needs(torch.bfloat16, 128, device)
    alone = World(replace(scene(torch.bfloat16, 128), requests=((5000, 1),)), device)
    wanted = run(alone)
    for mates in (((100, 1),), ((2000, 1),) * 40, ((0, 700), (3000, 1)), ((7000, 17),)):
        together = World(replace(alone.scene, requests=((5000, 1), *mates), seed=2), device)
        place(alone, together)
        assert torch.equal(run(together)[:1], wanted), mates


def test_a_step_does_not_wait_for_the_device(device: torch.device) -> None:
    needs(torch.bfloat16, 128, device)
    world = World(scene(torch.bfloat16, 128), device)
    run(world)
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = run(world)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert world.error(found) <= varlen_trial.TOLERANCE[torch.bfloat16]

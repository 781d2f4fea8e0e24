"""The starter model's EAGLE-3 head: its files, its training loop, and its layout, which is that of
published heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from resources import resource_path
from resources.starter.eagle3_head import Eagle3Head, HeadShape
from resources.starter.train_eagle3 import HeadPlan, HeadTrainer, tapped_layers
from tests.engine import tiny_heads

CHAT = resource_path("starter", "chat")
HEAD = resource_path("starter", "eagle3")
FILES = ["config.json", "model.safetensors", "training.json"]
SMALLEST = HeadShape(heads=2, kv_heads=1, head_dim=16, intermediate=32, draft_vocab=64)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small lose more to waiting for a second thread than they gain from it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def chat() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(CHAT, dtype=torch.float32).eval()


def test_files_are_complete_and_small() -> None:
    assert sorted(file.name for file in HEAD.iterdir()) == FILES
    assert sum(file.stat().st_size for file in HEAD.iterdir()) < 3_000_000
    config = json.loads((HEAD / "config.json").read_text())
    report = json.loads((HEAD / "training.json").read_text())
    tensors = load_file(HEAD / "model.safetensors")
    ids = tensors["d2t"] + torch.arange(config["draft_vocab_size"])
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids)
    assert (
        sum(t.numel() for n, t in tensors.items() if t.is_floating_point())
        == (report["parameters"])
    )
    assert len(report["held_out_acceptance_per_position"]) == 4
    assert report["held_out_acceptance_length"] > 3.5
    for key in ("seed", "steps", "tokens", "seconds", "machine", "torch", "date"):
        assert report[key] is not None


@torch.inference_mode()
def test_what_is_trained_is_what_published_heads_compute(chat: Qwen3ForCausalLM) -> None:
    """The training's own forward pass, and the mathematics from the paper on the same tensors."""
    tensors = {n: t.float() if t.is_floating_point() else t
               for n, t in load_file(HEAD / "model.safetensors").items()}  # fmt: skip
    trained = Eagle3Head(HeadShape())
    trained.load_state_dict({n: t for n, t in tensors.items() if n not in ("d2t", "t2d")})
    config = json.loads((HEAD / "config.json").read_text())
    layers = tapped_layers(chat.config.num_hidden_layers)
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in layers]}
    head = tiny_heads.Head(config, tensors)
    text = torch.randint(3, 2000, (20,), generator=torch.Generator().manual_seed(0)).tolist()
    hidden_states = chat.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    states = torch.cat([hidden_states[i] for i in layers], dim=-1)
    embedded = chat.model.embed_tokens(torch.tensor([text]))
    first, second = trained(states[:, :-2], embedded[:, 1:], 2)
    f = tiny_heads.features(head, chat, text)
    wanted = tiny_heads.reference(head, chat, f[:-2], text[1:-1])
    torch.testing.assert_close(trained.lm_head(first[0]), wanted.logits, atol=1e-3, rtol=1e-4)
    # the second draft from place t goes on from the output there, after the true entries up to t
    for place in (0, 7, 17):
        own = torch.cat([f[: place + 1], wanted.outputs[place : place + 1]])
        after = tiny_heads.reference(head, chat, own, text[1 : place + 3])
        torch.testing.assert_close(
            trained.lm_head(second[0, place]), after.logits[-1], atol=1e-3, rtol=1e-4
        )


@pytest.mark.slow
def test_training_stops_and_resumes_at_its_step(tmp_path: Path) -> None:
    plan = HeadPlan(
        chat=CHAT,
        output=tmp_path / "head",
        checkpoint=tmp_path / "checkpoints" / "head.pt",
        shape=SMALLEST,
        minutes=5.0,
        max_steps=2,
        row_length=32,
        tokens_per_step=64,
    )
    first = HeadTrainer(plan).run()
    assert first["steps"] == 2
    resumed = HeadTrainer(replace(plan, max_steps=4, resume=True))
    assert resumed.progress.step == 2
    report = resumed.run()
    assert report["steps"] == 4 and report["tokens"] > first["tokens"]
    assert sorted(file.name for file in plan.output.iterdir()) == FILES
    assert [file.name for file in tmp_path.glob(".export-*")] == []
    assert len(load_file(plan.output / "model.safetensors")["d2t"]) == 64

"""The output head alone, and the hidden states that it is given."""

from __future__ import annotations

import gc
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.evaluate import EvaluationTask, run
from engine.evaluate.head import Head
from engine.evaluate.reading import EncodedText, StateFile, read_states
from engine.evaluate.windows import Cut
from tests.engine import tiny_models
from tests.engine.evaluate.tiny_evaluations import config_of
from tests.tiers import tiered


@pytest.mark.parametrize("family", tiered([*tiny_models.FAMILIES, "cohere", "opt"]))
def test_the_head_alone_gives_the_logits_of_the_model(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "cohere": ("CohereConfig", {"logit_scale": 0.3}),
        "opt": ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    }
    monkeypatch.setattr(tiny_models, "FAMILIES", {**tiny_models.FAMILIES, **own})
    caps = {"final_logit_softcapping": 5.0} if family == "gemma2" else {}
    folder = tiny_models.save(tiny_models.make_model(family, **caps), tmp_path)
    from engine.evaluate.side import Need, opened, prepare

    (ids,) = tiny_models.make_prompts([20])
    side = prepare("Model", config_of(folder, max_num_batched_tokens=7))
    text = EncodedText(ids, (), Cut(32, 31))
    with opened(side, Need(32, 32, 1), lambda *_: None, lambda: False) as engine:
        head = Head(engine.runner.model)
        assert head.vocab_size == tiny_models.VOCAB_SIZE
        states = torch.cat(list(read_states(engine, head, text, lambda *_: None, lambda: False)))
        head.keep_alone()
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = expected(torch.tensor([ids])).logits[0, :-1]
    torch.testing.assert_close(head.logits(states), logits, rtol=2e-3, atol=2e-4)


def test_of_the_reference_only_its_head_stays(
    tiny_folder: Path, other_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the candidate is read, the reference's layers are gone from memory."""
    from engine.evaluate import evaluate

    alive: list[weakref.ref[Any]] = []
    seen: list[int] = []
    original = evaluate.Head

    class Watched(original):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any) -> None:
            super().__init__(model)
            gc.collect()
            seen.append(sum(layer() is not None for layer in alive))
            alive.extend(weakref.ref(layer) for layer in model.model.layers)

    monkeypatch.setattr(evaluate, "Head", Watched)
    run(EvaluationTask(config_of(other_folder), reference=config_of(tiny_folder), text=text))
    assert seen == [0, 0]


def test_states_come_back_bit_by_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = torch.randn(30, 7).to(dtype)
        with closing(StateFile()) as file:
            file.append(rows[:11])
            file.append(rows[11:12])
            file.append(rows[12:].t().contiguous().t())
            for start, end in ((0, 30), (10, 13), (29, 30)):
                assert torch.equal(file.read(start, end), rows[start:end])

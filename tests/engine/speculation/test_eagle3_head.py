"""An EAGLE-3 head: its mathematics, its layouts, the layers that it reads, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import LLMEngine
from engine.attention.cpu import CPUAttention
from engine.batch.batch import Span, pack
from engine.config import EngineConfig
from engine.errors import DraftModelError
from engine.models.checkpoint import Checkpoint
from engine.speculation.eagle3.head import Eagle3Head, Entries, Taps
from engine.speculation.eagle3.shape import read_shape
from engine.speculation.eagle3.weights import load_head
from tests.engine import tiny_heads, tiny_models
from tests.engine.speculation.runs import GREEDY, LENGTH, PROMPTS, eagle
from tests.tiers import first_fast

MakeEngine = Callable[..., LLMEngine]
BLOCK = 4
LAYERS = (0, 1, 1)
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "biases": {"attention_bias": True},
    "norms of queries and keys": {"model_type": "qwen3"},
    "norm before the residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "embeddings of its own": {"owns_embeddings": True},
    "another width": {"hidden": 48, "owns_embeddings": True},
    "the model's vocabulary": {"draft_vocab": tiny_models.VOCAB_SIZE},
    "one layer": {"layer_ids": (1,)},
}


@pytest.fixture(scope="module")
def tiny_checkpoint(tiny_folder: Path) -> Checkpoint:
    return Checkpoint.open(tiny_folder)


def loaded(folder: Path, target: Checkpoint, model: Any) -> Eagle3Head:
    head = Checkpoint.open(folder)
    config = EngineConfig(device="cpu", dtype="float32", max_model_len=256)
    return load_head(config, head, read_shape(head, target), model)


def weights_of(head: Eagle3Head) -> dict[str, Tensor]:
    """Also of linears whose weights lie in blocks, which are not among the parameters."""
    modules = {n: m.weight for n, m in head.named_modules() if hasattr(m, "weight")}
    return {**modules, **dict(head.named_buffers())}


# -- the mathematics ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_the_paged_head_computes_what_the_paper_says(
    variant: str, tiny_model: Any, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """A sequence stored in uneven pieces, then two drafts in a row from its last entry."""
    head = tiny_heads.make_head(tiny_model, **{"layer_ids": LAYERS, **VARIANTS[variant]})
    found = loaded(tiny_heads.save(head, tmp_path), tiny_checkpoint, tiny_model)
    text = PROMPTS[3][:23]
    f = tiny_heads.features(head, tiny_model, text[:-1])
    output = tiny_model.model(torch.tensor([text[:-1]]), output_hidden_states=True)
    states = [output.hidden_states[i][0] for i in head.layer_ids]
    torch.testing.assert_close(found.features(states), f, atol=1e-4, rtol=1e-4)

    cache = CPUAttention(found.kv_layers, 9, BLOCK, torch.float32)
    table = [7, 2, 8, 0, 5, 3, 1]
    for start, end in ((0, 1), (1, 9), (9, 21)):
        batch = pack([Span(text[start + 1 : end + 1], start, table, 0)], BLOCK)
        entries = Entries(f[start:end], batch.input_ids, batch.positions)
        found.store(entries, batch, cache)
    tokens, feature = text[1:], f
    for _ in range(3):
        wanted = tiny_heads.reference(head, tiny_model, feature, tokens)
        batch = pack([Span(tokens[-1:], len(tokens) - 1, table, 1)], BLOCK)
        entries = Entries(feature[-1:], batch.input_ids, batch.positions)
        output = found(entries, batch, cache)
        torch.testing.assert_close(output, wanted.outputs[-1:], atol=1e-4, rtol=1e-4)
        logits = found.logits(output)[0]
        torch.testing.assert_close(logits[head.target_ids], wanted.logits[-1], atol=1e-4, rtol=1e-4)
        assert int(logits.isfinite().sum()) == len(head.target_ids)
        draft = int(logits.argmax())
        tokens, feature = [*tokens, draft], torch.cat([feature, output])


def test_the_shape_counts_every_parameter(
    tiny_model: Any, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for name, changes in VARIANTS.items():
        head = tiny_heads.make_head(tiny_model, **{"layer_ids": LAYERS, **changes})
        folder = tiny_heads.save(head, tmp_path / name)
        shape = read_shape(Checkpoint.open(folder), tiny_checkpoint)
        mapped = ("d2t", "t2d")
        assert shape.num_parameters == sum(
            t.numel() for n, t in head.tensors.items() if n not in mapped
        )


@pytest.mark.parametrize("variant", ["published", "norm before fc", "embeddings of its own"])
def test_every_style_of_names_loads_the_same(
    variant: str, tiny_model: Any, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    head = tiny_heads.make_head(tiny_model, layer_ids=LAYERS, **VARIANTS[variant])
    prefixed = replace(head, tensors={
        (name if name in ("d2t", "t2d", "lm_head.weight") else f"model.{name}"): tensor
        for name, tensor in head.tensors.items()
    })  # fmt: skip
    styles: tuple[tiny_heads.Style, ...] = ("midlayer", "layers", "speculators")
    heads = [
        *(
            loaded(tiny_heads.save(head, tmp_path / style, style), tiny_checkpoint, tiny_model)
            for style in styles
        ),
        loaded(tiny_heads.save(prefixed, tmp_path / "prefixed"), tiny_checkpoint, tiny_model),
    ]
    first = weights_of(heads[0])
    torch.testing.assert_close(first["fc"], head.tensors["fc.weight"])
    for other in heads[1:]:
        assert other.shape == heads[0].shape
        found = weights_of(other)
        assert found.keys() == first.keys() and len(found) > 10
        assert all(torch.equal(found[name], first[name]) for name in first)


def test_which_layers_are_read(tmp_path: Path) -> None:
    """By default 2, n / 2 and n - 3; or those that the config names, in either convention."""
    model = tiny_models.make_model("llama", num_hidden_layers=10)
    target = Checkpoint.open(tiny_models.save(model, tmp_path / "model"))
    head = tiny_heads.make_head(model, layer_ids=(3, 9, 5))
    folder = tiny_heads.save(head, tmp_path / "outputs")
    assert read_shape(Checkpoint.open(folder), target).layer_ids == (3, 9, 5)
    folder = tiny_heads.save(head, tmp_path / "inputs", "speculators")
    assert read_shape(Checkpoint.open(folder), target).layer_ids == (3, 9, 5)
    silent = replace(head, config={**head.config, "eagle_config": None})
    folder = tiny_heads.save(silent, tmp_path / "silent")
    assert read_shape(Checkpoint.open(folder), target).layer_ids == (2, 5, 7)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gpt_oss"])
@torch.inference_mode()
def test_taps_hold_the_inputs_of_layers_and_leave_no_hook(family: str) -> None:
    model = tiny_models.make_model(family)
    ids = torch.tensor([PROMPTS[0]])
    wanted = model(ids, output_hidden_states=True).hidden_states
    taps = Taps(model, (1, 0))
    assert taps.take() == []
    with taps:
        model(ids, use_cache=False)
    states = taps.take()
    for state, layer in zip(states, (1, 0), strict=True):
        torch.testing.assert_close(state, wanted[layer][0])
    assert taps.take() == []
    assert not any(module._forward_pre_hooks for module in model.modules())


# -- heads that cannot be used --------------------------------------------------------------


def config_of(head: tiny_heads.Head, **changes: Any) -> tiny_heads.Head:
    return replace(head, config={**head.config, **changes})


def tensors_of(head: tiny_heads.Head, **changes: Tensor | None) -> tiny_heads.Head:
    tensors = {**head.tensors, **changes}
    return replace(head, tensors={n: t for n, t in tensors.items() if t is not None})


AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
}  # fmt: skip
BAD: dict[str, tuple[Callable[[tiny_heads.Head], tiny_heads.Head], tuple[str, ...]]] = {
    "another width": (
        lambda h: config_of(h, target_hidden_size=96),
        ("96;", "has 64"),
    ),
    "another vocabulary": (
        lambda h: config_of(h, vocab_size=5000),
        ("5,000;", "has 199"),
    ),
    "too few layers": (
        lambda h: config_of(h, eagle_config=None),
        ("has 2 layers", "at least 8"),
    ),
    "layers out of range": (
        lambda h: config_of(
            h, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 17, 33]}
        ),
        ("layers 2, 18, 34", "0 to 1"),
    ),
    "layers that are none": (
        lambda h: config_of(h, eagle_aux_hidden_state_layer_ids="all"),
        ("eagle_aux_hidden_state_layer_ids", "'all'"),
    ),
    "several layers of its own": (
        lambda h: config_of(h, num_hidden_layers=2),
        ("has 2 layers", "supports one"),
    ),
    "quantized": (
        lambda h: config_of(h, quantization_config=AWQ),
        ("(AWQ, 4-bit",),
    ),
    "quantized in an unknown way": (
        lambda h: config_of(h, quantization_config={"quant_method": "awq"}),
        ("EAGLE-3 head", "does not specify bits"),
    ),
    "more drafts than tokens": (
        lambda h: config_of(h, draft_vocab_size=300),
        ("300", "199"),
    ),
    "narrow and without embeddings": (
        lambda h: config_of(h, hidden_size=48),
        ("hidden size 48", "hidden size 64"),
    ),
    "a missing tensor": (
        lambda h: tensors_of(h, **{"midlayer.hidden_norm.weight": None}),
        ("Missing", "(1)", "layers.0.hidden_norm.weight"),
    ),
    "an unknown tensor": (
        lambda h: tensors_of(h, **{"midlayer.self_attn.q_proj.bias": torch.ones(64)}),
        ("Unexpected", "(1)", "q_proj.bias"),
    ),
    "a wrong shape": (
        lambda h: tensors_of(h, **{"fc.weight": torch.ones(64, 64)}),
        ("fc.weight is [64, 64]", "[64, 192]"),
    ),
    "no vocabulary of its own": (
        lambda h: tensors_of(h, d2t=None),
        ("120 of 199", "d2t"),
    ),
    "a short d2t": (
        lambda h: tensors_of(h, d2t=torch.zeros(7, dtype=torch.int64)),
        ("d2t", "[7]", "[120]"),
    ),
    "a d2t that leads out": (
        lambda h: tensors_of(h, d2t=torch.full((120,), 100)),
        ("100 to 219", "0 to 198"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", first_fast(6, BAD))
def test_a_head_that_does_not_fit_is_refused_and_the_model_stays(
    fault: str, make_engine: MakeEngine, tiny_head: tiny_heads.Head, tmp_path: Path
) -> None:
    spoil, words = BAD[fault]
    folder = tiny_heads.save(spoil(tiny_head), tmp_path)
    engine = make_engine()
    before = engine.config
    engine.add_request(PROMPTS[0], GREEDY)
    engine.step()
    with pytest.raises(DraftModelError) as caught:
        engine.reconfigure(**eagle(folder))
    assert all(word in caught.value.cause for word in words), caught.value.cause
    assert caught.value.remedy
    assert engine.config == before
    count = 0
    while engine.has_unfinished:
        count += sum(len(event.token_ids) for event in engine.step())
    assert count == LENGTH - 1  # the conversation goes on


def test_a_model_without_a_list_of_layers_cannot_be_listened_to() -> None:
    model = tiny_models.make_model("llama")
    model.config.num_hidden_layers = 5
    with pytest.raises(DraftModelError, match=r"\b5 layers"):
        Taps(model, (1,))


def test_other_folders_are_refused(
    make_engine: MakeEngine, draft_folder: Path, head_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DraftModelError, match="needs an EAGLE-3 head"):
        make_engine(speculative_method="eagle3")
    with pytest.raises(DraftModelError, match=r"not an EAGLE-3 head: .*Llama"):
        make_engine(**eagle(draft_folder))
    with pytest.raises(DraftModelError, match=r"EAGLE-3 head.*nothing"):
        make_engine(**eagle(tmp_path / "nothing"))
    with pytest.raises(DraftModelError):
        make_engine(**{**eagle(head_folder), "speculative_method": "draft_model"})

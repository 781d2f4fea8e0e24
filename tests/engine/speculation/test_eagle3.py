"""EAGLE-3: the head against its reference, its layouts, its context; tokens never change."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention.cpu import CPUAttention
from engine.batch import Span, pack
from engine.errors import DraftModelError
from engine.loading.checkpoint import Checkpoint
from engine.speculation.eagle3.head import Eagle3Head, Entries
from engine.speculation.eagle3.proposer import Eagle3Proposer
from engine.speculation.eagle3.shape import read_shape
from engine.speculation.eagle3.taps import Taps
from engine.speculation.eagle3.weights import load_head
from resources import resource_path
from tests.engine import tiny_heads, tiny_models
from tests.engine.speculation.runs import GREEDY, LENGTH, PARAMS, PROMPTS, SEEDED, results

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


def eagle(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "speculative_method": "eagle3", "speculative_model": str(folder),
        "speculative_adaptive": False, **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def tiny_checkpoint(tiny_folder: Path) -> Checkpoint:
    return Checkpoint.open(tiny_folder)


def loaded(folder: Path, target: Checkpoint, model: Any) -> Eagle3Head:
    head = Checkpoint.open(folder)
    return load_head(
        head, read_shape(head, target), model, dtype=torch.float32, load_format="auto", seed=0,
        max_model_len=256,
    )  # fmt: skip


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


# -- tokens never change --------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize(
    "tight",
    [
        {},
        {"max_num_batched_tokens": 16, "block_size": 3},  # chunks
        {"kv_cache_memory_bytes": 3 * 2**14, "block_size": 4, "watermark": 0.0},  # preemptions
        {"batching": "static", "max_num_seqs": 2, "enable_prefix_caching": False},
    ],
)
def test_a_head_changes_no_token(
    k: int, tight: dict[str, Any], make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(**eagle(head_folder, num_speculative_tokens=k, **tight))
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and 0 < figures.accepted < figures.drafted
    if "kv_cache_memory_bytes" in tight:
        assert engine.snapshot().counters.preemptions > 0
    assert results(engine) == plain  # now with prefix hits


@pytest.mark.parametrize("params", [GREEDY, SEEDED, PARAMS[3]])
def test_drafting_is_switched_in_mid_reply(
    params: SamplingParams, make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    wanted = results(make_engine(), [params] * len(PROMPTS))
    engine = make_engine(**eagle(head_folder, block_size=4))
    ids = [engine.add_request(prompt, params) for prompt in PROMPTS]
    produced: dict[str, list[int]] = {i: [] for i in ids}
    for step in range(10**3):
        if not engine.has_unfinished:
            break
        if step % 3 == 2:
            engine.reconfigure(num_speculative_tokens=(0, 4, 1)[step // 3 % 3])
        for event in engine.step():
            produced[event.request_id] += event.token_ids
        engine.check_integrity()
    assert [produced[i] for i in ids] == [found[0] for found in wanted]


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 150}, {"top_k": 3, "top_p": 0.9}, {"min_p": 0.2}], ids=str
)
def test_unseeded_sampling_is_verified_by_rejection(
    filters: dict[str, Any], make_engine: MakeEngine, head_folder: Path
) -> None:
    """Drafts stand with the model's own probability of them: some do, and all replies are whole;
    also where a filter would keep more tokens than the head can draft."""
    engine = make_engine(**eagle(head_folder))
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True, **filters)
    outputs = engine.generate(PROMPTS * 3, params)
    assert all(len(output.token_ids) == LENGTH for output in outputs)
    figures = engine.snapshot().speculation
    assert figures is not None and 0 < figures.accepted < figures.drafted


def test_drafts_are_tokens_of_the_draft_vocabulary(
    make_engine: MakeEngine, tiny_head: tiny_heads.Head, head_folder: Path
) -> None:
    engine = make_engine(**eagle(head_folder))
    allowed = set(tiny_head.target_ids.tolist())
    for output in engine.generate(PROMPTS, PARAMS):
        assert {t for r in output.drafts for t in r.token_ids} <= allowed


# -- what the head drafts -------------------------------------------------------------------


class Watched:
    """Steps an engine, and checks every first draft against the reference: what the head says
    after all tokens from the beginning of its context on."""

    def __init__(self, engine: LLMEngine, head: tiny_heads.Head, model: Any) -> None:
        self.engine, self.head, self.model = engine, head, model
        self.checked: list[int] = []  # where the context began, for each draft
        proposer = engine._speculator.proposer
        assert isinstance(proposer, Eagle3Proposer)
        self.propose, proposer.propose = proposer.propose, self._propose  # type: ignore[method-assign]

    def run(self) -> None:
        while self.engine.has_unfinished:
            self.engine.step()
            self.engine.check_integrity()

    def _propose(self, grants: Sequence[Any], budget: int) -> Any:
        known = [(g.request, list(g.request.token_ids)) for g in grants]
        starts = [g.request.draft_kv_start for g in grants]
        proposals = self.propose(grants, budget)
        for (request, tokens), start, proposal in zip(known, starts, proposals, strict=True):
            if proposal.token_ids:
                assert request.params.temperature == 0
                assert proposal.token_ids[0] == int(self.head.target_ids[self._best(tokens, start)])
                self.checked.append(start)
        return proposals

    def _best(self, tokens: list[int], start: int) -> Tensor:
        f = tiny_heads.features(self.head, self.model, tokens[:-1])
        # RoPE counts differences only: a context that begins later may count from there
        found = tiny_heads.reference(self.head, self.model, f[start:], tokens[start + 1 :])
        return found.logits[-1].argmax()


PLAIN_GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)


@pytest.mark.parametrize(
    "tight",
    [
        {},
        {"max_num_batched_tokens": 7, "block_size": 3},
        {"kv_cache_memory_bytes": 3 * 2**14, "block_size": 4, "watermark": 0.0},
    ],
)
def test_drafts_come_from_the_whole_text(
    tight: dict[str, Any],
    make_engine: MakeEngine,
    tiny_head: tiny_heads.Head,
    head_folder: Path,
    tiny_model: Any,
) -> None:
    """In chunks, after preemption, and after rounds whose drafts were rejected."""
    engine = make_engine(**eagle(head_folder, **tight))
    watched = Watched(engine, tiny_head, tiny_model)
    for prompt in PROMPTS:
        engine.add_request(prompt, PLAIN_GREEDY)
    watched.run()
    assert len(watched.checked) > 20 and set(watched.checked) == {0}


def test_a_prefix_hit_brings_the_head_its_context(
    make_engine: MakeEngine, tiny_head: tiny_heads.Head, head_folder: Path, tiny_model: Any
) -> None:
    """A hit gives up its last block, whose last entry was made with another text's next token."""
    engine = make_engine(**eagle(head_folder))
    watched = Watched(engine, tiny_head, tiny_model)
    engine.add_request(PROMPTS[3], PLAIN_GREEDY)
    watched.run()
    for prompt, cached in ((PROMPTS[3], 32), (PROMPTS[3][:32] + PROMPTS[0], 24)):
        (output,) = engine.generate([prompt], PLAIN_GREEDY)
        assert output.num_cached_tokens == cached
        assert output.drafts
    assert set(watched.checked) == {0}


def test_a_context_begins_where_drafting_was_switched_on(
    make_engine: MakeEngine, tiny_head: tiny_heads.Head, head_folder: Path, tiny_model: Any
) -> None:
    engine = make_engine(**eagle(head_folder, num_speculative_tokens=0))
    engine.generate(PROMPTS[3:4], PLAIN_GREEDY)  # 41 tokens: five published blocks without its KV
    engine.add_request(PROMPTS[3], PLAIN_GREEDY)
    for _ in range(5):
        engine.step()
    engine.reconfigure(num_speculative_tokens=4)
    watched = Watched(engine, tiny_head, tiny_model)
    watched.run()
    assert watched.checked and set(watched.checked) == {48}
    # Over that prefix, which has no KV of the head: the block that the hit gives up is its first.
    engine.generate(PROMPTS[3:4], PLAIN_GREEDY)
    assert set(watched.checked[-2:]) == {32}


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_blocks_say_truly_whether_the_head_was_there(
    data: st.DataObject,
    make_engine: MakeEngine,
    tiny_head: tiny_heads.Head,
    head_folder: Path,
    tiny_model: Any,
) -> None:
    """Prompts that share beginnings, drafting switched on and off, aborts and preemptions: every
    first draft is what the head says of its own context, wherever that begins."""
    engine = make_engine(**eagle(head_folder, block_size=4, kv_cache_memory_bytes=2**16))
    # a text that the model would write, and its beginnings: after a shared block always comes the
    # same token, so that no entry is made with another one
    (whole,) = engine.generate(PROMPTS[:1], PLAIN_GREEDY)
    text = PROMPTS[0] + whole.token_ids
    watched = Watched(engine, tiny_head, tiny_model)
    for _ in range(data.draw(st.integers(4, 14))):
        action = data.draw(st.sampled_from(["add", "add", "step", "abort", "switch"]))
        if action == "add":
            length = data.draw(st.integers(len(PROMPTS[0]), len(text)))
            engine.add_request(text[:length], PLAIN_GREEDY)
        elif action == "abort" and engine._requests:
            engine.abort(data.draw(st.sampled_from(sorted(engine._requests))))
        elif action == "switch":
            engine.reconfigure(
                num_speculative_tokens=data.draw(st.integers(0, 4)),
                max_num_batched_tokens=data.draw(st.integers(3, 64)),
            )
        for _ in range(data.draw(st.integers(0, 6))):
            engine.step()
            engine.check_integrity()
    watched.run()


def test_what_is_kept_for_a_request_goes_with_it(
    make_engine: MakeEngine, head_folder: Path
) -> None:
    engine = make_engine(**eagle(head_folder))
    proposer = engine._speculator.proposer
    assert isinstance(proposer, Eagle3Proposer)
    ids = [engine.add_request(prompt, PARAMS[3]) for prompt in PROMPTS]
    for _ in range(3):
        engine.step()
    assert set(proposer._last) == set(ids)
    for request_id in ids[:2]:
        engine.abort(request_id)
    assert set(proposer._last) == set(ids[2:])
    while engine.has_unfinished:
        engine.step()
    assert not proposer._last and not proposer._failed


def test_hidden_states_that_are_not_finite_end_drafting_for_that_request_alone(
    make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(**eagle(head_folder))
    proposer = engine._speculator.proposer
    assert isinstance(proposer, Eagle3Proposer)
    ids = [engine.add_request(prompt, GREEDY) for prompt in PROMPTS[:2]]
    take, length = proposer.taps.take, len(PROMPTS[0])

    def damaged() -> list[Tensor]:
        states = [state.clone() for state in take()]
        states[0][length - 1] = torch.nan
        return states

    proposer.taps.take = damaged  # type: ignore[method-assign]
    engine.step()
    proposer.taps.take = take  # type: ignore[method-assign]
    drafted: dict[str, int] = dict.fromkeys(ids, 0)
    produced: dict[str, list[int]] = {i: [] for i in ids}
    while engine.has_unfinished:
        for event in engine.step():
            drafted[event.request_id] += event.drafts is not None
            produced[event.request_id] += event.token_ids
    assert drafted[ids[0]] == 0 and drafted[ids[1]] > 0
    assert produced[ids[0]] == plain[0][0][1:]
    assert all(bool(c.keys.isfinite().all()) for c in proposer._cache.caches.values())


# -- memory, settings -----------------------------------------------------------------------


def test_memory_counts_the_head(make_engine: MakeEngine, head_folder: Path) -> None:
    alone, drafting = make_engine(), make_engine(**eagle(head_folder))
    plan, before = drafting.plan, alone.plan
    figures = drafting.snapshot().speculation
    assert figures is not None and figures.method == "eagle3"
    shape = drafting._host.assembly.draft.model.shape
    assert plan.draft_weights == shape.num_parameters * 4
    assert plan.weights == before.weights + plan.draft_weights
    assert plan.draft_bytes_per_block == 8 * 2 * shape.kv_width * 4
    assert plan.bytes_per_block == before.bytes_per_block + plan.draft_bytes_per_block
    assert drafting.snapshot().memory.kv_cache == plan.kv_cache <= 2**20
    drafting.reconfigure(speculative_method="off")
    assert drafting.snapshot().memory.weights == alone.snapshot().memory.weights


def test_random_heads_and_16_bits(make_engine: MakeEngine, head_folder: Path) -> None:
    for changes in ({"load_format": "dummy"}, {"dtype": "bfloat16"}):
        engine = make_engine(**eagle(head_folder, **changes))
        (output,) = engine.generate(PROMPTS[:1], GREEDY)
        assert len(output.token_ids) == LENGTH and output.drafts


def test_a_model_is_loaded_again_under_its_head(
    make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    """A reload exchanges the layers that are listened to and the embeddings that are shared."""
    engine = make_engine(**eagle(head_folder))
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    produced: dict[str, list[int]] = {i: [] for i in ids}
    for event in [*engine.step(), *engine.step(), *engine.step()]:
        produced[event.request_id] += event.token_ids
    engine.reconfigure(num_threads=2)
    engine.reconfigure(num_threads=1)
    while engine.has_unfinished:
        for event in engine.step():
            produced[event.request_id] += event.token_ids
    assert [produced[i] for i in ids] == [found[0] for found in plain]
    figures = engine.snapshot().speculation
    assert figures is not None and figures.accepted > 0


# -- heads that cannot be used --------------------------------------------------------------


def config_of(head: tiny_heads.Head, **changes: Any) -> tiny_heads.Head:
    return replace(head, config={**head.config, **changes})


def tensors_of(head: tiny_heads.Head, **changes: Tensor | None) -> tiny_heads.Head:
    tensors = {**head.tensors, **changes}
    return replace(head, tensors={n: t for n, t in tensors.items() if t is not None})


BAD: dict[str, tuple[Callable[[tiny_heads.Head], tiny_heads.Head], tuple[str, ...]]] = {
    "another width": (
        lambda h: config_of(h, target_hidden_size=96),
        ("hidden states of width 96", "has 64"),
    ),
    "another vocabulary": (
        lambda h: config_of(h, vocab_size=5000),
        ("a vocabulary of 5,000", "has 199"),
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
        ("no list of layers", "'all'"),
    ),
    "several layers of its own": (
        lambda h: config_of(h, num_hidden_layers=2),
        ("has 2 layers", "one layer"),
    ),
    "quantized": (
        lambda h: config_of(h, quantization_config={"quant_method": "awq"}),
        ("quantized (awq)",),
    ),
    "more drafts than tokens": (
        lambda h: config_of(h, draft_vocab_size=300),
        ("300 tokens", "of 199"),
    ),
    "narrow and without embeddings": (
        lambda h: config_of(h, hidden_size=48),
        ("48 wide", "64 wide"),
    ),
    "a missing tensor": (
        lambda h: tensors_of(h, **{"midlayer.hidden_norm.weight": None}),
        ("1 tensors", "are missing", "layers.0.hidden_norm.weight"),
    ),
    "an unknown tensor": (
        lambda h: tensors_of(h, **{"midlayer.self_attn.q_proj.bias": torch.ones(64)}),
        ("have no place", "q_proj.bias"),
    ),
    "a wrong shape": (
        lambda h: tensors_of(h, **{"fc.weight": torch.ones(64, 64)}),
        ("fc.weight is [64, 64]", "[64, 192]"),
    ),
    "no vocabulary of its own": (
        lambda h: tensors_of(h, d2t=None),
        ("120 of 199", "no tensor d2t"),
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


@pytest.mark.parametrize("fault", BAD)
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
    with pytest.raises(DraftModelError, match="keeps its 5 layers in no list"):
        Taps(model, (1,))


def test_other_folders_are_refused(
    make_engine: MakeEngine, draft_folder: Path, head_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DraftModelError, match="needs an EAGLE-3 head"):
        make_engine(speculative_method="eagle3")
    with pytest.raises(DraftModelError, match="is not an EAGLE-3 head: its architecture is Llama"):
        make_engine(**eagle(draft_folder))
    with pytest.raises(DraftModelError, match=r"EAGLE-3 head cannot be used.*does not exist"):
        make_engine(**eagle(tmp_path / "nothing"))
    with pytest.raises(DraftModelError):
        make_engine(**{**eagle(head_folder), "speculative_method": "draft_model"})


# -- the head of the starter model ----------------------------------------------------------


def test_the_starter_head_drafts_as_well_as_its_training_recorded() -> None:
    recorded = json.loads(resource_path("starter", "eagle3", "training.json").read_text())
    config = EngineConfig(
        model=str(resource_path("starter", "chat")), dtype="float32", num_threads=1,
        kv_cache_memory_bytes=2**24, **eagle(resource_path("starter", "eagle3")),
    )  # fmt: skip
    engine = LLMEngine(config)
    prompts = ["What is TTFT?", "Count from 1 to 20.", "What is the KV cache?"]
    params = SamplingParams(temperature=0, max_tokens=48)
    engine.generate([[{"role": "user", "content": p}] for p in prompts], params)
    figures = engine.snapshot().speculation
    engine.shutdown()
    assert figures is not None and figures.acceptance_rate is not None
    assert figures.drafted > 30
    promised = (recorded["held_out_acceptance_length"] - 1) / 4
    assert figures.acceptance_rate > 0.8 * promised > 0.6

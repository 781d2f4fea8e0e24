"""What is measured, against the plainest statement of it by transformers; in float32 exactly."""

from __future__ import annotations

import functools
import gc
import io
import json
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from engine import tokenization
from engine.config import EngineConfig
from engine.errors import ConfigError, InferdeckError, OutOfMemoryError
from engine.evaluation import (
    EvaluationCancelled,
    EvaluationReport,
    EvaluationTask,
    PromptLine,
    TextError,
    from_json,
    measures,
    plain,
    run,
    to_json,
    unit_of,
)
from engine.evaluation.head import Head
from engine.evaluation.reading import EncodedText, encode_parts, read_states, split_specials
from engine.evaluation.stages import TEXT
from engine.evaluation.states import StateFile
from engine.evaluation.windows import Cut
from tests.engine import tiny_models

NUM_TOKENS = 150


@pytest.fixture(scope="module")
def words() -> list[int]:
    (ids,) = tiny_models.make_prompts([2 * NUM_TOKENS], seed=3)
    # "t2" ends a text: the tokenizer finds it in "t25" too
    return [i for i in ids if not str(i).startswith("2")][:NUM_TOKENS]


@pytest.fixture(scope="module")
def text(words: list[int]) -> str:
    return " ".join(f"t{i}" for i in words)


@pytest.fixture(scope="module")
def other_model() -> Any:
    """The tiny llama with its weights disturbed: what a coarse quantization might do."""
    model = tiny_models.make_model("llama")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


@pytest.fixture(scope="module")
def other_folder(other_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(other_model, tmp_path_factory.mktemp("other-llama"))


@pytest.fixture
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    yield
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def config_of(folder: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(model=str(folder), dtype="float32", num_threads=1, block_size=8).replace(
        **changes
    )


@torch.inference_mode()
def by_transformers(model: Any, ids: Sequence[int], cut: Cut) -> tuple[torch.Tensor, torch.Tensor]:
    """(log probabilities, final hidden states) that predict the tokens 1, 2, ..., each from the
    window in which it is scored: one pass over every window, nothing cached or packed."""
    logprobs, states = [], []
    for window in cut.windows(len(ids)):
        output = model(torch.tensor([ids[window.start : window.end]]), output_hidden_states=True)
        rows = slice(window.first_scored - window.start - 1, window.end - window.start - 1)
        logprobs.append(output.logits[0, rows].double().log_softmax(-1))
        states.append(output.hidden_states[-1][0, rows].double())
    return torch.cat(logprobs), torch.cat(states)


@pytest.mark.parametrize("cut", [Cut(200, 199), Cut(64, 63), Cut(40, 13)])
def test_every_figure_is_what_transformers_gives(
    cut: Cut, tiny_model: Any, tiny_folder: Path, other_model: Any, other_folder: Path,
    words: list[int], text: str,
) -> None:  # fmt: skip
    report = run(
        EvaluationTask(
            config_of(other_folder, max_num_batched_tokens=24),
            reference=config_of(tiny_folder, max_num_batched_tokens=17),
            text=text,
            context_length=cut.context_length,
            stride=cut.stride,
            num_worst=5,
        )
    )
    p, h = by_transformers(tiny_model, words, cut)
    q, g = by_transformers(other_model, words, cut)
    targets = torch.tensor(words[1:])
    kl = (p.exp() * (p - q)).sum(-1)
    true_p, true_q = (x.gather(1, targets[:, None])[:, 0] for x in (p, q))
    cosines = torch.nn.functional.cosine_similarity(h, g, dim=-1)

    assert report.text is not None
    assert report.divergence is not None
    assert report.divergence.similarity is not None
    assert report.text.num_tokens == NUM_TOKENS
    assert report.text.num_scored == len(targets) == report.divergence.kl.num_samples
    assert report.text.num_windows == len(list(cut.windows(NUM_TOKENS)))
    near = {"rel": 1e-4, "abs": 1e-6}
    found = report.divergence
    assert found.kl.mean == pytest.approx(float(kl.mean()), **near)
    assert found.kl.p50 == pytest.approx(float(kl.median()), rel=0.05)
    assert found.kl.p90 == pytest.approx(float(np.percentile(kl, 90)), **near)
    assert found.kl.p99 == pytest.approx(float(np.percentile(kl, 99)), **near)
    assert found.kl.max == pytest.approx(float(kl.max()), **near)
    assert found.kl_percentiles == pytest.approx(np.percentile(kl, range(101)).tolist(), **near)
    assert found.top1_agreement == pytest.approx(
        float((p.argmax(-1) == q.argmax(-1)).double().mean())
    )
    assert found.similarity is not None
    assert found.similarity.mean == pytest.approx(float(cosines.mean()), **near)
    assert found.similarity.p1 == pytest.approx(float(np.percentile(cosines, 1)), **near)
    assert found.similarity.min == pytest.approx(float(cosines.min()), **near)
    assert found.mean_abs_logprob_change == pytest.approx(
        float((true_p - true_q).abs().mean()), **near
    )
    assert report.reference_loss is not None
    assert report.candidate_loss is not None
    assert report.reference_loss.mean_nll == pytest.approx(-float(true_p.mean()), **near)
    assert report.candidate_loss.mean_nll == pytest.approx(-float(true_q.mean()), **near)
    assert report.candidate_loss.perplexity == pytest.approx(math.exp(-float(true_q.mean())))
    assert report.candidate_loss.bits_per_byte == pytest.approx(
        -float(true_q.sum()) / math.log(2) / report.text.num_bytes, **near
    )

    order = kl.argsort(descending=True)[:5].tolist()
    assert [w.position for w in report.worst] == [row + 1 for row in order]
    for worst, row in zip(report.worst, order, strict=True):
        assert worst.token_id == words[worst.position]
        assert worst.token == f"t{worst.token_id}"
        assert worst.kl == pytest.approx(float(kl[row]), **near)
        assert worst.reference_logprob == pytest.approx(float(true_p[row]), rel=1e-4)
        assert worst.candidate_logprob == pytest.approx(float(true_q[row]), rel=1e-4)
        assert [a.token_id for a in worst.reference_top] == p[row].topk(3).indices.tolist()
        assert [a.token_id for a in worst.candidate_top] == q[row].topk(3).indices.tolist()
        around = words[max(0, worst.position - 24) : worst.position]
        assert worst.before == " ".join(f"t{i}" for i in around)
    assert from_json(json.loads(json.dumps(to_json(report)))) == from_json(to_json(report))


def figures(report: EvaluationReport) -> list[float]:
    """Every number of a report that a chunk size could change."""
    kl, similarity = report.divergence.kl, report.divergence.similarity  # type: ignore[union-attr]
    losses = report.candidate_loss, report.reference_loss
    return [
        kl.mean, kl.p50, kl.p90, kl.p99 or 0.0, kl.max,
        report.divergence.top1_agreement,  # type: ignore[union-attr]
        report.divergence.mean_abs_logprob_change,  # type: ignore[union-attr]
        similarity.mean, similarity.p1 or 0.0, similarity.min,  # type: ignore[union-attr]
        *(n for loss in losses if loss for n in (loss.mean_nll, loss.perplexity)),
    ]  # fmt: skip


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk=st.integers(1, 90), tile=st.integers(1, 60), block=st.sampled_from([1, 8, 64]))
def test_no_figure_depends_on_how_the_text_is_chunked(
    chunk: int, tile: int, block: int, tiny_folder: Path, other_folder: Path, text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    @functools.cache
    def measured(chunk: int, block: int) -> list[float]:
        settings = {"max_num_batched_tokens": chunk, "block_size": block}
        return figures(
            run(
                EvaluationTask(
                    config_of(other_folder, **settings),
                    reference=config_of(tiny_folder, **settings),
                    text=text,
                    context_length=70,
                    stride=40,
                )
            )
        )

    expected = measured(512, 16)
    with monkeypatch.context() as patch:
        patch.setattr(measures, "TILE_BYTES", tile * 4 * tiny_models.VOCAB_SIZE)
        assert measured(chunk, block) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_does_not_differ_from_itself(dtype: str, tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder, dtype=dtype)
    report = run(
        EvaluationTask(config, reference=config, text=text, prompts=(PromptLine(1, text[:40], 9),))
    )
    assert report.divergence is not None
    assert report.divergence.kl.mean == report.divergence.kl.max == 0.0
    assert report.divergence.top1_agreement == 1.0
    assert report.divergence.similarity is not None
    assert report.divergence.similarity.min == pytest.approx(1.0, abs=1e-9)
    assert report.divergence.mean_abs_logprob_change == 0.0
    assert report.perplexity_change == 0.0
    assert report.worst == ()
    assert report.answers is not None
    assert report.answers.identical_share == report.answers.mean_equal_share == 1.0


def test_logits_are_made_in_tiles(
    tiny_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the chunk: of a large vocabulary its logits would be gigabytes."""
    seen: list[int] = []
    original = Head.logits

    def watched(self: Head, states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return original(self, states)

    monkeypatch.setattr(Head, "logits", watched)
    monkeypatch.setattr(measures, "TILE_BYTES", 10 * 4 * tiny_models.VOCAB_SIZE)
    run(EvaluationTask(config_of(tiny_folder), reference=config_of(tiny_folder), text=text))
    assert max(seen) == 10
    assert sum(seen) == 2 * (NUM_TOKENS - 1) + 2  # and one for each head, to try it
    monkeypatch.undo()
    assert 151_936 * 4 * measures.rows_per_tile(151_936) <= measures.TILE_BYTES
    assert measures.rows_per_tile(10**9) == 1


@pytest.mark.parametrize(
    ("ids", "empty", "expected"),
    [
        ([5, 6], [], ([], [5, 6])),
        ([1, 5, 6], [1], ([1], [5, 6])),
        ([1, 5, 6, 2], [1, 2], ([1], [5, 6])),
        ([5, 6, 2], [2], ([], [5, 6])),
        ([1], [1], ([1], [])),
        ([1, 2], [1, 2], ([1, 2], [])),
    ],
)
def test_what_a_tokenizer_adds_is_told_from_the_text(
    ids: list[int], empty: list[int], expected: tuple[list[int], list[int]]
) -> None:
    assert split_specials(ids, empty) == expected


def test_every_window_begins_with_the_beginning_of_text(
    tiny_model: Any, tmp_path: Path, text: str, words: list[int]
) -> None:
    from tokenizers.processors import TemplateProcessing

    tiny_model.save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = TemplateProcessing(single="t1 $A", special_tokens=[("t1", 1)])
    tokenizer.save(str(file))
    report = run(EvaluationTask(config_of(tmp_path), text=text, context_length=41, stride=20))
    assert report.text is not None
    assert report.text.num_tokens == report.text.num_scored == NUM_TOKENS
    nll = []
    with torch.inference_mode():
        for window in Cut(41, 20, prefix=1).windows(NUM_TOKENS):
            ids = [1, *words[window.start : window.end]]
            logprobs = tiny_model(torch.tensor([ids])).logits[0].log_softmax(-1)
            rows = range(window.first_scored, window.end)
            nll += [-float(logprobs[i - window.start, words[i]]) for i in rows]
    assert len(nll) == NUM_TOKENS
    assert report.candidate_loss is not None
    assert report.candidate_loss.mean_nll == pytest.approx(float(np.mean(nll)), rel=1e-5)


def test_parts_of_a_text_are_scored_with_all_of_it_before_them(
    tiny_model: Any, tiny_folder: Path, text: str, words: list[int]
) -> None:
    starts = [text.index(f"t{words[10]} t{words[11]}"), text.index(f"t{words[60]} t{words[61]}")]
    ends = [text.index(f" t{words[30]} t{words[31]}"), len(text)]
    report = run(
        EvaluationTask(
            config_of(tiny_folder, max_num_batched_tokens=19),
            reference=config_of(tiny_folder, max_num_batched_tokens=64),
            text=text,
            scored=tuple(zip(starts, ends, strict=True)),
            context_length=80,
            stride=40,
        )
    )
    logprobs, _ = by_transformers(tiny_model, words, Cut(80, 40))
    places = [*range(10, 30), *range(60, NUM_TOKENS)]
    nll = [-float(logprobs[i - 1, words[i]]) for i in places]
    assert report.text is not None
    assert (report.text.num_tokens, report.text.num_scored) == (NUM_TOKENS, len(places))
    assert report.candidate_loss is not None
    assert report.candidate_loss.mean_nll == pytest.approx(float(np.mean(nll)), rel=1e-5)
    assert report.divergence is not None
    assert report.divergence.kl.max < 1e-9


@given(st.text("abcdef", max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_parts_are_told_apart(text: str, edges: list[int]) -> None:
    inside = sorted(edge for edge in edges if edge <= len(text))
    spans = list(zip(inside[::2], inside[1::2], strict=False))
    ids, counts = encode_parts(text, spans, lambda part: [ord(c) for c in part])
    assert ids == [ord(c) for c in text]
    assert counts == [any(a <= i < b for a, b in spans) for i in range(len(text))]


def test_perplexity_alone_needs_no_reference(
    tiny_folder: Path, tiny_model: Any, text: str, words: list[int]
) -> None:
    report = run(EvaluationTask(config_of(tiny_folder), text=text, max_tokens=100))
    with torch.inference_mode():
        ids = torch.tensor([words[:100]])
        loss = float(tiny_model(ids, labels=ids).loss)
    assert report.candidate_loss is not None
    assert report.candidate_loss.mean_nll == pytest.approx(loss, rel=1e-5)
    assert report.reference is report.divergence is report.reference_loss is None
    assert report.text is not None
    assert report.text.is_cut
    assert (report.text.num_tokens, report.text.num_scored) == (100, 99)
    assert "99 tokens are few" in report.notices[0]


def test_the_starter_model_has_the_perplexity_of_transformers() -> None:
    folder = Path(__file__).parents[3] / "resources" / "starter" / "chat"
    prompt = "<|im_start|>user\nWhat is paging?<|im_end|>\n<|im_start|>assistant\n"
    text = prompt + "The KV cache is kept in blocks of a fixed size, and a table finds them. " * 3
    report = run(EvaluationTask(config_of(folder), text=text, context_length=32, stride=16))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenization.Tokenizer.from_folder(folder, allow_missing=False).encode(text)
    logprobs, _ = by_transformers(model, ids, Cut(32, 16))
    expected = logprobs.gather(1, torch.tensor(ids[1:])[:, None])
    assert report.candidate_loss is not None
    assert report.candidate_loss.mean_nll == pytest.approx(-float(expected.mean()), rel=1e-5)
    assert report.text is not None
    first = len(tokenization.Tokenizer.from_folder(folder, allow_missing=False).decode(ids[:1]))
    plain_text = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert report.text.num_bytes == len(plain_text) - first


# Heads of every family ------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*tiny_models.FAMILIES, "cohere", "opt"])
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
    from engine.evaluation.side import Need, opened, prepare

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
    from engine.evaluation import evaluate

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


# Answers, speed -------------------------------------------------------------------------------


def test_answers_side_by_side(
    tiny_model: Any, tiny_folder: Path, other_model: Any, other_folder: Path
) -> None:
    prompts = [f"t{3 + i} t{10 + i} t{40 + 2 * i}" for i in range(6)]
    report = run(
        EvaluationTask(
            config_of(other_folder),
            reference=config_of(tiny_folder),
            prompts=tuple(PromptLine(2 * i + 1, p, 12) for i, p in enumerate(prompts)),
            prompts_name="prompts.jsonl",
        )
    )
    answers = report.answers
    assert answers is not None
    assert report.text is report.divergence is None
    assert [pair.line for pair in answers.pairs] == [1, 3, 5, 7, 9, 11]
    shares = []
    for prompt, pair in zip(prompts, answers.pairs, strict=True):
        ids = [int(word[1:]) for word in prompt.split()]
        expected, found = (
            until_end(tiny_models.reference(m, ids, 12).token_ids)
            for m in (tiny_model, other_model)
        )
        assert pair.prompt == prompt
        assert (pair.num_reference_tokens, pair.num_candidate_tokens) == (
            len(expected), len(found)
        )  # fmt: skip
        assert pair.is_identical == (expected == found)
        if pair.difference is None:
            shares.append(1.0)
            continue
        index = pair.difference.token_index
        assert expected[:index] == found[:index]
        assert expected[index : index + 1] != found[index : index + 1]
        assert pair.difference.text_before == " ".join(f"t{i}" for i in expected[:index])
        assert pair.difference.candidate.split()[:1] == [f"t{i}" for i in found[index:][:1]]
        shares.append(index / len(expected))
    assert answers.num_identical + len(shares) > 0 and min(shares) < 1.0
    assert answers.identical_share == answers.num_identical / 6
    assert answers.mean_equal_share == pytest.approx(sum(shares) / 6)


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(2) + 1] if 2 in ids else ids


def test_a_prompt_that_does_not_fit_is_named(tiny_folder: Path) -> None:
    config = config_of(tiny_folder)
    long = PromptLine(4, " ".join(["t5"] * 300))
    task = EvaluationTask(config, reference=config, prompts=(PromptLine(1, "t5"), long))
    with pytest.raises(TextError, match=r"line 4.*300 tokens"):
        run(task)


def test_a_reference_takes_the_dtype_of_the_candidate(tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder, dtype="bfloat16")
    report = run(EvaluationTask(config, reference=config.replace(dtype="auto"), text=text))
    assert report.reference is not None
    assert report.reference.dtype == report.candidate.dtype == "bfloat16"


def test_speed_and_sizes(tiny_folder: Path) -> None:
    reference = config_of(tiny_folder)
    task = EvaluationTask(
        reference.replace(dtype="bfloat16"), reference=reference, measure_speed=True,
        context_length=64,
    )  # fmt: skip
    report = run(task)
    assert report.reference is not None
    assert report.weights_ratio == pytest.approx(0.5, abs=0.02)
    assert report.candidate.kv_bytes_per_token == report.reference.kv_bytes_per_token / 2 == 256
    for facts in (report.candidate, report.reference):
        assert facts.speed is not None
        assert min(facts.speed.prefill, facts.speed.decode) > 0
        assert facts.speed.prefill_tokens + facts.speed.decode_tokens < 64


# Stopping, and what cannot be measured --------------------------------------------------------


@pytest.mark.usefixtures("same_threads")
def test_progress_counts_up_and_a_stop_is_heeded_at_every_stage(
    tiny_folder: Path, text: str
) -> None:
    config = config_of(tiny_folder, max_num_batched_tokens=50)
    task = EvaluationTask(
        config, reference=config, text=text, prompts=(PromptLine(1, "t5 t6", 3),),
        measure_speed=True, context_length=100,
    )  # fmt: skip
    seen: list[tuple[str, int, int]] = []
    run(task, lambda *step: seen.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    for side in ("Reference", "Model"):
        own = [stage for stage in stages if stage.startswith(side)]
        assert [unit_of(s) for s in own][-3:] == ["tokens", "answers", "runs"]
        assert {unit_of(s) for s in own[:-3]} == {"bytes"}
        counts = [(d, t) for s, d, t in seen if s == f"{side}: {TEXT}"]
        assert counts == [(0, 149), (50, 149), (99, 149), (149, 149)]

    loading = [stage for stage in stages if unit_of(stage) == "bytes"]
    for stage in [*loading[:1], *(s for s in stages if s not in loading), loading[-1]]:
        reached: list[str] = []
        with pytest.raises(EvaluationCancelled):
            run(task, lambda *step, r=reached: r.append(step[0]), lambda r=reached, s=stage: s in r)  # type: ignore[misc]
        assert reached[-1] == stage


def test_it_runs_in_a_thread_beside_another_engine(tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder)
    task = EvaluationTask(config, reference=config.replace(dtype="bfloat16"), text=text)
    expected = figures(run(task))
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(figures(run(task)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]


def test_tokenizers_that_differ_are_refused_with_numbers(
    tiny_folder: Path, tiny_model: Any, text: str, tmp_path: Path
) -> None:
    for vocab_size, words in ((150, "199 tokens of the reference"), (199, "1 of 199 tokens")):
        folder = tmp_path / str(vocab_size)
        tiny_model.save_pretrained(folder)
        tiny_models.save_tokenizer(folder, vocab_size)
        if vocab_size == 199:
            file = folder / "tokenizer.json"
            file.write_text(file.read_text().replace('"t77"', '"cat"'))
        with pytest.raises(ConfigError, match=words):
            run(EvaluationTask(config_of(folder), reference=config_of(tiny_folder), text=text))


def test_texts_that_are_cut_differently_are_refused(
    tiny_folder: Path, tiny_model: Any, text: str, tmp_path: Path
) -> None:
    """Equal vocabularies are not equal tokenizers."""
    tiny_model.save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": " t7 "}
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"150 tokens of the reference.*299 of.*number 1"):
        run(EvaluationTask(config_of(tmp_path), reference=config_of(tiny_folder), text=text))


def test_padded_vocabularies_are_refused(tiny_folder: Path, text: str, tmp_path: Path) -> None:
    folder = tiny_models.save(tiny_models.make_model("llama", vocab_size=208), tmp_path)
    with pytest.raises(ConfigError, match=r"199 logits of the reference.*208 of"):
        run(EvaluationTask(config_of(folder), reference=config_of(tiny_folder), text=text))


@pytest.mark.parametrize(
    ("changes", "error", "cause"),
    [
        ({"text": "t5 t6"}, TextError, "1 tokens"),
        ({"context_length": 257}, ConfigError, "2 to 256"),
        ({"context_length": 32, "stride": 32}, ConfigError, "every 32"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_loading(
    changes: dict[str, Any], error: type[InferdeckError], cause: str, tiny_folder: Path, text: str
) -> None:
    stages: list[str] = []
    with pytest.raises(error, match=cause):
        run(
            EvaluationTask(config_of(tiny_folder), **{"text": text, **changes}),
            lambda stage, done, total: stages.append(stage),
        )
    assert stages == []


def test_a_cache_too_small_for_a_window_is_refused(tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder, kv_cache_memory_bytes=32 * 512)
    with pytest.raises(ConfigError, match="128 tokens; the KV cache holds 32"):
        run(EvaluationTask(config, text=text, context_length=128))
    assert run(EvaluationTask(config, text=text, context_length=32)).text is not None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "nothing to measure"),
        ({"prompts": (PromptLine(1, "a"),)}, "there is none"),
        ({"text": "a", "max_tokens": 0}, "max_tokens is 0"),
        ({"text": "a", "num_worst": -1}, "num_worst is -1"),
        ({"text": "abc", "scored": ((0, 2), (1, 3))}, "2 parts"),
        ({"text": "abc", "scored": ((1, 4),)}, "3 characters"),
    ],
)
def test_a_task_without_sense_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EvaluationTask(EngineConfig(), **values)


def test_a_reference_is_plain() -> None:
    config = EngineConfig(model="x", dtype="bfloat16", block_size=4)
    assert plain(config) == config
    assert plain(config, dtype="float32") == config.replace(dtype="float32")


def test_running_out_of_memory_is_told(
    tiny_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = EvaluationTask(config_of(tiny_folder), text=text)
    original = Head.logits
    for error in (
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ):

        def fail(head: Head, states: torch.Tensor, error: Exception = error) -> torch.Tensor:
            if len(states) > 1:
                raise error
            return original(head, states)

        with monkeypatch.context() as patch:
            patch.setattr(Head, "logits", fail)
            with pytest.raises(OutOfMemoryError, match="memory ran out") as told:
                run(task)
        assert "context length" in told.value.remedy
    assert run(task).candidate_loss is not None  # and the next one finds all in order


def test_a_full_disk_is_told(tiny_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    config = config_of(tiny_folder)
    with pytest.raises(InferdeckError, match="No space left") as told:
        run(EvaluationTask(config, reference=config, text=text))
    assert "TMPDIR" in told.value.remedy


def test_states_come_back_bit_by_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = torch.randn(30, 7).to(dtype)
        with StateFile() as file:
            file.append(rows[:11])
            file.append(rows[11:12])
            file.append(rows[12:].t().contiguous().t())
            for start, end in ((0, 30), (10, 13), (29, 30)):
                assert torch.equal(file.read(start, end), rows[start:end])


def test_a_window_full_of_prompt_leaves_room_for_the_answer(tiny_folder: Path) -> None:
    config = config_of(tiny_folder)
    prompt = PromptLine(1, " ".join(["t5"] * 64), 30)
    report = run(EvaluationTask(config, reference=config, prompts=(prompt,), context_length=64))
    assert report.answers is not None
    assert report.answers.pairs[0].num_candidate_tokens > 0


def test_damaged_weights_are_told(tiny_model: Any, text: str, tmp_path: Path) -> None:
    import copy

    model = copy.deepcopy(tiny_model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    folder = tiny_models.save(model, tmp_path)
    with pytest.raises(InferdeckError, match="NaN"):
        run(EvaluationTask(config_of(folder), text=text))

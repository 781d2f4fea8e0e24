"""Which tokens of a text are scored: what a tokenizer adds, windows, and parts that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.evaluate import EvaluationTask, run
from engine.evaluate.reading import encode_parts, split_specials
from engine.evaluate.windows import Cut
from tests.engine import tiny_models
from tests.engine.evaluate.tiny_evaluations import NUM_TOKENS, by_transformers, config_of


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

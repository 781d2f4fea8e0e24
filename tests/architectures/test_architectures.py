"""The sweep over architectures: what it builds, a sample of it, and the page that it writes."""

from __future__ import annotations

import re

import pytest
import torch

from tests import ROOT
from tests.architectures import table
from tests.architectures.small import class_of, random_model, shrunk, small_config
from tests.architectures.sweep import class_names, sweep
from tests.architectures.trial import CRASHED, EQUAL, REFUSED, SUPPORTED, TIMEOUT, WRONG, Outcome

SAMPLE = {
    "llama": EQUAL, "gemma2": EQUAL, "mixtral": EQUAL, "apertus": EQUAL,
    "bloom": REFUSED, "mamba": REFUSED, "musicgen": REFUSED,
}  # fmt: skip


@pytest.mark.slow
def test_a_sample_ends_as_the_page_says() -> None:
    found = {outcome.model_type: outcome for outcome in sweep(list(SAMPLE))}
    assert {name: outcome.outcome for name, outcome in found.items()} == SAMPLE
    equal = [outcome for outcome in found.values() if outcome.outcome == EQUAL]
    assert all(outcome.cached > 0 for outcome in equal)


@pytest.mark.slow
def test_a_class_that_does_not_end_is_a_timeout() -> None:
    (outcome,) = sweep(["llama"], seconds=0.001)
    assert outcome.outcome == TIMEOUT


def test_layers_of_each_kind_are_kept() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    found = shrunk({"num_hidden_layers": 12, "layer_types": kinds * 2, "sliding_window": 4096})
    assert found["layer_types"] == ["sliding_attention"] * 2 + ["full_attention"] * 2
    assert found["num_hidden_layers"] == 4 and found["sliding_window"] < 16


@pytest.mark.parametrize("model_type", ["llama", "llama4_text"])
def test_a_small_model_looks_at_earlier_tokens(model_type: str) -> None:
    config = small_config(model_type)
    with torch.no_grad():
        model = random_model(class_of(config, class_names()[model_type]), config)
    assert sum(p.numel() for p in model.parameters()) < 2**21


def test_the_page_has_a_row_for_every_model_type() -> None:
    text = table.FILE.read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(class_names())


def test_the_readme_has_the_numbers_of_the_page() -> None:
    pattern = r"supports (\d+) of the (\d+) causal-LM model types"
    page, readme = (
        re.search(pattern, file.read_text("utf-8")) for file in (table.FILE, ROOT / "README.md")
    )
    assert page and readme and page.groups() == readme.groups()


def test_the_page_shows_what_went_wrong() -> None:
    outcomes = [
        Outcome("a", "A", EQUAL, "", 2e-6), Outcome("b", "B", REFUSED, "no | such\nlayer"),
        Outcome("c", "C", WRONG, "", 0.5), Outcome("d", "D", CRASHED, "SIGSEGV"),
    ]  # fmt: skip
    text = table.as_markdown(outcomes)
    assert "supports 1 of the 4" in text
    assert "| `b` | `B` | no \\| such layer |" in text
    assert "wrong: 0.5" in text and "crashed: SIGSEGV" in text
    assert {outcome.outcome for outcome in outcomes} > set(SUPPORTED)

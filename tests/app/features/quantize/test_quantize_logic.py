"""Sizes, names, checks, command lines and layers of the Quantize page. No window."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.evaluate import task_of
from app.cli.main import build_parser
from app.cli.quantize import recipe_of
from app.features.quantize.evaluation import (
    EvaluationPlan,
    ModelChoice,
    evaluate_command,
    quantize_command,
)
from app.features.quantize.layers import read_result, rows_of, summary
from app.features.quantize.plan import (
    GROUP_SIZE,
    MODULES,
    OUTPUT,
    SOURCE,
    QuantizePlan,
    check_plan,
    model_name,
    predict_seconds,
    predict_size,
    suggested_output,
)
from app.features.quantize.run import about
from app.features.quantize.source import Kept, Matrix, SourceFacts, module_groups, read_source
from app.features.quantize.texts import STARTER, TextChoice
from app.paths import starter_model
from engine.errors import ErrorInfo
from engine.quantize.quantize import quantize
from engine.quantize.recipe import GROUP_SIZES, METHODS, Recipe
from tests.figures import numbers
from tests.tiers import first_fast

PLENTY = lambda folder: 1 << 50


def facts(layers: int = 3, columns: int = 256) -> SourceFacts:
    """A model with two matrices a layer and an embedding."""
    names = [f"model.layers.{i}.{kind}" for i in range(layers)
             for kind in ("self_attn.q_proj", "mlp.down_proj")]  # fmt: skip
    matrices = tuple(Matrix(name, 256, columns, 256 * columns * 2) for name in names)
    size = sum(m.num_bytes for m in matrices) + 4096
    kept = (Kept("model.embed_tokens", 4096),)
    return SourceFacts("/models/m", "bfloat16", size, matrices, kept)


# What can be made of a model ------------------------------------------------------------------


def test_modules_are_grouped_by_kind_and_layer_and_say_what_stays() -> None:
    groups = module_groups(facts())
    assert [(g.title, g.pattern, g.num_matrices) for g in groups] == [
        ("q_proj", "q_proj", 3), ("down_proj", "down_proj", 3),
        ("First layer (layers.0)", "layers.0", 2), ("Last layer (layers.2)", "layers.2", 2),
        ("model.embed_tokens", None, 1),
    ]  # fmt: skip


def test_experts_are_one_kind_and_names_that_meet_are_told_apart() -> None:
    names = ["l.0.mlp.experts.0.up", "l.0.mlp.experts.1.up", "l.0.shared.up", "l.0.attn.q"]
    found = SourceFacts("/m", matrices=tuple(Matrix(n, 8, 32, 512) for n in names))
    by_title = {g.title: g for g in module_groups(found)}
    assert set(by_title) == {"mlp.experts.*.up", "shared.up", "q"}
    assert by_title["mlp.experts.*.up"].num_matrices == 2
    for group in by_title.values():
        assert group.pattern is not None
        left = found.quantized((group.pattern,))
        assert len(found.matrices) - len(left) == group.num_matrices


def test_every_pattern_of_the_list_leaves_what_it_counts() -> None:
    model = facts()
    for group in module_groups(model):
        if group.pattern is not None:
            left = model.quantized((group.pattern,))
            assert len(model.matrices) - len(left) == group.num_matrices
            assert not model.unknown((group.pattern,))


# Prediction ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def starter() -> SourceFacts:
    return read_source(str(starter_model()))


@pytest.mark.parametrize("recipe", first_fast(2, [
    Recipe("rtn", group_size=64), Recipe("rtn", bits=8, group_size=128, symmetric=True),
    Recipe("int8"), Recipe("fp8"), Recipe("nf4"), Recipe("rtn", exclude=("down_proj", "layers.0")),
]))  # fmt: skip
def test_the_predicted_size_is_what_is_written(
    starter: SourceFacts, recipe: Recipe, tmp_path: Path
) -> None:
    result = quantize(starter_model(), recipe, tmp_path / "out")
    predicted = predict_size(starter, recipe).num_bytes
    assert predicted == pytest.approx(result.bytes_after, rel=0.01)


@given(
    st.sampled_from(sorted(METHODS)), st.sampled_from(GROUP_SIZES), st.booleans(),
    st.integers(1, 100_000),
)  # fmt: skip
def test_more_is_never_predicted_to_be_smaller_or_faster(
    method: str, group: int, leave: bool, tokens: int
) -> None:
    exclude = ("q_proj",) if leave else ()
    recipe, whole = Recipe(method, group_size=group, exclude=exclude), Recipe(method)
    model = facts()
    found = predict_size(model, recipe)
    assert 0 < found.num_bytes < model.num_bytes
    assert found.quantized_share == (0.5 if leave else 1.0)
    assert found.num_bytes >= predict_size(model, replace(recipe, exclude=())).num_bytes
    assert (
        0 < predict_seconds(model, recipe, tokens, {}) <= predict_seconds(model, whole, tokens, {})
    )


def test_a_quantized_model_is_refused_with_the_reason(starter: SourceFacts, tmp_path: Path) -> None:
    quantize(starter_model(), Recipe("int8"), tmp_path / "out")
    found = read_source(str(tmp_path / "out"))
    assert found.refusal is not None and 8 in numbers(found.refusal.cause)
    problems = check_plan(plan_of(Recipe("int8"), source=found.path), found, PLENTY)
    assert [p.field for p in problems] == [SOURCE] and found.refusal.cause in problems[0].text


# Checks ----------------------------------------------------------------------------------------


def plan_of(
    recipe: Recipe, output: str = "/nowhere/new", source: str = "/models/m"
) -> QuantizePlan:
    return QuantizePlan(source, recipe, output)


@pytest.mark.parametrize(("recipe", "field", "words"), [
    (Recipe("awq", group_size=128), GROUP_SIZE, "(96)"),
    (Recipe("int8", exclude=("nonsense",)), MODULES, "'nonsense'"),
    (Recipe("int8", exclude=("q_proj", "down_proj")), MODULES, ""),
])  # fmt: skip
def test_problems_stand_at_their_field(
    recipe: Recipe, field: str, words: str, tmp_path: Path
) -> None:
    plan = plan_of(recipe, str(tmp_path / "new"))
    found = check_plan(plan, facts(columns=96), PLENTY)
    assert [p.field for p in found] == [field] and words in found[0].text


def test_the_output_has_to_be_a_new_folder_with_room(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("x")
    file = tmp_path / "file"
    file.write_text("x")
    causes = set()
    for output in ("", str(full), str(file)):
        (problem,) = check_plan(plan_of(Recipe("int8"), output), facts(), PLENTY)
        assert problem.field == OUTPUT
        causes.add(problem.text)
    assert len(causes) == 3
    found = check_plan(plan_of(Recipe("int8"), str(tmp_path / "new")), facts(), lambda _: 1000)
    assert found[0].field == OUTPUT and "1000 B" in found[0].text
    assert check_plan(plan_of(Recipe("int8"), str(tmp_path / "new")), facts(), PLENTY) == []


def test_the_suggested_folder_is_named_after_what_it_holds_and_new(tmp_path: Path) -> None:
    recipe = Recipe("awq", group_size=64)
    first = suggested_output(tmp_path, "/models/Qwen3-0.6B", recipe)
    assert first == tmp_path / "Qwen3-0.6B-AWQ-4bit-g64"
    first.mkdir()
    assert suggested_output(tmp_path, "/models/Qwen3-0.6B", recipe).name.endswith("g64-2")
    snapshot = "/hub/models--Qwen--Qwen3-0.6B/snapshots/abcdef"
    assert model_name(snapshot) == "Qwen3-0.6B"
    assert suggested_output(tmp_path, str(starter_model()), Recipe("int8")).name == "starter-int8"


# Command lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [
    Recipe("awq", bits=4, group_size=64, exclude=("down_proj", "layers.0"), num_sequences=7),
    Recipe("gptq", bits=8, symmetric=False, group_size=32, sequence_length=99),
    Recipe("gptq", desc_act=True, static_groups=False),
    Recipe("rtn", bits=8, symmetric=True), Recipe("int8"), Recipe("nf4"),
])  # fmt: skip
def test_the_command_line_makes_the_same_recipe(recipe: Recipe) -> None:
    plan = QuantizePlan("/my models/m", recipe, "/out/it's", TextChoice("", "/t/a b.txt"))
    args = build_parser().parse_args(shlex.split(quantize_command(plan))[1:])
    asked = recipe_of(args)
    assert replace(asked, bits=asked.chosen_bits, symmetric=asked.is_symmetric) == replace(
        recipe, bits=recipe.chosen_bits, symmetric=recipe.is_symmetric
    )
    assert (args.model, args.output) == (plan.source, plan.output)
    assert args.calibration == (plan.text.file if recipe.facts.is_calibrated else None)


@pytest.mark.parametrize("plan", [
    EvaluationPlan(ModelChoice("/a b/q"), ModelChoice("/a b/m"), TextChoice(STARTER)),
    EvaluationPlan(ModelChoice("/m", {"quantization": "int4", "dtype": "bfloat16"}),
                   ModelChoice("", {"dtype": "float32"}), TextChoice(STARTER), "", 256, 1000,
                   num_threads=1),
    EvaluationPlan(ModelChoice("/m", {"kv_cache_dtype": "k=int8,v=fp8"}), ModelChoice("/m"),
                   TextChoice(STARTER), measure_speed=False),
    EvaluationPlan(ModelChoice("/m"), text=TextChoice(STARTER)),
])  # fmt: skip
def test_the_command_line_measures_the_same(plan: EvaluationPlan) -> None:
    args = build_parser().parse_args(shlex.split(evaluate_command(plan))[1:])
    assert task_of(args) == plan.task()


def test_a_text_of_the_users_is_named_alike(tmp_path: Path) -> None:
    text, prompts = tmp_path / "my text.txt", tmp_path / "p.jsonl"
    text.write_text("Some words.")
    prompts.write_text('{"prompt": "Hi"}\n')
    choice = TextChoice("", str(text))
    plan = EvaluationPlan(ModelChoice("/m", {"quantization": "int8"}), text=choice,
                          prompts=str(prompts), raw_prompts=True)  # fmt: skip
    args = build_parser().parse_args(shlex.split(evaluate_command(plan))[1:])
    assert task_of(args) == plan.task() and plan.task().prompts[0].prompt == "Hi"


# Layers ----------------------------------------------------------------------------------------


def test_layers_are_the_same_live_and_from_the_file(tmp_path: Path) -> None:
    result = quantize(starter_model(), Recipe("rtn"), tmp_path / "out")
    stored = read_result(tmp_path / "out")
    assert stored is not None
    live, read = rows_of(result.layers), rows_of(stored["layers"])
    assert [r._replace(seconds=0) for r in live] == [r._replace(seconds=0) for r in read]
    assert len(live) == 8 and all(0 < row.error < 0.2 for row in live)
    assert all(row.rounding is None and not row.is_output for row in live)
    assert summary(live).startswith("mean ") and summary([]) == ""


@pytest.mark.parametrize("content", ["", "[]", '{"layers": 3}', '{"layers": [{"index": 1}]}'])
def test_a_damaged_result_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "inferdeck_quantization.json").write_text(content)
    assert read_result(tmp_path) is None


def test_times_are_said_as_people_say_them() -> None:
    assert [about(s) for s in (1, 41, 200, 7800)] == [
        "a few seconds", "about 40 s", "about 3 min", "about 2 h 10 min",
    ]  # fmt: skip


def test_an_error_is_no_refusal() -> None:
    refused = replace(facts(), matrices=(), refusal=ErrorInfo("No.", "Yes."))
    assert [p.text for p in check_plan(plan_of(Recipe()), refused, PLENTY)] == ["No. Yes."]
    assert json.dumps(Recipe().as_json())

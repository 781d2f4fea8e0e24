"""Evaluation plan, and the command lines of plans. No Qt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.features.quantize.plan import QuantizePlan
from app.features.quantize.texts import TextChoice, evaluation_text
from engine.config import SETTINGS, EngineConfig
from engine.evaluate import EvaluationTask, plain, read_prompts
from engine.evaluate.task import ANSWERS, SPEED, TEXT
from engine.quantize.recipe import Recipe

REFERENCE_SETTINGS = ("dtype", "quantization", "kv_cache_dtype")
"""Settings of the reference, as on the command line."""

CANDIDATE_SETTINGS = (*REFERENCE_SETTINGS, "quantization_group_size", "quantization_head")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model folder and the settings that differ from their defaults."""

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> EngineConfig:
        return EngineConfig().replace(model=self.path, **self.settings)


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Measures `candidate` against `reference` (empty path: the same model). Equal ones measure
    perplexity only. context_length: None for the model's maximum; max_tokens: None for the whole
    text; num_threads: None for the engine's default."""

    candidate: ModelChoice
    reference: ModelChoice = field(default_factory=lambda: ModelChoice(""))
    text: TextChoice | None = field(default_factory=TextChoice)
    prompts: str = ""
    context_length: int | None = None
    max_tokens: int | None = None
    measure_speed: bool = True
    num_threads: int | None = None
    raw_prompts: bool = False

    def configs(self) -> tuple[EngineConfig, EngineConfig | None]:
        """Candidate and reference, as on the command line: the reference is the candidate without
        quantization, with the reference's settings."""
        candidate = self.candidate.config().replace(num_threads=self.num_threads)
        changes: dict[str, Any] = dict(self.reference.settings)
        if self.reference.path and self.reference.path != self.candidate.path:
            changes["model"] = self.reference.path
        reference = plain(candidate, **changes)
        return candidate, reference if changes or reference != candidate else None

    @property
    def last_work(self) -> str:
        """The last stage of each side, as `engine.evaluate.task` names it."""
        if self.measure_speed:
            return SPEED
        return ANSWERS if self.prompts else TEXT

    def task(self) -> EvaluationTask:
        """Reads the text and the prompts. Raises ConfigError or TextError."""
        candidate, reference = self.configs()
        prompts_file = Path(self.prompts).expanduser() if self.prompts else None
        text, scored = evaluation_text(self.text) if self.text is not None else ("", ())
        return EvaluationTask(
            candidate,
            reference=reference,
            text=text,
            text_name=self.text.name if self.text is not None else "",
            scored=scored,
            prompts=read_prompts(prompts_file) if prompts_file is not None else (),
            prompts_name=str(prompts_file or ""),
            raw_prompts=self.raw_prompts,
            context_length=self.context_length,
            max_tokens=self.max_tokens,
            measure_speed=self.measure_speed,
        )


PROGRAM = "inferdeck"


def quantize_command(plan: QuantizePlan) -> str:
    """The quantize command with every option that differs from its default."""
    recipe, default = plan.recipe, Recipe(plan.recipe.method)
    words = [PROGRAM, "quantize", "--model", plan.source, "--method", recipe.method]
    words += ["--output", plan.output]
    if len(recipe.facts.bits) > 1:
        words += ["--bits", str(recipe.chosen_bits)]
    if recipe.facts.is_grouped:
        words += ["--group-size", str(recipe.group_size)]
    if recipe.is_symmetric != default.is_symmetric:
        words.append("--symmetric" if recipe.is_symmetric else "--no-symmetric")
    for pattern in recipe.exclude:
        words += ["--exclude", pattern]
    if recipe.facts.is_calibrated:
        if plan.text.file:
            words += ["--calibration", plan.text.file]
        words += ["--num-sequences", str(recipe.num_sequences)]
        words += ["--sequence-length", str(recipe.sequence_length)]
    if recipe.uses_desc_act:
        words.append("--desc-act")
    return shlex.join(words)


def evaluate_command(plan: EvaluationPlan) -> str:
    """The evaluate command; on the same machine it gives exactly the same figures."""
    words = [PROGRAM, "evaluate", "--model", plan.candidate.path]
    words += _flags(plan.candidate.settings, "--")
    if plan.reference.path and plan.reference.path != plan.candidate.path:
        words += ["--reference", plan.reference.path]
    words += _flags(plan.reference.settings, "--reference-")
    if plan.text is not None:
        builtin, file = ["--text", plan.text.builtin], ["--text-file", plan.text.file]
        words += builtin if plan.text.builtin else file
    for flag, value in (
        ("--prompts", plan.prompts or None),
        ("--context-length", plan.context_length),
        ("--max-tokens", plan.max_tokens),
        ("--num-threads", plan.num_threads),
    ):
        if value is not None:
            words += [flag, str(value)]
    if plan.prompts and plan.raw_prompts:
        words.append("--raw-prompts")
    if plan.measure_speed:
        words.append("--speed")
    return shlex.join(words)


def _flags(settings: Any, prefix: str) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        words += [prefix + SETTINGS[name].flag.removeprefix("--"), str(value)]
    return words

"""What precisions cost the starter model: each against itself in float32 on held-out text.

Rounded while loading, AWQ and GPTQ with calibration, the KV cache in 8 bits; and AWQ and GPTQ of
other programs, where they are installed (`peer_quantizers`). Figures are written as they come: a
run that ended early goes on where it was, with `--keep FOLDER`.

Calibration reads conversations of the share that the starter model was trained on; the text that
is measured is of the other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from app.features.quantize.texts import builtin_text
from app.paths import starter_model
from engine import EngineConfig
from engine.evaluate import EvaluationTask, plain, run
from engine.quantize.calibration import make_sequences
from engine.quantize.quantize import quantize
from engine.quantize.recipe import Recipe
from engine.text.tokenizer import Tokenizer
from resources.starter.corpus import make_conversation
from resources.starter.dataset import is_held_out
from resources.starter.sample import written
from tests.benchmarks.peer_quantizers import PEERS, run_peer
from tests.benchmarks.report import Goal, at_least, at_most, print_table

GROUP_SIZES = (128, 64)
SEQUENCES = 24
"""Of 512 tokens to calibrate on: with more, hardly better for a model of this size."""

Found = dict[str, dict[str, float]]


class Candidate(NamedTuple):
    """Settings of the engine, for the starter model or for what is made of it: by `recipe`, or by
    the program `peer` with the settings of `recipe`."""

    settings: Mapping[str, Any]
    recipe: Recipe | None = None
    peer: str = ""


def candidates(peers: Mapping[str, str]) -> dict[str, Candidate]:
    """By name. peers: the Python of other programs that quantize."""
    found = {
        "bfloat16": Candidate({"dtype": "bfloat16"}),
        "int8": Candidate({"quantization": "int8"}),
        "int8, int8 head": Candidate({"quantization": "int8", "quantization_head": "int8"}),
        "fp8": Candidate({"quantization": "fp8"}),
        "nf4": Candidate({"quantization": "nf4"}),
        "KV int8": Candidate({"kv_cache_dtype": "int8"}),
        "KV fp8": Candidate({"kv_cache_dtype": "fp8"}),
    }
    for size in GROUP_SIZES:
        settings = {"quantization": "int4", "quantization_group_size": size}
        found[f"int4, groups of {size}"] = Candidate(settings)
        for method in ("awq", "gptq"):
            recipe = Recipe(method=method, bits=4, group_size=size, num_sequences=SEQUENCES)
            name = f"{method}, groups of {size}"
            found[name] = Candidate({}, recipe)
            for peer in peers:
                if method in PEERS[peer]:
                    found[f"{name}, {peer}"] = Candidate({}, recipe, peer)
    return found


def calibration_text(seed: str = "") -> str:
    """Of the share that was trained on; another for each seed."""
    return _conversations(f"calibration{seed}", 200, are_held_out=False)


def measured_text(conversations: int = 300) -> str:
    """Some 21,000 tokens to score: on a fourth of them KL moves by a third from text to text."""
    return _conversations("measure", conversations, are_held_out=True)


def _conversations(seed: str, count: int, *, are_held_out: bool) -> str:
    rng, found = Random(seed), []
    while len(found) < count:
        conversation = make_conversation(rng)
        if is_held_out(conversation) is are_held_out:
            found.append(written(conversation))
    return "".join(found)


def quality(
    threads: int, folder: Path, peers: Mapping[str, str], minutes: float | None = None
) -> Found:
    """Figures of all candidates; those that `folder` has already are not measured again. A program
    that fails is named, and left out; after `minutes` no further one is begun."""
    began = time.monotonic()
    file = folder / "figures.json"
    found: Found = json.loads(file.read_text()) if file.is_file() else {}
    base = EngineConfig(num_threads=threads, kv_cache_memory_bytes=2**26)
    wanted = candidates(peers)
    for name, candidate in wanted.items():
        if name in found:
            continue
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            break
        print(f"\rstarter: {name}          ", end="", file=sys.stderr, flush=True)
        made = folder / name.replace(",", "").replace(" ", "-")
        try:
            model = _made(candidate, made, peers)
        except RuntimeError as error:
            print(f"\n{name} could not be made: {error}", file=sys.stderr)
            continue
        found[name] = _figures(base.replace(model=str(model), **candidate.settings), base)
        file.write_text(json.dumps(found, indent=2) + "\n")
    print(file=sys.stderr)
    return {name: found[name] for name in wanted if name in found}


def _made(candidate: Candidate, output: Path, peers: Mapping[str, str]) -> Path:
    """The folder of the model, which is made where it is not there yet."""
    model, recipe = starter_model(), candidate.recipe
    if recipe is None:
        return model
    if (output / "config.json").is_file():
        return output
    text = calibration_text()
    if not candidate.peer:
        quantize(model, recipe, output, [text])
        return output
    tokenizer = Tokenizer.from_folder(model, allow_missing=False)
    length, count = recipe.sequence_length, recipe.num_sequences
    sequences = make_sequences([text], tokenizer, length=length, count=count, seed=recipe.seed)
    run_peer(candidate.peer, peers[candidate.peer], model, recipe, output, sequences)
    return output


def _figures(config: EngineConfig, base: EngineConfig) -> dict[str, float]:
    text = measured_text()
    reference = plain(base, dtype="float32").replace(model=str(starter_model()))
    report = run(
        EvaluationTask(
            config, reference=reference, text=text, scored=builtin_text("starter").scored(text)
        )
    )
    assert report.divergence is not None and report.divergence.similarity is not None
    assert report.candidate_loss is not None and report.perplexity_change is not None
    return {
        "perplexity": report.candidate_loss.perplexity,
        "perplexity_change": report.perplexity_change,
        "kl_mean": report.divergence.kl.mean,
        "kl_p99": report.divergence.kl.p99 or 0.0,
        "top1_agreement": report.divergence.top1_agreement,
        "similarity": report.divergence.similarity.mean,
        "similarity_p1": report.divergence.similarity.p1 or 0.0,
        "weights_bytes": report.candidate.weights_bytes,
    }


def print_quality(found: Found) -> None:
    rows = [
        [
            name,
            f"{f['perplexity']:.4f} ({f['perplexity_change']:+.2%})",
            f"{f['kl_mean']:.5f}",
            f"{f['kl_p99']:.4f}",
            f"{f['top1_agreement']:.2%}",
            f"{f['similarity']:.3%}",
            f"{f['similarity_p1']:.3%}",
        ]
        for name, f in found.items()
    ]
    header = ["starter", "perplexity", "KL mean", "KL p99", "top-1", "similarity", "its p1"]
    print_table(header, rows)


def quality_goals(found: Found) -> list[Goal]:
    def worse(name: str) -> float:
        return 100 * found[name]["perplexity_change"]

    goals = [
        at_least(f"{name}: similarity at least 99.9 %", 100 * found[name]["similarity"], 99.9, " %")
        for name in ("int8", "fp8")
        if name in found
    ]
    goals += [
        at_most(f"{name}: perplexity within 1 %", worse(name), 1.0, " %")
        for name in ("int8", "KV int8", "KV fp8")
        if name in found
    ]
    for name in (f"awq, groups of {size}" for size in GROUP_SIZES):
        if name in found:
            similar = 100 * found[name]["similarity"]
            goals += [
                at_least(f"{name}: similarity at least 99 %", similar, 99.0, " %"),
                at_most(f"{name}: perplexity within 3 %", worse(name), 3.0, " %"),
            ]
    for name, figures in found.items():
        ours, _, peer = name.rpartition(", ")
        if peer in PEERS and ours in found:
            ratio = found[ours]["kl_mean"] / figures["kl_mean"]
            goals.append(at_most(f"{ours}: KL over that of {peer}, at most 1", ratio, 1.0))
    return goals

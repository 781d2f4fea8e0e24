"""Train the starter models from the generated corpus: `python -m resources.starter.train`.

The chat model learns the answers of the corpus. The draft model learns the same answers and, at
the same time, to predict what the chat model predicts, because that is what decides how many of
its tokens are accepted in speculative decoding.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from resources import resource_path
from resources.starter.dataset import IGNORED, make_batch
from resources.starter.export import export_model
from resources.starter.muon import Muon
from resources.starter.tokenizer import VOCAB_SIZE, train_tokenizer

CHECKPOINT_FOLDER = Path("build/starter-training")
WARMUP_STEPS = 20
SECONDS_BETWEEN_CHECKPOINTS = 150.0
# The share of the draft model's budget after which the chat model teaches it: a step with a
# teacher takes three times as long, and is worth it once the plain text is learned.
TEACHER_JOINS = 0.6
# Every fourth step sees long rows, so that long chats stay within what was learned.
LONG_ROW_EVERY = 4


@dataclass(frozen=True)
class Shape:
    """The shape of a Qwen3 model; heads have 64 dimensions."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


SHAPES = {
    "chat": Shape(hidden=256, layers=8, heads=4, kv_heads=2, intermediate=384),
    "draft": Shape(hidden=128, layers=2, heads=2, kv_heads=1, intermediate=256),
}


@dataclass(frozen=True)
class Plan:
    """What to train, for how long, and where the results go."""

    name: str
    shape: Shape
    minutes: float
    output: Path
    checkpoint: Path
    max_steps: int | None = None
    row_length: int = 512
    tokens_per_step: int = 2048
    learning_rate: float = 0.02
    seed: int = 0
    device: str = "cpu"
    resume: bool = False
    teacher: Path | None = None


@dataclass
class Progress:
    """How far a training run is. It is stored in the checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def build_model(shape: Shape, seed: int) -> Qwen3ForCausalLM:
    """Make a Qwen3 model of a shape with random weights."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=64,
            intermediate_size=shape.intermediate,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


class Trainer:
    """One training run: the model, its optimizers, and the checkpoint that lets it go on."""

    def __init__(self, plan: Plan, tokenizer: PreTrainedTokenizerFast) -> None:
        self.plan = plan
        self.tokenizer = tokenizer
        self.progress = Progress()
        self.model = build_model(plan.shape, plan.seed)
        torch.nn.Module.to(self.model, plan.device)
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        rest = [p for n, p in self.model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=plan.learning_rate),
            torch.optim.AdamW(rest, lr=plan.learning_rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.base_rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.teacher: Qwen3ForCausalLM | None = None
        if plan.resume and plan.checkpoint.exists():
            self._load()

    def run(self) -> dict[str, Any]:
        """Train until the budget is spent, export the model, and return the report."""
        saved_at = counted = time.monotonic()
        while (done := self._fraction_done()) < 1.0:
            if done >= TEACHER_JOINS:
                self._call_teacher()
            loss = self._step(done)
            now = time.monotonic()  # the budget is time on the wall: checkpoints count
            self.progress.seconds, counted = self.progress.seconds + now - counted, now
            if self.progress.step % 25 == 0:
                print(
                    f"{self.plan.name} step {self.progress.step} loss {loss:.3f}"
                    f" {self.progress.tokens / self.progress.seconds:.0f} tokens/s {done:.0%}",
                    flush=True,
                )
            if time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                self.save()
                export_model(self.plan.output, self.model, self.tokenizer, self.report())
                saved_at = time.monotonic()
        self._call_teacher()
        self.save()
        report = self.report()
        export_model(self.plan.output, self.model, self.tokenizer, report)
        return report

    def _call_teacher(self) -> None:
        if self.plan.teacher is not None and self.teacher is None:
            teacher = Qwen3ForCausalLM.from_pretrained(self.plan.teacher, dtype=torch.float32)
            self.teacher = torch.nn.Module.to(teacher, self.plan.device).eval()

    def _fraction_done(self) -> float:
        by_time = self.progress.seconds / (self.plan.minutes * 60)
        if self.plan.max_steps is None:
            return by_time
        return max(by_time, self.progress.step / self.plan.max_steps)

    def _step(self, done: float) -> float:
        plan = self.plan
        step = self.progress.step
        length = plan.row_length * (2 if step % LONG_ROW_EVERY == LONG_ROW_EVERY - 1 else 1)
        rows = max(1, plan.tokens_per_step // length)
        inputs, labels = make_batch(self.tokenizer, f"{plan.seed}:{step}", rows, length)
        # A cosine over the part of the budget that is spent, down to a thousandth.
        rate = 0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * done))
        rate *= min(1.0, (step + 1) / WARMUP_STEPS)
        for optimizer, base in zip(self.optimizers, self.base_rates, strict=True):
            optimizer.param_groups[0]["lr"] = base * rate
        loss = self._loss(inputs.to(plan.device), labels.to(plan.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += inputs.numel()
        return float(loss.detach())

    def _loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # The output layer runs on answer tokens only: the others carry no loss.
        learned = labels != IGNORED
        logits = answer_logits(self.model, inputs, learned)
        loss = F.cross_entropy(logits, labels[learned])
        if self.teacher is None:
            return loss
        with torch.no_grad():
            wanted = answer_logits(self.teacher, inputs, learned)
        divergence = F.kl_div(
            logits.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True
        )
        return 0.3 * loss + divergence

    def save(self) -> None:
        """Write the checkpoint, replacing the one before it only when it is complete."""
        path = self.plan.checkpoint
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_suffix(".tmp")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "progress": vars(self.progress),
            },
            staging,
        )
        os.replace(staging, path)

    def _load(self) -> None:
        state = torch.load(self.plan.checkpoint, map_location=self.plan.device)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])

    def report(self) -> dict[str, Any]:
        """What `training.json` records: the run, the machine, and the held-out quality."""
        held_out = evaluate(self.model, self.teacher, self.tokenizer, self.plan)
        return {
            "model": self.plan.name,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "seed": self.plan.seed,
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 1),
            **held_out,
            "machine": f"{cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
            "device": self.plan.device,
            "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }


def answer_logits(
    model: Qwen3ForCausalLM, inputs: torch.Tensor, learned: torch.Tensor
) -> torch.Tensor:
    """The logits [count, vocabulary] at the positions that `learned` marks, in their order."""
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    logits: torch.Tensor = model.lm_head(hidden[learned]).float()
    return logits


@torch.no_grad()
def evaluate(
    model: Qwen3ForCausalLM,
    teacher: Qwen3ForCausalLM | None,
    tokenizer: PreTrainedTokenizerFast,
    plan: Plan,
) -> dict[str, float]:
    """Measure loss and perplexity on held-out answers, and the agreement with the teacher."""
    inputs, labels = make_batch(tokenizer, "held-out", 8, plan.row_length, held_out=True)
    inputs, learned = inputs.to(plan.device), (labels != IGNORED).to(plan.device)
    logits = answer_logits(model, inputs, learned).cpu()
    loss = float(F.cross_entropy(logits, labels[labels != IGNORED]))
    result = {"held_out_loss": round(loss, 4), "held_out_perplexity": round(math.exp(loss), 4)}
    if teacher is not None:
        same = logits.argmax(-1) == answer_logits(teacher, inputs, learned).cpu().argmax(-1)
        result["greedy_agreement_with_chat"] = round(float(same.float().mean()), 4)
    return result


def shared_tokenizer(chat_folder: Path, fresh: bool) -> PreTrainedTokenizerFast:
    """The tokenizer of both models: a new one, or the one that the chat model was trained with."""
    if fresh or not (chat_folder / "tokenizer.json").exists():
        return train_tokenizer(seed=0)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(chat_folder)
    return tokenizer


def _starts_over(options: argparse.Namespace) -> bool:
    return options.model != "draft" and not options.resume


def cpu_name() -> str:
    """The model name of the CPU, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(arguments: list[str] | None = None) -> None:
    """Train one model or both, as the command line says."""
    parser = argparse.ArgumentParser(description="Train the starter models.")
    parser.add_argument("--model", choices=("chat", "draft", "both"), default="both")
    parser.add_argument("--minutes", type=float, default=42.0, help="budget of the whole run")
    parser.add_argument("--max-steps", type=int, help="stop after this many steps")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--learning-rate", type=float, default=Plan.learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=resource_path("starter"))
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINT_FOLDER)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    transformers_logging.disable_progress_bar()  # one shard needs no bar
    tokenizer = shared_tokenizer(options.output / "chat", fresh=_starts_over(options))
    shares = {"chat": 0.8, "draft": 0.2} if options.model == "both" else {options.model: 1.0}
    for name, share in shares.items():
        plan = Plan(
            name=name,
            shape=SHAPES[name],
            minutes=options.minutes * share,
            output=options.output / name,
            checkpoint=options.checkpoints / f"{name}.pt",
            max_steps=options.max_steps,
            seed=options.seed,
            learning_rate=options.learning_rate,
            device=options.device,
            resume=options.resume,
        )
        if name == "draft":
            plan = replace(plan, teacher=options.output / "chat")
        report = Trainer(plan, tokenizer).run()
        print(f"{name}: {report}", flush=True)


if __name__ == "__main__":
    main()

"""Train the EAGLE-3 head of the starter chat model: `python -m resources.starter.train_eagle3`.

The head reads the hidden states of the chat model on the answers of the corpus and learns to
predict what the chat model predicts, for several drafts in a row.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from resources import resource_path
from resources.starter.dataset import IGNORED, make_batch
from resources.starter.eagle3_head import RMS_NORM_EPS, ROPE_THETA, Eagle3Head, HeadShape
from resources.starter.muon import Muon
from resources.starter.train import CHECKPOINT_FOLDER, Progress, cpu_name

WARMUP_STEPS = 20
SECONDS_BETWEEN_CHECKPOINTS = 120.0
ROWS_TO_COUNT = 800  # from which the tokens of the draft vocabulary are chosen
LOSS_DECAY = 0.8  # a draft counts only if those before it stood
# Every fourth step sees long rows, as when the chat model was trained.
LONG_ROW_EVERY = 4


@dataclass(frozen=True)
class HeadPlan:
    """What to train, for how long, and where the results go."""

    chat: Path
    output: Path
    checkpoint: Path
    shape: HeadShape = field(default_factory=HeadShape)
    minutes: float = 18.0
    max_steps: int | None = None
    num_drafts: int = 4
    row_length: int = 512
    tokens_per_step: int = 1024
    learning_rate: float = 0.02
    seed: int = 0
    resume: bool = False


class Lesson(NamedTuple):
    """What the head learns from a batch of T places. states[B, T, 3 hidden]; embedded[B, T +
    num_drafts - 1, hidden]; wanted[B, T + num_drafts - 1, draft vocabulary]: logits of the chat
    model, and counts: whether they carry loss."""

    states: torch.Tensor
    embedded: torch.Tensor
    wanted: torch.Tensor
    counts: torch.Tensor


class HeadTrainer:
    """One training run: the head, its optimizers, and the checkpoint that lets it go on."""

    def __init__(self, plan: HeadPlan) -> None:
        self.plan = plan
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(plan.chat)
        chat = Qwen3ForCausalLM.from_pretrained(plan.chat, dtype=torch.float32)
        self.chat: Qwen3ForCausalLM = chat.eval().requires_grad_(False)
        self.layers = tapped_layers(chat.config.num_hidden_layers)
        self.draft_ids = draft_vocabulary(self.tokenizer, plan)
        torch.manual_seed(plan.seed)
        self.head = Eagle3Head(plan.shape)
        named = dict(self.head.named_parameters())
        matrices = [p for n, p in named.items() if p.ndim == 2 and n != "lm_head.weight"]
        rest = [p for n, p in named.items() if p.ndim != 2 or n == "lm_head.weight"]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=plan.learning_rate),
            torch.optim.AdamW(rest, lr=plan.learning_rate / 5, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.base_rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.progress = Progress()
        if plan.resume and plan.checkpoint.exists():
            self._load()

    def run(self) -> dict[str, Any]:
        """Train until the budget is spent, export the head, and return the report."""
        saved_at = counted = time.monotonic()
        while (done := self._fraction_done()) < 1.0:
            loss = self._step(done)
            now = time.monotonic()
            self.progress.seconds, counted = self.progress.seconds + now - counted, now
            if self.progress.step % 25 == 0:
                print(f"eagle3 step {self.progress.step} loss {loss:.3f} {done:.0%}", flush=True)
            if now - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                self.save()
                saved_at = time.monotonic()
        self.save()
        report = self.report()
        export_head(self.plan, self.head, self.draft_ids, self.chat.config.vocab_size, report)
        return report

    def _fraction_done(self) -> float:
        by_time = self.progress.seconds / (self.plan.minutes * 60)
        if self.plan.max_steps is None:
            return by_time
        return max(by_time, self.progress.step / self.plan.max_steps)

    def _step(self, done: float) -> float:
        plan, step = self.plan, self.progress.step
        length = plan.row_length * (2 if step % LONG_ROW_EVERY == LONG_ROW_EVERY - 1 else 1)
        rows = max(1, plan.tokens_per_step // length)
        # a cosine down to a thousandth, after a short rise
        rate = 0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * done))
        rate *= min(1.0, (step + 1) / WARMUP_STEPS)
        for optimizer, base in zip(self.optimizers, self.base_rates, strict=True):
            optimizer.param_groups[0]["lr"] = base * rate
        lesson = self.lesson(f"{plan.seed}:{step}", rows, length)
        loss = self._loss(lesson)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += rows * length
        return float(loss.detach())

    @torch.no_grad()
    def lesson(self, seed: str, rows: int, length: int, held_out: bool = False) -> Lesson:
        """Read a batch with the chat model."""
        inputs, labels = make_batch(self.tokenizer, seed, rows, length, held_out)
        output = self.chat.model(input_ids=inputs, use_cache=False, output_hidden_states=True)
        states = torch.cat([output.hidden_states[layer] for layer in self.layers], dim=-1)
        # the draft after place t is the token after next: what the chat model says at t + 1
        draft_rows = self.chat.lm_head.weight[self.draft_ids]
        wanted = F.linear(output.last_hidden_state[:, 1:], draft_rows)
        last = length - self.plan.num_drafts
        return Lesson(
            states[:, :last],
            self.chat.model.embed_tokens(inputs[:, 1:]),
            wanted,
            labels[:, 1:] != IGNORED,
        )

    def _loss(self, lesson: Lesson) -> torch.Tensor:
        places = lesson.states.shape[1]
        total = torch.zeros(())
        outputs = self.head(lesson.states, lesson.embedded, self.plan.num_drafts)
        for step, output in enumerate(outputs):
            # logits of answer tokens only: the others carry no loss
            counts = lesson.counts[:, step : step + places]
            wanted = lesson.wanted[:, step : step + places][counts]
            divergence = F.kl_div(
                self.head.lm_head(output[counts]).log_softmax(-1),
                wanted.log_softmax(-1),
                reduction="batchmean",
                log_target=True,
            )
            total = total + LOSS_DECAY**step * divergence
        return total

    @torch.no_grad()
    def acceptance(self) -> dict[str, Any]:
        """How often greedy drafts are the chat model's own choice on held-out answers, each if
        those before it were; and the tokens that a round of them gives."""
        lesson = self.lesson("held-out", 8, self.plan.row_length, held_out=True)
        places = lesson.states.shape[1]
        rates: list[float] = []
        accepted = 0.0
        first = stands = lesson.counts[:, :places]
        outputs = self.head(lesson.states, lesson.embedded, self.plan.num_drafts)
        for step, output in enumerate(outputs):
            # an answer that ends takes its drafts with it
            tried = stands & lesson.counts[:, step : step + places]
            drafts = self.head.lm_head(output).argmax(-1)
            right = drafts == lesson.wanted[:, step : step + places].argmax(-1)
            stands = tried & right
            rates.append(round(int(stands.sum()) / max(1, int(tried.sum())), 4))
            accepted += int(stands.sum()) / max(1, int(first.sum()))
        return {
            "held_out_acceptance_per_position": rates,
            "held_out_acceptance_length": round(1.0 + accepted, 3),
        }

    def save(self) -> None:
        """Write the checkpoint, replacing the one before it only when it is complete."""
        path = self.plan.checkpoint
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_suffix(".tmp")
        torch.save(
            {
                "head": self.head.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "progress": asdict(self.progress),
            },
            staging,
        )
        os.replace(staging, path)

    def _load(self) -> None:
        state = torch.load(self.plan.checkpoint)
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])

    def report(self) -> dict[str, Any]:
        """What `training.json` records: the run, the machine, and the held-out acceptance."""
        return {
            "model": "eagle3",
            "parameters": sum(p.numel() for p in self.head.parameters()),
            "seed": self.plan.seed,
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 1),
            **self.acceptance(),
            "machine": f"{cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
            "device": "cpu",
            "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }


def tapped_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers whose inputs the head reads: an early, the middle and a late one."""
    return 2, num_layers // 2, num_layers - 3


def draft_vocabulary(tokenizer: PreTrainedTokenizerFast, plan: HeadPlan) -> torch.Tensor:
    """The tokens that answers are mostly made of, in ascending order: [draft_vocab]."""
    counted: Counter[int] = Counter()
    for batch in range(0, ROWS_TO_COUNT, 4):
        _, labels = make_batch(tokenizer, f"vocabulary:{batch}", 4, plan.row_length)
        counted.update(labels[labels != IGNORED].tolist())
    chosen = [token_id for token_id, _ in counted.most_common(plan.shape.draft_vocab)]
    others = (i for i in range(len(tokenizer)) if i not in counted)
    chosen += [i for i, _ in zip(others, range(plan.shape.draft_vocab - len(chosen)), strict=False)]
    return torch.tensor(sorted(chosen))


def export_head(
    plan: HeadPlan,
    head: Eagle3Head,
    draft_ids: torch.Tensor,
    vocab_size: int,
    report: dict[str, Any],
) -> None:
    """Write weights (bfloat16), configuration and `training.json` as a published head has them.

    All files are written beside the folder first and then renamed into it one by one, so that a
    reader never meets half a file.
    """
    shape, folder = plan.shape, plan.output
    tensors = {name: t.bfloat16().contiguous() for name, t in head.state_dict().items()}
    tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
    tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, draft_ids, True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "vocab_size": vocab_size,
        "draft_vocab_size": shape.draft_vocab,
        "dtype": "bfloat16",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as name:
        staging = Path(name)
        save_file(tensors, staging / "model.safetensors", metadata={"format": "pt"})
        for file, content in (("config.json", config), ("training.json", report)):
            (staging / file).write_text(json.dumps(content, indent=2) + "\n")
        for path in sorted(staging.iterdir()):
            path.chmod(0o644)
            os.replace(path, folder / path.name)


def main(arguments: list[str] | None = None) -> None:
    """Train the head, as the command line says."""
    parser = argparse.ArgumentParser(description="Train the EAGLE-3 head of the chat model.")
    parser.add_argument("--minutes", type=float, default=HeadPlan.minutes, help="budget of the run")
    parser.add_argument("--max-steps", type=int, help="stop after this many steps")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--learning-rate", type=float, default=HeadPlan.learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chat", type=Path, default=resource_path("starter", "chat"))
    parser.add_argument("--output", type=Path, default=resource_path("starter", "eagle3"))
    parser.add_argument("--checkpoints", type=Path, default=CHECKPOINT_FOLDER)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()  # one shard needs no bar
    plan = HeadPlan(
        chat=options.chat,
        output=options.output,
        checkpoint=options.checkpoints / "eagle3.pt",
        minutes=options.minutes,
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        seed=options.seed,
        resume=options.resume,
    )
    report = HeadTrainer(plan).run()
    print(f"eagle3: {report}", flush=True)


if __name__ == "__main__":
    main()

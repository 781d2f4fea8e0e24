"""transformers: `generate` on the whole batch at once, as one calls it without a server."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from serve import Engine, Made, Options, Prompts, serve
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria


class Steps(StoppingCriteria):
    """Reports that `generate` has chosen a token for every prompt; stops nothing."""

    def __init__(self, made: Made) -> None:
        self._made = made

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        for index in range(len(input_ids)):
            self._made(index, 1)
        return torch.zeros(len(input_ids), dtype=torch.bool)


def load(options: Options) -> Engine:
    torch.set_num_threads(options["num_threads"])
    model = AutoModelForCausalLM.from_pretrained(
        options["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def run(prompts: Prompts, num_output: int, made: Made) -> None:
        input_ids = torch.tensor(prompts)
        model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            generation_config=GenerationConfig(
                max_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            stopping_criteria=[Steps(made)],
        )

    return Engine(f"transformers {transformers.__version__}", run)


if __name__ == "__main__":
    serve(load)

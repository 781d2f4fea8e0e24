"""Checkpoints on disk at real shapes with random weights, for comparisons with other engines."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from app.paths import shapes_dir, starter_model

WEIGHT_STD = 0.02
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make_checkpoint(shape: str, folder: Path, seed: int = 0) -> Path:
    """Write `shape` of resources/shapes to folder/shape with seeded weights in bfloat16, and the
    starter model's tokenizer (the prompts are token ids; no text is read)."""
    target = folder / shape
    config = AutoConfig.from_pretrained(shapes_dir() / shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, WEIGHT_STD, generator=generator)
    model.save_pretrained(target)
    for name in TOKENIZER_FILES:
        if (starter_model() / name).is_file():
            shutil.copy(starter_model() / name, target / name)
    return target

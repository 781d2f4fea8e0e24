"""Shapes of models in numbers, from the configs that ship with the program. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from resources import resource_path

LLAMA_8B, LLAMA_1B, TINY = "llama-3.1-8b", "llama-3.2-1b", "tiny"
BITS = {"bf16": 16.0, "int8": 8.0, "fp8": 8.0, "int4": 4 + 20 / 128, "nf4": 4.5}
"""Of a weight of a linear layer. int4: groups of 128 share a 16-bit scale and a 4-bit zero; nf4:
blocks of 64 share a scale of 32 bits."""
KV_BYTES = {"auto": 2, "fp8": 1, "int8": 1}
"""Of a number in the KV cache; the scales of 8 bits (a 64th) are not counted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A llama: sizes of the matrices that a token meets."""

    name: str
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def named(cls, name: str) -> Shape:
        config = json.loads((folder_of(name) / "config.json").read_text(encoding="utf-8"))
        return cls(
            name=name,
            num_layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            vocab=config["vocab_size"],
        )

    def divided(self, first_layers: int) -> tuple[Shape, Shape]:
        """So many layers without a head; and the others, with it."""
        first = replace(self, num_layers=first_layers, vocab=0)
        return first, replace(self, num_layers=self.num_layers - first_layers)

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of a layer's matrices, those that share inputs packed into one."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "qkv": (queries + 2 * keys, self.hidden),
            "out": (self.hidden, queries),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def body_parameters(self) -> int:
        """Of all layers' matrices."""
        return self.num_layers * sum(out * inner for out, inner in self.linears.values())

    @property
    def head_parameters(self) -> int:
        return self.vocab * self.hidden

    def weight_bytes(self, precision: str) -> float:
        """What a step reads: all matrices, the output layer in 16 bits. (Of the embeddings it
        reads a row per token.)"""
        return self.body_parameters * BITS[precision] / 8 + self.head_parameters * 2

    def kv_bytes_per_token(self, kv: str) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_BYTES[kv]

    @property
    def flops_per_pair(self) -> int:
        """Of a token and one that it attends to, in all layers: scores, and values weighted."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


def folder_of(name: str) -> Path:
    """The folder with the shape's config.json."""
    if name == TINY:
        return Path(__file__).parent / "tiny"
    return resource_path("shapes", name)

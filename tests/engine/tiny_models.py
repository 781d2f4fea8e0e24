"""Tiny random checkpoints of many families, and what transformers itself generates with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

VOCAB_SIZE = 199
WINDOW = 13

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

_SLIDING_AND_FULL = ["sliding_attention", "sliding_attention", "full_attention"] * 2

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": WINDOW}),
    "phi3": ("Phi3Config", {}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 16, "num_experts": 4, **_MOE}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phimoe": (
        "PhimoeConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            **_MOE,
        },
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            "head_dim": 16,
            "attention_chunk_size": 16,
            "intermediate_size_mlp": 96,
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 0, 1, 0],
            "floor_scale": 8,
            "interleave_moe_layer_step": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "layer_types": _SLIDING_AND_FULL,
            "laurel_rank": 8,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "intermediate_size": [96] * 6,
            "activation_sparsity_pattern": [0.9] * 2 + [0.0] * 4,
        },
    ),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": WINDOW,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "layer_types": _SLIDING_AND_FULL,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_moe": (
        "Gemma4TextConfig",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "layer_types": _SLIDING_AND_FULL[:3],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "olmo2": ("Olmo2Config", {}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": WINDOW}),
    "gpt_oss": (
        "GptOssConfig",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}


class Reference(NamedTuple):
    """Greedy continuation by transformers, and the log probability of each chosen token."""

    token_ids: list[int]
    logprobs: list[float]


def make_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model whose logits are far from uniform."""
    name, own = FAMILIES[family]
    config = getattr(transformers, name)(**{**_SMALL, **own, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25 if parameter.ndim > 1 else 0.3)
    model.generation_config.eos_token_id = 2
    return model.eval()


def save_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """One word per token id: "t17" is 17."""
    words = {f"t{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="t0", eos_token="t2"
    ).save_pretrained(folder)


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    save_tokenizer(folder)
    return folder


def make_prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def reference(model: Any, prompt: Sequence[int], max_tokens: int) -> Reference:
    """Token by token without a cache: the plainest statement of what the model says."""
    tokens, logprobs = list(prompt), []
    for _ in range(max_tokens):
        row = model(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
    return Reference(tokens[len(prompt) :], logprobs)

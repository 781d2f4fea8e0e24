"""Small tokenizers of the two common kinds, trained in a moment, as checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The scheduler grants tokens to running requests first, then to waiting ones.",
    "A block of the cache holds sixteen tokens; the table maps positions to blocks.",
    "User: how does paging work?\nAssistant: It splits the cache into blocks.",
    "Größe, naïve café, 你好世界, こんにちは, 안녕, привет, 🙂🙃 ok",
] * 4

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """Byte-level BPE as in GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece BPE with byte fallback as in Llama 2 and Mistral: a word's token carries the
    space before it, and characters outside the vocabulary become one token per byte."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    trained.train_from_iterator([f" {line}" for line in CORPUS[:3]], trainer)
    learned: dict[str, Any] = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tokens += sorted(learned["vocab"], key=learned["vocab"].get)
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, *, template: str | None = None, **names: str) -> Path:
    """Write a checkpoint folder; `names` such as eos_token, bos_token."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder

"""Unbroken models, and the tokens that a reading of their weights by transformers gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tests.corpus import stores
from tests.corpus.child import call

PROMPT = (1, 2, 3)
NUM_TOKENS = 2
TEXT = "hello"
LONG = "a" * 129 + "!"

QUANTIZED: dict[str, dict[str, Any]] = {
    "awq": {"method": "awq"},
    "gptq": {"method": "gptq"},
    "gptq-desc_act": {"method": "gptq", "desc_act": True, "symmetric": False},
    "ct-pack": {"method": "compressed-tensors"},
    "ct-int": {"method": "compressed-tensors", "layout": "int"},
    "ct-float": {"method": "compressed-tensors", "layout": "float"},
    "fp8-block": {"method": "fp8", "block": (32, 32)},
    "fp8-channel": {"method": "fp8", "strategy": "channel"},
    "bnb-nf4": {"method": "bitsandbytes"},
    "bnb-double": {"method": "bitsandbytes", "double": True},
    "bnb-int8": {"method": "bitsandbytes", "kind": "int8"},
}
"""Arguments of `quantized_checkpoints.make_quantized`."""


def make(root: Path, only: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Write every control, or those of `only`, below `root`; the answer of each. Works in children:
    see `child`."""
    makers: dict[str, Callable[[Path], None]] = {
        "llama": _plain("llama"), "sharded": _sharded, "chat": _chat, "mixtral": _plain("mixtral"),
        "chats": stores.make_chats, "recording": stores.make_recording,
        "settings": stores.make_settings, "gpt2": _plain("gpt2"), "qwen3": _plain("qwen3"),
    }  # fmt: skip
    for name, options in QUANTIZED.items():
        makers[name] = _quantized(options)
    for name, maker in makers.items():
        if only is not None and name not in only:
            continue
        (root / name).mkdir()
        call(lambda name=name, maker=maker: maker(root / name))  # type: ignore[misc]
    expected = {}
    for file in root.glob("*/expected*.json"):
        name = file.parent.name + file.stem.removeprefix("expected").replace("-", "/")
        expected[name] = json.loads(file.read_text())
        file.unlink()
    return expected


def _expect(folder: Path, model: Any, prompt: Sequence[int] = PROMPT, name: str = "") -> None:
    from tests.engine.tiny_models import reference

    tokens = reference(model, prompt, NUM_TOKENS).token_ids
    (folder / f"expected{name}.json").write_text(json.dumps(tokens))


def _plain(family: str) -> Callable[[Path], None]:
    def maker(folder: Path) -> None:
        from tests.engine import tiny_models

        model = tiny_models.make_model(family)
        tiny_models.save(model, folder)
        _expect(folder, model)

    return maker


def _sharded(folder: Path) -> None:
    from tests.engine import tiny_models

    model = tiny_models.make_model("llama")
    tiny_models.save(model, folder, max_shard_size="100KB")
    _expect(folder, model)


def _chat(folder: Path) -> None:
    """A byte-level tokenizer with a chat template; also what follows TEXT, plain and as a chat, and
    LONG."""
    from transformers import PreTrainedTokenizerFast

    from tests.engine import small_tokenizers, tiny_models

    model = tiny_models.make_model("llama", vocab_size=512)
    model.save_pretrained(folder)
    tokenizer = small_tokenizers.byte_level()
    template = small_tokenizers.CHATML
    small_tokenizers.save(tokenizer, folder, template=template, eos_token="<|end|>")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = folder / "tokenizer_config.json"
    values = {**json.loads(settings.read_text()), "chat_template": template}
    settings.write_text(json.dumps(values))
    _expect(folder, model)
    reader = PreTrainedTokenizerFast.from_pretrained(folder)
    _expect(folder, model, reader.encode(TEXT), "-text")
    _expect(folder, model, reader.encode(LONG), "-long")
    message = f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    _expect(folder, model, reader.encode(message), "-template")


def _quantized(options: dict[str, Any]) -> Callable[[Path], None]:
    def maker(folder: Path) -> None:
        from tests.engine import quantized_checkpoints, tiny_models

        dense = quantized_checkpoints.make_quantized(folder, **options)
        model = tiny_models.make_model("llama")
        model.load_state_dict(dense)
        _expect(folder, model)

    return maker

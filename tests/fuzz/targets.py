"""What is changed, how it is read, and who else reads it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from engine.errors import InferdeckError
from tests.corpus import stores
from tests.corpus.controls import NUM_TOKENS, PROMPT
from tests.corpus.files import INDEX
from tests.fuzz.mutations import changed_bytes, changed_json


class WrongError(Exception):
    """It was read, and as something else than it is."""


class Target(NamedTuple):
    """`examples`: contents of `file` in the control's folder, from the unbroken one. `read`: raises
    InferdeckError, or WrongError, or is content."""

    control: str
    file: str
    examples: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[Path], None]


def _headers(original: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with another header, whose length is mostly right, or other bytes."""
    (length,) = struct.unpack("<Q", original[:8])
    header, data = original[8 : 8 + length], original[8 + length :]
    whole = changed_json(json.loads(header)).map(
        lambda new: struct.pack("<Q", len(new)) + new + data
    )
    return whole | changed_bytes(original[: 8 + length]).map(lambda new: new + data)


def _json(original: bytes) -> st.SearchStrategy[bytes]:
    return changed_json(json.loads(original))


def _settings(original: bytes) -> st.SearchStrategy[bytes]:
    """config.json with changes in its quantization_config alone."""
    config = json.loads(original)
    changed = changed_json(config["quantization_config"])
    before = json.dumps({k: v for k, v in config.items() if k != "quantization_config"})
    return changed.map(lambda new: before[:-1].encode() + b', "quantization_config": ' + new + b"}")


def _states(original: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file with another JSON text in its first tensor that is one."""
    (length,) = struct.unpack("<Q", original[:8])
    header, data = json.loads(original[8 : 8 + length]), original[8 + length :]
    state = next(name for name in header if "quant_state" in name)
    begin, end = header[state]["data_offsets"]

    def whole(new: bytes) -> bytes:
        longer = len(new) - (end - begin)
        changed = {}
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                offsets = [start + longer * (start >= end), stop + longer * (stop >= end)]
                entry = {**entry, "data_offsets": offsets}
            changed[name] = entry
        changed[state]["shape"] = [len(new)]
        text = json.dumps(changed).encode()
        return struct.pack("<Q", len(text)) + text + data[:begin] + new + data[end:]

    return changed_json(json.loads(data[begin:end])).map(whole)


def _generated(folder: Path) -> list[int]:
    """The engine's tokens."""
    from engine import EngineConfig, LLMEngine, SamplingParams

    config = EngineConfig(
        model=str(folder), device="cpu", dtype="float32", num_threads=1,
        kv_cache_memory_bytes=2**20,
    )  # fmt: skip
    engine = LLMEngine(config)
    try:
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (output,) = engine.generate([list(PROMPT)], params)
        if output.error is not None:
            raise InferdeckError(*output.error[:2])
        return list(output.token_ids)
    finally:
        engine.shutdown()


def _model(folder: Path) -> None:
    """The engine's tokens against those of transformers, which reads the same folder."""
    tokens = _generated(folder)
    expected = _reference(folder)
    if expected is not None and tokens != expected:
        raise WrongError(f"tokens {tokens}, transformers {expected}")


def _reference(folder: Path) -> list[int] | None:
    """None where transformers refuses the folder: then there is no right answer."""
    import transformers

    from tests.engine.tiny_models import reference

    with suppress(Exception):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype="float32", local_files_only=True
        )
        return reference(model.eval(), PROMPT, NUM_TOKENS).token_ids
    return None


def _safetensors(folder: Path) -> None:
    """As `_model`, and what safetensors refuses is refused."""
    from safetensors import SafetensorError, safe_open

    from engine.models.checkpoint import Checkpoint

    Checkpoint.open(folder)
    try:
        with safe_open(folder / "model.safetensors", "pt"):
            pass
    except SafetensorError as error:
        raise WrongError(f"accepted; safetensors: {error}") from error
    _model(folder)


def _tokenizer(folder: Path) -> None:
    """The ids and the text of some prompts against transformers' own."""
    from transformers import PreTrainedTokenizerFast

    from engine.text.tokenizer import Tokenizer

    ours = Tokenizer.from_folder(folder, allow_missing=False)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in ("hello", "how does paging work? 你好", "<|im_start|>user\n"):
        ids = ours.encode(text)
        if ids != theirs.encode(text):
            raise WrongError(f"{text!r}: {ids}, transformers {theirs.encode(text)}")
        ours.decode(ids)


def _quantized(folder: Path) -> None:
    tokens = _generated(folder)
    if len(tokens) != NUM_TOKENS:
        raise WrongError(f"{len(tokens)} tokens")


def _recording(folder: Path) -> None:
    """What is read can be written, and read again."""
    from app.features.recording import file
    from app.wire.recording import decode, encode

    frames = file.read(folder / stores.RECORDING).frames
    if len(list(decode(encode(frames)))) != len(frames):
        raise WrongError("frames that are not read again")


def _chats(folder: Path) -> None:
    stores.open_chats(folder)


def _kept_settings(folder: Path) -> None:
    stores.open_settings(folder)


TARGETS = {
    "safetensors": Target("llama", "model.safetensors", _headers, _safetensors),
    "config": Target("llama", "config.json", _json, _model),
    "tokenizer": Target("chat", "tokenizer.json", _json, _tokenizer),
    "index": Target("sharded", INDEX, _json, _model),
    "awq": Target("awq", "config.json", _settings, _quantized),
    "gptq": Target("gptq", "config.json", _settings, _quantized),
    "compressed-tensors": Target("ct-pack", "config.json", _settings, _quantized),
    "fp8": Target("fp8-block", "config.json", _settings, _quantized),
    "bitsandbytes": Target("bnb-nf4", "config.json", _settings, _quantized),
    "quant_state": Target("bnb-nf4", "model.safetensors", _states, _quantized),
    "recording": Target("recording", stores.RECORDING, changed_bytes, _recording),
    "chats": Target("chats", stores.CHATS, changed_bytes, _chats),
    "profiles": Target("settings", "profiles.json", _json, _kept_settings),
    "layouts": Target("settings", "layouts.json", _json, _kept_settings),
    "shortcuts": Target("settings", "shortcuts.json", _json, _kept_settings),
    "window.ini": Target("settings", "window.ini", changed_bytes, _kept_settings),
}

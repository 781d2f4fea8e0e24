"""The methods in words: what each gives, and what it costs. No Qt."""

from __future__ import annotations

from typing import NamedTuple

from engine.quantization.recipe import METHODS


class MethodWords(NamedTuple):
    title: str
    words: str


METHOD_WORDS = {
    "awq": MethodWords("AWQ", "4 bits, with scales found on a text. Minutes to hours."),
    "gptq": MethodWords(
        "GPTQ", "4 or 8 bits, errors made good. Reads a text; slower than AWQ on wide models."
    ),
    "rtn": MethodWords("Rounding", "4 or 8 bits by group, in seconds. At 4 bits the most loss."),
    "int8": MethodWords("int8", "8 bits, a scale per output: half the size, hardly a loss."),
    "fp8": MethodWords("fp8", "8 bits as floats: half the size; fast on new GPUs."),
    "nf4": MethodWords("NF4", "4 bits for normal weights, no text. Read by bitsandbytes."),
}
assert METHOD_WORDS.keys() == METHODS.keys()


def size_words(method: str) -> str:
    """Formats by which other programs know the result."""
    names = {
        "awq": "AWQ (GEMM)", "gptq": "GPTQ", "compressed-tensors": "compressed-tensors",
        "bitsandbytes": "bitsandbytes",
    }  # fmt: skip
    return f"Written as {names[METHODS[method].format]}, which other engines read."

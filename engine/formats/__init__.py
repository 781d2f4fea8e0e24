"""Checkpoints of quantized weights, read into `Codes` and written from them.

opening.py             which format a checkpoint is in
settings.py            what its config says
checkpoint_format.py   what all formats share: tensors found together and checked
tensor.py              one quantized matrix on disk
packing.py             4-bit and 8-bit numbers in words
writing.py             what all writers share
awq.py, gptq.py        one format each
"""

from engine.errors import ConfigError
from engine.formats.awq import AWQWriter
from engine.formats.bitsandbytes import BitsAndBytesWriter
from engine.formats.checkpoint_format import CheckpointFormat, QuantizedTensor
from engine.formats.compressed_writer import CompressedTensorsWriter
from engine.formats.gptq import GPTQWriter
from engine.formats.opening import open_format
from engine.formats.writing import Writer

__all__ = ["CheckpointFormat", "QuantizedTensor", "Writer", "open_format", "writer"]

_WRITERS: dict[str, type[Writer]] = {
    made.method: made
    for made in (AWQWriter, GPTQWriter, CompressedTensorsWriter, BitsAndBytesWriter)
}


def writer(method: str, layout: str = "") -> Writer:
    """The writer of "awq", "gptq", "compressed-tensors" or "bitsandbytes" (see `Writer.layouts`).

    Raises ConfigError for a method or a layout that is not written.
    """
    if method not in _WRITERS:
        raise ConfigError(
            f"{method!r} is not a format that this program writes.",
            f"Choose one of {', '.join(_WRITERS)}.",
        )
    return _WRITERS[method](layout)

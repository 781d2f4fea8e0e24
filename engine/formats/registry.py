"""The registry of formats: the reader of a checkpoint, and the writer of a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine.formats.awq import AWQFormat, AWQWriter
from engine.formats.bitsandbytes import BitsAndBytesFormat, BitsAndBytesWriter
from engine.formats.checkpoint_format import CheckpointFormat
from engine.formats.compressed_tensors import CompressedTensorsFormat, CompressedTensorsWriter
from engine.formats.fp8 import FP8Format, modelopt_format
from engine.formats.gptq import GPTQFormat, GPTQWriter
from engine.formats.settings import Settings, find_settings, is_cache_alone
from engine.formats.writing import Writer

if TYPE_CHECKING:
    from engine.models.checkpoint import Checkpoint

_FORMATS: dict[str, Callable[[Settings], CheckpointFormat]] = {
    "awq": AWQFormat,
    "gptq": GPTQFormat,
    "compressed-tensors": CompressedTensorsFormat,
    "fp8": FP8Format,
    "fbgemm_fp8": FP8Format,
    "modelopt": modelopt_format,
    "bitsandbytes": BitsAndBytesFormat,
}
_TELLING_NAMES = (".qweight", ".weight_packed", ".weight_scale_inv", ".SCB", ".weight.absmax")


def open_format(checkpoint: Checkpoint) -> CheckpointFormat | None:
    """The format of a quantized checkpoint, None for one that is not quantized.

    Raises UnsupportedModelError (a method, version or number of bits that is not read) or
    CheckpointError (settings that are missing or make no sense).
    """
    settings = find_settings(checkpoint)
    if settings is None or is_cache_alone(settings):
        _check_not_quantized(checkpoint)
        return None
    made = _FORMATS.get(settings.method)
    if made is None:
        raise UnsupportedModelError(
            f"{settings.source} of {checkpoint.name} has quant_method {settings.method!r}; "
            f"supported: {', '.join(sorted(_FORMATS))}.",
            "Choose another checkpoint for this model, or the original 16-bit model.",
        )
    return made(settings)


def _check_not_quantized(checkpoint: Checkpoint) -> None:
    for name, info in checkpoint.tensors.items():
        if name.endswith(_TELLING_NAMES) or info.dtype.startswith("F8"):
            raise CheckpointError(
                f"{checkpoint.name} has quantized weights ({name} in {info.dtype}) but no "
                "quantization_config.",
                "Download config.json again.",
            )


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
            f"Inferdeck cannot write format {method!r}.",
            f"Choose one of {', '.join(_WRITERS)}.",
        )
    return _WRITERS[method](layout)

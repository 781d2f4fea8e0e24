"""Readers and writers of quantized checkpoints: tensors on disk to `Codes`, and back.

safetensors_file, tensor_reader      headers, and reading tensors in chunks
settings, registry                   what config.json says, and the format that it names
checkpoint_format, writing           what all readers share, and all writers
awq, gptq, compressed_tensors, fp8, bitsandbytes    one format each
"""

from engine.formats.checkpoint_format import CheckpointFormat, QuantizedTensor
from engine.formats.registry import open_format, writer
from engine.formats.writing import Writer

__all__ = ["CheckpointFormat", "QuantizedTensor", "Writer", "open_format", "writer"]

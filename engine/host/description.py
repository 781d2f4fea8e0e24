"""`ModelInfo` of a loaded model: sizes, kernels and notices."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch
from torch import nn

from engine.attention.interface import LayerSpec
from engine.config import EngineConfig
from engine.hardware.device_map import AUTO
from engine.hardware.devices import is_cuda
from engine.hardware.machine import machine_name
from engine.kernels.embedding import PackedEmbedding
from engine.kernels.triton.support import problem as triton_problem
from engine.lazy_transformers import PretrainedConfig
from engine.models.architecture import count_parameters, ties_head
from engine.models.checkpoint import Checkpoint
from engine.models.layers.experts import QuantizedExperts
from engine.models.loader import LoadedModel
from engine.numerics.scheme import scheme_of
from engine.runner.model_runner import ModelRunner
from engine.runner.recording import MOST_ROWS
from engine.snapshot import MemoryPlan, ModelInfo
from engine.speculation.proposer import Proposer
from engine.text.tokenizer import Tokenizer

_ATTENTION = "paged attention"  # in a model's description
_NO_GRAPHS = "CUDA graphs disabled"  # how the notice of it begins


def model_info(
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    loaded: LoadedModel,
    layers: dict[int, LayerSpec],
    plan: MemoryPlan,
) -> ModelInfo:
    """`plan`: the plan that was followed at loading."""
    text = checkpoint.config
    first = layers[min(layers)]
    notices = list(loaded.notices)
    if loaded.device_map.host_layers:
        notices.append(_division(config, plan, text.num_hidden_layers))
    without_triton = triton_problem(torch.device(config.device)) if is_cuda(config.device) else ""
    if without_triton:
        notices.append(f"{without_triton}: attention and quantized matmuls use PyTorch.")
    if tokenizer.notice:
        notices.append(tokenizer.notice)
    num_experts, experts_per_token = _experts(text)
    output, lookup, expert_bytes, expert_parameters = _measured_parts(loaded.model)
    # of tied ones there may be a copy on each device, and the parameters are counted once
    has_lookup = lookup and not ties_head(loaded.model)
    if config.load_format == "dummy":
        notices.append("Random weights: speed and memory use are representative; replies are not.")
    return ModelInfo(
        name=checkpoint.name,
        path=str(checkpoint.path),
        architecture=checkpoint.architecture,
        dtype=config.dtype,
        device=config.device,
        num_parameters=count_parameters(text),
        weights_bytes=loaded.weights_bytes,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        num_heads=text.num_attention_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.key_dim,
        vocab_size=text.vocab_size,
        max_model_len=config.max_model_len or 0,
        is_dummy=config.load_format == "dummy",
        has_chat_template=tokenizer.has_chat_template,
        kernels=dict(loaded.kernels),
        notices=tuple(notices),
        quantization=(checkpoint.quantization or scheme_of(config, None, checkpoint.name)).title,
        output_bytes=output,
        lookup_bytes=lookup,
        expert_bytes=expert_bytes if num_experts else 0,
        num_lookup_parameters=text.vocab_size * text.hidden_size if has_lookup else 0,
        num_expert_parameters=expert_parameters if num_experts else 0,
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        device_name=_devices_name(
            config, loaded.device_map.host_layers, text.num_hidden_layers
        ),
    )


def _measured_parts(model: nn.Module) -> tuple[int, int, int, int]:
    """Of a loaded model: bytes of the output head; of an input embedding that is not the head too;
    of experts (below modules of that name); and how many parameters experts have."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    output = head.packed_bytes or head.weight.nbytes
    if isinstance(embedding, PackedEmbedding):
        lookup = embedding.packed_bytes
    else:
        is_tied = not head.packed_bytes and head.weight.data_ptr() == embedding.weight.data_ptr()
        lookup = 0 if is_tied else embedding.weight.nbytes
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    plain = [tensor for name, tensor in named if ".experts." in name]
    quantized = [module for module in model.modules() if isinstance(module, QuantizedExperts)]
    size = sum(t.nbytes for t in plain) + sum(experts.packed_bytes for experts in quantized)
    count = sum(t.numel() for t in plain) + sum(experts.num_weights for experts in quantized)
    return output, lookup, size, count


def _devices_name(config: EngineConfig, host_layers: int, count: int) -> str:
    name = machine_name(config.device)
    return f"{name}, {host_layers} of {count} layers offloaded to CPU" if host_layers else name


def _division(config: EngineConfig, plan: MemoryPlan, count: int) -> str:
    host = plan.host_layers
    why = longer = ""
    if config.gpu_layers == AUTO:
        why = f"; no more layers fit in GPU memory at context length {config.max_model_len:,}"
    if plan.undivided_model_len:
        longer = f" All layers fit at context length {plan.undivided_model_len:,}."
    return (
        f"{count - host} of {count} layers are on {config.device}{why}. The CPU runs the other "
        f"{host} layers, which is slower.{longer}"
    )


def _experts(text: PretrainedConfig) -> tuple[int, int]:
    """(experts of a layer, those that a token uses); (0, 0) for a model without."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((n for name in names if (n := getattr(text, name, None))), 0)
    return (int(count), int(getattr(text, "num_experts_per_tok", 0) or count)) if count else (0, 0)


def with_steps(info: ModelInfo, runner: ModelRunner, proposer: Proposer | None) -> ModelInfo:
    """The description with the current attention backend and captured graphs."""
    draft = None if proposer is None else proposer.runner
    captured = {"decode": runner.graphs, "draft": None if draft is None else draft.graphs}
    old = (_ATTENTION, *captured)
    kernels = {name: text for name, text in info.kernels.items() if name not in old}
    if attention := getattr(runner.backend, "description", ""):
        kernels[_ATTENTION] = attention
    if runner.recordings is not None:
        kernels["decode"] = f"Replayed for up to {MOST_ROWS} requests"
        kernels["prompt"] = runner.recordings.summary
    notices = [text for text in info.notices if not text.startswith(_NO_GRAPHS)]
    for name, graphs in captured.items():
        if graphs is not None and graphs.summary:
            kernels[name] = f"CUDA graphs: {graphs.summary}"
        if graphs is not None and graphs.problem:
            steps = "draft-model steps" if name == "draft" else "steps"
            extent = "some" if graphs.summary else "all"
            notices.append(f"{_NO_GRAPHS} for {extent} {steps}: {graphs.problem}.")
    return dataclasses.replace(info, kernels=kernels, notices=tuple(notices))

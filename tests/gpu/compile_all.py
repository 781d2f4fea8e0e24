"""Compiles the kernels for GPUs that are not there: `python -m tests.gpu.compile_all`.

The interpreter runs what the compiler may refuse: this is the other half of a check without a GPU.
The host functions are called as the engine calls them, on tensors of the CPU; where they would
launch a kernel, it is compiled to machine code for the capability asked for, and what it takes of
registers and shared memory is read off the result. Nothing is launched, so nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

CAPABILITIES = (80, 86, 89, 90, 120)
"""A100; RTX 30; RTX 40 and L4; H100 and H200; RTX 50."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """shared: bytes a program takes; spilled: bytes of registers that went to memory, a thread."""

    kernel: str
    capability: int
    registers: int
    spilled: int
    shared: int
    seconds: float


class _Driver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._capability = capability
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # kernels are kept by the number of the device: each has its own

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


@contextmanager
def compiling(capability: int, found: list[Compiled]) -> Iterator[None]:
    """Launches only compile meanwhile, for `capability`; each new variant is added to `found`."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from engine.kernels.triton import support

    run: Callable[..., Any] = JITFunction.run
    seen: set[str] = set()

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        began = time.perf_counter()
        kernel = run(self, *args, grid=grid, warmup=True, **named)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            seconds = time.perf_counter() - began
            found.append(_described(self.fn.__name__, capability, kernel, seconds))
        return kernel

    interpreted = support._INTERPRETED
    shared = {80: 163, 90: 227}.get(capability, 99) * 1024  # KiB that a program may take
    support._INTERPRETED = support.Device(divmod(capability, 10), 100, shared)
    support.device_of.cache_clear()
    active: Any = driver.__dict__.get("_active")  # None where no driver was asked for yet
    driver.set_active(_Driver(capability))
    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = run
        driver.set_active(active)
        support._INTERPRETED = interpreted
        support.device_of.cache_clear()


def _described(name: str, capability: int, kernel: Any, seconds: float) -> Compiled:
    registers, stack = _resources(kernel.asm["cubin"])
    return Compiled(name, capability, registers, stack, kernel.metadata.shared, round(seconds, 2))


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers of a thread, bytes of its stack) by the tool that Triton brings along."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def attention(quick: bool) -> None:
    """Prompts, decoded tokens and mixtures, with every form of cache."""
    from engine.attention.gpu import GPUAttention
    from engine.attention.interface import AttentionOptions, LayerSpec
    from engine.batch.batch import Span, pack
    from engine.numerics.kv_dtype import parse_kv_dtype

    shapes = [(32, 8, 128, 128)] if quick else [
        (32, 8, 128, 128), (16, 8, 64, 64), (8, 4, 256, 256), (32, 32, 80, 80),
        (16, 16, 192, 128), (64, 8, 64, 64),
    ]  # fmt: skip
    forms = ["auto", "fp8"] if quick else ["auto", "fp8", "int8", "k=int8,v=fp8"]
    cpu = torch.device("cpu")
    for heads, kv_heads, key_dim, value_dim in shapes:
        for form in forms:
            backend = GPUAttention(
                {0: LayerSpec(kv_heads, key_dim, value_dim)}, 512, 16, torch.bfloat16,
                parse_kv_dtype(form), device=cpu, max_num_seqs=64, max_model_len=4096,
                max_num_batched_tokens=512, implementation="triton",
            )  # fmt: skip
            sinks = torch.zeros(heads, dtype=torch.bfloat16)
            options = [AttentionOptions(0.1)]
            if not quick:
                options.append(AttentionOptions(0.1, window=128, softcap=30.0, sinks=sinks))
            for option in options:
                for spans in _batches(Span):
                    batch = pack(spans, 16)
                    backend.begin_step(batch)
                    make = lambda n, width, count=batch.num_tokens: torch.zeros(
                        count, n, width, dtype=torch.bfloat16
                    )
                    backend.forward(
                        0, make(heads, key_dim), make(kv_heads, key_dim),
                        make(kv_heads, value_dim), option,
                    )  # fmt: skip


def _batches(span: Any) -> Iterator[list[Any]]:
    decode = [span([0], 1000 + i, range(100), 1) for i in range(3)]
    prompt = span([0] * 300, 0, range(100, 119), 1)
    yield decode
    yield [prompt]
    yield [*decode, prompt, span([0] * 5, 100, range(120, 130), 5)]


def linears(quick: bool) -> None:
    """Weights of 4 and 8 bits, of float8 and of NF4, by few rows and by many."""
    from engine.kernels.quantized import make_for_gpu
    from engine.numerics.codes import NF4_TABLE, FloatCodes, IntCodes, TableCodes

    outputs, inputs, cpu = 512, 1024, torch.device("cpu")
    codes = torch.zeros(outputs, inputs, dtype=torch.uint8)
    for dtype in (torch.bfloat16,) if quick else (torch.bfloat16, torch.float16):
        kinds: list[Any] = []
        for group in (128,) if quick else (32, 128, 1024):
            scales = torch.ones(outputs, inputs // group, dtype=dtype)
            zeros = torch.zeros(outputs, inputs // group, dtype=torch.uint8)
            kinds += [
                IntCodes(4, codes, scales, zeros, group), IntCodes(8, codes, scales, None, group)
            ]  # fmt: skip
        kinds.append(IntCodes(8, codes, torch.ones(outputs, 1), None, inputs))
        plain = torch.zeros(outputs, inputs).to(torch.float8_e4m3fn)
        kinds.append(FloatCodes(plain, torch.ones(4, 8), (128, 128)))
        kinds.append(FloatCodes(plain, torch.ones(outputs, 1), (1, inputs)))
        for block in (64,) if quick else (32, 64, 256):
            scales = torch.ones(outputs * inputs // block)
            kinds.append(TableCodes(codes, scales, block, torch.tensor(NF4_TABLE)))
        for kind in kinds:
            weights = make_for_gpu(kind, dtype, cpu)
            assert weights is not None
            for rows in (1, 8, 16, 64, 200):
                weights.product(torch.zeros(rows, inputs, dtype=dtype), None)


def experts(quick: bool) -> None:
    """A mixture's weights, for few pairs of token and expert and for many."""
    from engine.kernels.experts import Route, stacked
    from engine.kernels.packed import PackedWeights
    from engine.numerics.codes import NF4_TABLE, IntCodes, TableCodes

    codes = torch.zeros(256, 512, dtype=torch.uint8)
    kinds = [
        IntCodes(4, codes, torch.ones(256, 4), torch.zeros(256, 4, dtype=torch.uint8), 128),
        TableCodes(codes, torch.ones(256 * 8), 64, torch.tensor(NF4_TABLE)),
    ]
    cpu = torch.device("cpu")
    for kind in kinds:
        held = stacked([PackedWeights(kind, torch.bfloat16, cpu) for _ in range(4)])
        assert held is not None
        for tokens in (2, 200):
            route = Route(torch.zeros(tokens, 2, dtype=torch.int64), 4)
            held.product(torch.zeros(tokens, 512, dtype=torch.bfloat16), route, None, 2)


def fused(quick: bool) -> None:
    """Norm, with and without the residual, rotary, gated activation."""
    from engine.kernels.ops import HeadNorms
    from engine.kernels.triton.fused import add_rms_norm, rms_norm, rotate_heads, silu_and_mul

    for width in (128,) if quick else (64, 128, 256):
        heads = torch.zeros(3, 40, width, dtype=torch.bfloat16)
        turn, weight = torch.ones(3, width), torch.ones(width, dtype=torch.bfloat16)
        rotate_heads(heads, turn, turn)
        rotate_heads(heads, turn, turn, HeadNorms(weight, weight, 32, 1e-6, 0.0))
    for width in (4096,) if quick else (1024, 4096, 5376):
        x = torch.zeros(4, width, dtype=torch.bfloat16)
        weight = torch.ones(width, dtype=torch.bfloat16)
        rms_norm(x, weight, 1e-6, 0.0)
        add_rms_norm(x, x.clone(), weight, 1e-6, 1.0)
        silu_and_mul(torch.zeros(4, 2 * width, dtype=torch.bfloat16))


PARTS: dict[str, Callable[[bool], None]] = {
    "attention": attention, "linears": linears, "experts": experts, "fused": fused,
}  # fmt: skip


class _Told(list[Compiled]):
    """Prints what is added."""

    def append(self, one: Compiled) -> None:
        super().append(one)
        print(
            f"sm_{one.capability}  {one.kernel:20} {one.registers:4} registers {one.spilled:5} B "
            f"stack {one.shared:7,} B shared  {one.seconds:6.2f} s",
            flush=True,
        )


def compile_all(
    parts: Sequence[str], capabilities: Sequence[int], quick: bool = False
) -> tuple[list[Compiled], list[str]]:
    """What was compiled, and what could not be, in words."""
    found = _Told()
    problems: list[str] = []
    for capability in capabilities:
        for part in parts:
            with compiling(capability, found):
                try:
                    PARTS[part](quick)
                except Exception as error:
                    problems.append(f"{part} for {capability}: {type(error).__name__}: {error}")
    return found, problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.gpu.compile_all", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--capability", type=int, action="append", metavar="N")
    parser.add_argument("--quick", action="store_true", help="a few variants")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: the interpreter compiles nothing")
    found, problems = compile_all(
        args.part or list(PARTS), args.capability or CAPABILITIES, args.quick
    )
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

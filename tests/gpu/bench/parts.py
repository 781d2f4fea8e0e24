"""Which cells there are. Those at concurrency 1, 8, 64 and 256 come first, in every part.

Requests per cell are bounded so that a cell takes seconds: one wave of as many requests as are in
flight, more than one only where few are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.gpu.bench.cell import Cell
from tests.gpu.bench.shapes import LLAMA_1B, LLAMA_8B, TINY, Shape

FIRST = (1, 8, 64, 256)
CONCURRENCIES = (*FIRST, 2, 4, 16, 32, 128)
PRECISIONS, KV_DTYPES = ("bf16", "int4"), ("auto", "fp8")
PEER_CONCURRENCIES = (1, 8, 64, 32, 16)
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048]
RATES = (50.0, 100.0, 200.0, 400.0, 800.0, 1600.0)
BUDGETS_GB = (8.0, 12.0, 24.0)


class Scale(NamedTuple):
    """Sizes of everything. `num_shared`: tokens that shared prompts begin with."""

    shape: str = LLAMA_8B
    small_shape: str = LLAMA_1B
    num_input: int = 1950
    num_output: int = 200
    num_shared: int = 1920
    first: tuple[int, ...] = FIRST
    concurrencies: tuple[int, ...] = CONCURRENCIES
    peer_concurrencies: tuple[int, ...] = PEER_CONCURRENCIES
    budget: int = 8192
    rates: tuple[float, ...] = RATES
    rate_s: float = 3.0
    lengths: tuple[int, int] = (10, 20)
    small_context: int = 128
    budgets_gb: tuple[float, ...] = BUDGETS_GB
    divided_output: int = 64
    divided_s: float = 30.0
    contexts: tuple[int, ...] = (2000, 8000)
    batches: tuple[int, ...] = FIRST
    rows: tuple[int, ...] = tuple(ROWS)
    precisions: tuple[str, ...] = PRECISIONS
    held: tuple[str, ...] = ("bf16", "int4", "int8", "fp8", "nf4")
    products: tuple[str, ...] = ("bf16", "fp8", "int8")
    profile_steps: int = 20
    num_drafts: int = 4
    is_quick: bool = False

    @property
    def most(self) -> int:
        return max(self.concurrencies)


FULL = Scale()
QUICK = Scale(
    shape=TINY, small_shape=TINY, num_input=40, num_output=6, num_shared=32, first=(1,),
    concurrencies=(1, 2), peer_concurrencies=(2,), budget=64, rates=(40.0,), rate_s=0.2,
    small_context=64, budgets_gb=(0.0001,), divided_output=6, divided_s=2.0,
    contexts=(48,), batches=(2,), rows=(1, 4), held=("bf16", "int4"),
    products=("bf16",), profile_steps=3, num_drafts=2, is_quick=True,
)  # fmt: skip


def machine(scale: Scale) -> list[Cell]:
    return [Cell("machine", "machine", "machine", rank=-2)]


def ceilings(scale: Scale) -> list[Cell]:
    shared: dict[str, Any] = {"part": "ceilings", "group": "ceilings", "rank": -1}
    cells = [Cell("ceilings/copy", kind="copy", **shared)]
    cells += [
        Cell(f"ceilings/product/{p}", kind="product", settings={"precision": p}, **shared)
        for p in scale.products
    ]
    cells += [Cell(f"ceilings/{kind}", kind=kind, **shared) for kind in ("launch", "round_trip")]
    return cells


def tests(scale: Scale) -> list[Cell]:
    """The tests of tests/gpu; none in a quick run."""
    return [] if scale.is_quick else [Cell("tests", "tests", "tests")]


def _wave(scale: Scale, precision: str, kv: str, prompts: str, concurrency: int) -> Cell:
    settings = {
        "shape": scale.shape, "precision": precision, "kv": kv, "concurrency": concurrency,
        "num_input": scale.num_input, "num_output": scale.num_output,
        "num_shared": scale.num_shared if prompts == "shared" else 0,
        "rounds": 4 if concurrency <= 2 else 2 if concurrency <= 8 else 1,
        "most": scale.most, "budget": scale.budget,
    }  # fmt: skip
    name = f"decode/{precision}/kv-{kv}/{prompts}/{concurrency}"
    rank = 0 if concurrency in scale.first else 1
    return Cell(name, "decode", "wave", settings, f"engine {precision}", rank)


def decode(scale: Scale) -> list[Cell]:
    """One load of the engine serves all cells of a precision; its cache is rebuilt for another
    number format."""
    return [
        _wave(scale, precision, kv, prompts, concurrency)
        for precision in scale.precisions
        for kv in KV_DTYPES
        for prompts in ("unique", "shared")
        for concurrency in scale.concurrencies
    ]


def profile(scale: Scale) -> list[Cell]:
    cells = []
    for precision in scale.precisions:
        for what, counts in (("decode", scale.batches), ("prefill", scale.batches[:1])):
            for concurrency in [c for c in counts if c in (1, 2, 64)]:
                settings = {
                    "shape": scale.shape, "precision": precision, "kv": "auto", "what": what,
                    "concurrency": concurrency, "num_input": scale.num_input,
                    "num_output": scale.num_output, "num_steps": scale.profile_steps,
                    "most": scale.most, "budget": scale.budget,
                }  # fmt: skip
                name = f"profile/{precision}/{what}/{concurrency}"
                cells.append(Cell(name, "profile", "profile", settings, f"engine {precision}"))
    return cells


def drafts(scale: Scale) -> list[Cell]:
    """A small model drafts for a large one."""
    return [
        Cell(
            f"drafts/{precision}/{concurrency}", "drafts", "drafts",
            {"shape": scale.shape, "draft": scale.small_shape, "precision": precision,
             "num_drafts": scale.num_drafts, "concurrency": concurrency,
             "num_input": scale.num_input, "num_steps": scale.profile_steps,
             "budget": scale.budget},
            f"drafts {precision}",
        )
        for precision in scale.precisions
        for concurrency in [c for c in scale.batches if c in (1, 2, 8)]
    ]  # fmt: skip


def kernels(scale: Scale) -> list[Cell]:
    shape = Shape.named(scale.shape)
    cells: list[Cell] = []

    def add(kind: str, name: str, rank: int = 0, **settings: Any) -> None:
        cells.append(
            Cell(f"kernels/{name}", "kernels", kind, {"shape": scale.shape, **settings},
                 "kernels", rank)
        )  # fmt: skip

    for kv in ("auto", "fp8", "int8"):
        for context in scale.contexts:
            for batch in scale.batches:
                if batch * context > 600_000:
                    continue
                rank = 0 if context == scale.contexts[0] and kv == "auto" else 1
                add("attention", f"attention/decode/kv-{kv}/{batch}x{context}", rank,
                    kv=kv, batch=batch, new=1, context=context)  # fmt: skip
    first = scale.contexts[0]
    longest = scale.contexts[-1]
    prompts = ((first, first, 1), (first, first, 4), (longest, longest, 1), (5, first, 8),
               (first // 4, first, 1))  # fmt: skip
    for new, context, batch in dict.fromkeys(prompts):
        name = f"attention/prompt/{batch}x{new}-of-{context}"
        add("attention", name, kv="auto", batch=batch, new=new, context=context)
    for precision in scale.held:
        for matrix in shape.linears:
            rank = 0 if precision in ("bf16", "int4") else 1
            add("linear", f"linear/{precision}/{matrix}", rank, matrix=matrix, precision=precision,
                rows=list(scale.rows))  # fmt: skip
    add("linear", "linear/bf16/head", matrix="head", precision="bf16", rows=list(scale.rows[:9]))
    add("fused", "fused", rows=list(scale.rows[::2]))
    add("sampler", "sampler", rows=list(scale.batches))
    return cells


def peers(scale: Scale) -> list[Cell]:
    return [
        Cell(
            f"peers/{engine}/{concurrency}", "peers", "peer",
            {"engine": engine, "shape": scale.shape, "concurrency": concurrency,
             "num_input": scale.num_input, "num_output": scale.num_output,
             "rounds": 2 if concurrency == 1 else 1},
            "peers", 0 if concurrency in scale.first else 1,
        )
        for concurrency in scale.peer_concurrencies
        for engine in ("generate_batch", "generate")
    ]  # fmt: skip


def budgets(scale: Scale) -> list[Cell]:
    whole = [
        Cell(
            f"budgets/{budget:g}GB/{precision}/kv-{kv}", "budgets", "budget",
            {"shape": scale.shape, "precision": precision, "kv": kv, "budget_gb": budget,
             "num_input": scale.num_input, "num_output": scale.num_output,
             "budget": min(2048, scale.budget)},
            f"budget {budget:g}",
        )
        for budget in scale.budgets_gb
        for precision in reversed(scale.precisions)
        for kv in KV_DTYPES
    ]  # fmt: skip
    return whole + _divided(scale)


def _divided(scale: Scale) -> list[Cell]:
    """What does not fit whole, with its first layers on the CPU; behind all other cells, for it is
    slow."""
    return [
        Cell(
            f"budgets/{budget:g}GB/{precision}/divided", "budgets", "divided",
            {"shape": scale.shape, "precision": precision, "kv": "auto", "budget_gb": budget,
             "num_input": scale.num_input, "num_output": scale.divided_output,
             "budget": min(2048, scale.budget), "most_s": scale.divided_s},
            "divided", rank=2,
        )
        for budget in scale.budgets_gb
        for precision in scale.precisions
    ]  # fmt: skip


def small(scale: Scale) -> list[Cell]:
    return [
        Cell(
            f"small/{rate:g}", "small", "arrivals",
            {"shape": scale.small_shape, "precision": "bf16", "rate": rate,
             "seconds": scale.rate_s, "lengths": list(scale.lengths), "most": scale.most,
             "context": scale.small_context, "budget": scale.budget},
            "small",
        )
        for rate in scale.rates
    ]  # fmt: skip


PARTS: dict[str, Callable[[Scale], list[Cell]]] = {
    "ceilings": ceilings, "tests": tests, "decode": decode, "profile": profile,
    "kernels": kernels, "peers": peers, "small": small, "budgets": budgets, "drafts": drafts,
}  # fmt: skip
"""By the names that --part takes, in the order in which "all" runs them."""


def cells_of(names: Sequence[str], scale: Scale) -> list[Cell]:
    """What the device is and can do comes first: without it no figure means anything."""
    wanted = list(PARTS) if "all" in names else ["ceilings", *names]
    found = machine(scale)
    for name in dict.fromkeys(wanted):
        found += PARTS[name](scale)
    if scale.is_quick:  # one process for all: starting one takes longer than measuring
        found = [dataclasses.replace(cell, group="quick") for cell in found]
    return found

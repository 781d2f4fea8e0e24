"""The kernels of attention are translated for GPUs that are not here: the interpreter lets pass
what Triton's compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

PROGRAM = '''
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.triton.attention_join import join_splits
from engine.kernels.triton.attention_kernels import attend_pages
from engine.kernels.triton.kv_write import write_pages


def translate(kernel, capability, pointers, constants):
    types = {name: "i32" for name in kernel.arg_names}
    types |= {"scale": "fp32", "softcap": "fp32"} | pointers
    types = {name: types[name] for name in kernel.arg_names}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    found = triton.compile(source, target=target, options={"num_warps": 8, "num_stages": 3})
    assert found.asm["cubin"]


sizes = dict(NUM_KV_HEADS=8, GROUP=3, VALUE_DIM=128, VALUE_WIDTH=128, HAS_WINDOW=True,
             HAS_SINKS=True, FEW_TOKENS=32, SPLIT=256, MAX_SPLITS=64, REQUESTS=64)
tables = dict(query_start_loc="*i32", seq_lens="*i32", block_tables="*i32", table_stride="*i32")
sums = dict(sums="*fp32", tops="*fp32", totals="*fp32", out="*bf16", sinks="*bf16")
codes = dict(keys="*i8", values="*i8", key_scales="*bf16", value_scales="*bf16", q="*bf16")
common = dict(
    sizes, HAS_FEW=True, HAS_SOFTCAP=True, KEY_DTYPE=tl.bfloat16, VALUE_DTYPE=tl.bfloat16,
    PRECISION="tf32", BLOCK_SIZE=16, WIDE=False, KEY_DIM=80, KEY_WIDTH=128,
    BLOCK_M=128, BLOCK_M_FEW=16, BLOCK_N=32, BLOCK_N_FEW=64,
)
translate(join_splits, 90, sums | {"query_start_loc": "*i32", "seq_lens": "*i32"},
          dict(sizes, ONE_TOKEN=False, GROUP_WIDTH=4))
translate(attend_pages, 90, sums | tables | codes,
          dict(common, HAS_MANY=True, ONE_BLOCK=False, JOINED=False,
               KEY_FORM="fp8", VALUE_FORM="int8"))
translate(attend_pages, 80, sums | tables | codes,
          dict(common, HAS_MANY=False, ONE_BLOCK=True, JOINED=True,
               KEY_FORM="fp8_shift", VALUE_FORM="fp8_shift"))
translate(write_pages, 80,
          {"k": "*bf16", "v": "*bf16", "keys": "*i8", "values": "*i8", "key_scales": "*i16",
           "value_scales": "*i16", "slots": "*i64"},
          dict(KEY_FORM="int8", VALUE_FORM="fp8", NUM_HEADS=3, BLOCK_SIZE=16, KEY_DIM=80,
               VALUE_DIM=64, KEY_WIDTH=128, VALUE_WIDTH=64, HEADS=4))
print("translated")
'''


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is for Linux")
def test_kernels_are_translated_for_ampere_and_hopper(tmp_path: Path) -> None:
    script = tmp_path / "translate.py"
    script.write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache"),
             "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert found.stdout.strip() == "translated", found.stderr[-3000:]

"""Other programs that quantize, on the same model, tokens, bits and groups.

    python tests/benchmarks/peer_quantizers.py NAME TASK.json      with the Python that has them

Each has its own idea of which torch and transformers it wants, so they run in an environment of
their own, which has no need of this repository's packages. All compute in float32 on the CPU.
These have worked there, all with torch 2.13:

    llmcompressor==0.14.0.1
    autoawq==0.2.9 transformers==4.51.3
    gptqmodel==7.6.0, then gptqmodel==7.7.0 with --no-deps

GPTQModel 7.7 asks for a newer torch and does without; 7.6 makes no AWQ on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.quantize.recipe import Recipe

PEERS = {
    "autoawq": ("awq",),
    "gptqmodel": ("awq", "gptq"),
    "llmcompressor": ("awq", "gptq"),
}
"""What each of them makes."""

MAX_S = 1200


def run_peer(
    name: str, python: str, model: Path, recipe: Recipe, output: Path, tokens: Sequence[list[int]]
) -> None:
    """Let `python` make `output` of `model`. Raises RuntimeError with what it said last."""
    task = {
        "model": str(model.absolute()),
        "output": str(output.absolute()),
        "method": recipe.method,
        "group_size": recipe.group_size,
        "symmetric": recipe.is_symmetric,
        "tokens": list(tokens),
    }
    with tempfile.TemporaryDirectory() as folder:  # some write logs to where they run
        written = Path(folder, "task.json")
        written.write_text(json.dumps(task))
        program = str(Path(shutil.which(python) or python).absolute())
        command = [program, str(Path(__file__).resolve()), name, str(written)]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=MAX_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(str(error)) from error
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-800:])
    for file in model.glob("tokenizer*"):
        shutil.copy(file, output)


def peer_argument(text: str) -> tuple[str, str]:
    """NAME=PYTHON of a command line."""
    name, _, python = text.partition("=")
    if name not in PEERS or not python:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PYTHON with one of {list(PEERS)}")
    return name, python


def restoring(search: Callable[..., Any]) -> Callable[..., Any]:
    """AutoAWQ's search of scales, with the weights as they were when it is done.

    It keeps those of `module` with `.cpu()`, which on a GPU copies them and on a CPU does not:
    there the first scales tried would stay in the weights, and ruin the model.
    """

    def search_apart(self: Any, x: Any, w: Any, mean: Any, module: Any, *rest: Any) -> Any:
        of_module = module.state_dict
        module.state_dict = lambda: {name: t.clone() for name, t in of_module().items()}
        try:
            return search(self, x, w, mean, module, *rest)
        finally:
            del module.state_dict

    return search_apart


def autoawq(task: dict[str, Any]) -> None:
    import torch
    from awq import AutoAWQForCausalLM
    from awq.quantize.quantizer import AwqQuantizer

    AwqQuantizer._compute_best_scale = restoring(AwqQuantizer._compute_best_scale)
    model = AutoAWQForCausalLM.from_pretrained(
        task["model"], torch_dtype=torch.float32, device_map="cpu", safetensors=True
    )
    settings = {"w_bit": 4, "q_group_size": task["group_size"], "zero_point": True,
                "version": "GEMM"}  # fmt: skip
    model.quantize(
        None, quant_config=settings, calib_data=task["tokens"],
        max_calib_samples=len(task["tokens"]), max_calib_seq_len=len(task["tokens"][0]),
    )  # fmt: skip
    model.save_quantized(task["output"])


def gptqmodel(task: dict[str, Any]) -> None:
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it fails with one, its own on 2 cores
    from gptqmodel import GPTQModel, QuantizeConfig
    from gptqmodel.quantization import FORMAT, METHOD

    is_awq = task["method"] == "awq"
    settings = QuantizeConfig(
        bits=4, group_size=task["group_size"], sym=task["symmetric"],
        method=METHOD.AWQ if is_awq else METHOD.GPTQ, format=FORMAT.GEMM if is_awq else FORMAT.GPTQ,
        device="cpu", offload_to_disk=False,
    )  # fmt: skip
    model = GPTQModel.load(task["model"], settings, dtype="float32")
    tokens = [{"input_ids": t, "attention_mask": [1] * len(t)} for t in task["tokens"]]
    model.quantize(tokens, batch_size=1)
    model.save(task["output"])


def llmcompressor(task: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.awq import AWQModifier
    from llmcompressor.modifiers.gptq import GPTQModifier
    from transformers import AutoModelForCausalLM

    torch.Tensor.pin_memory = lambda self, *_: self  # AWQ pins even where there is no accelerator
    model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32)
    is_awq = task["method"] == "awq"
    weights = {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": task["group_size"],
        "symmetric": task["symmetric"],
    }  # fmt: skip
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    modifier = AWQModifier if is_awq else GPTQModifier
    tokens = Dataset.from_dict(
        {"input_ids": task["tokens"], "attention_mask": [[1] * len(t) for t in task["tokens"]]}
    )
    oneshot(
        model=model, dataset=tokens,
        recipe=[modifier(config_groups=groups, ignore=["lm_head"])],
        max_seq_length=len(task["tokens"][0]), num_calibration_samples=len(task["tokens"]),
    )  # fmt: skip
    model.save_pretrained(task["output"], save_compressed=True)


def main() -> None:
    name, file = sys.argv[1:]
    task = json.loads(Path(file).read_text())
    {"autoawq": autoawq, "gptqmodel": gptqmodel, "llmcompressor": llmcompressor}[name](task)


if __name__ == "__main__":
    main()

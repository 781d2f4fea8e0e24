"""OpenVINO GenAI's continuous batching on the CPU.

Its environment: openvino-genai, and optimum-intel with torch to export the model. bfloat16 is what
the plug-in computes a float16 export in, where the processor has it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from serve import Engine, Made, Options, Prompts, convert, serve

BATCHED_TOKENS = 2048
FORMATS = {
    16: ("fp16", ()),
    8: ("int8", ()),
    4: ("int4", ("--sym", "--group-size", "128", "--ratio", "1.0",
                 "--backup-precision", "int8_asym")),
}  # fmt: skip


def exported(model: Path, cache: Path, bits: int) -> Path:
    """The model in OpenVINO's format; made once and kept in `cache`."""
    weights, extra = FORMATS[bits]
    target = cache / f"{model.name}-openvino-{weights}"
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        command = [
            str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino",
            "--model", str(model), "--task", "text-generation-with-past",
            "--weight-format", weights, *extra, str(unfinished),
        ]  # fmt: skip
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        convert(command, os.environ | offline)
        unfinished.rename(target)
    return target


def load(options: Options) -> Engine:
    folder = exported(Path(options["model"]), Path(options["cache"]), options["bits"])
    scheduling = genai.SchedulerConfig()
    scheduling.max_num_batched_tokens = BATCHED_TOKENS
    scheduling.max_num_seqs = options["max_requests"]
    scheduling.cache_size = options["kv_cache_gib"]
    scheduling.enable_prefix_caching = True
    properties = {
        "INFERENCE_NUM_THREADS": options["num_threads"],
        "KV_CACHE_PRECISION": {16: "bf16", 8: "u8"}[options["kv_bits"]],
    }
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduling, "CPU", properties)
    sent = 0

    def run(prompts: Prompts, num_output: int, made: Made) -> None:
        nonlocal sent
        settings = genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos = num_output, True
        settings.do_sample = settings.apply_chat_template = False
        handles = []
        for prompt in prompts:
            sent += 1
            tokens = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(sent, tokens, settings))
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        made(index, len(output.generated_ids))

    return Engine(f"OpenVINO GenAI {genai.__version__.split('-')[0]}", run)


if __name__ == "__main__":
    serve(load)
    os._exit(0)  # its threads may outlive the interpreter, and then crash

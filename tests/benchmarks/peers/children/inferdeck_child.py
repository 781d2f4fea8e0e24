"""This repository's engine, through its Python API."""

from __future__ import annotations

import dataclasses

from serve import Engine, Made, Options, Prompts, serve

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.telemetry.step_cost import ModelCost

WEIGHTS = {
    16: {},
    8: {"quantization": "int8", "quantization_head": "int8"},
    4: {"quantization": "int4", "quantization_head": "int8"},
}


def load(options: Options) -> Engine:
    engine = LLMEngine(
        EngineConfig(
            model=options["model"],
            device="cpu",
            dtype="bfloat16",
            num_threads=options["num_threads"],
            max_model_len=options["max_len"],
            max_num_seqs=options["max_requests"],
            kv_cache_dtype={16: "auto", 8: "int8"}[options["kv_bits"]],
            kv_cache_memory_bytes=options["kv_cache_gib"] * 2**30,
        ).replace(**WEIGHTS[options["bits"]])
    )

    def run(prompts: Prompts, num_output: int, made: Made) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        index = {engine.add_request(prompt, params): i for i, prompt in enumerate(prompts)}
        while engine.has_unfinished:
            for event in engine.step():
                if event.error is not None:
                    raise RuntimeError(str(event.error))
                made(index[event.request_id], len(event.token_ids))

    # one token's KV, of the blocks as they are laid out
    kv_bytes = engine.plan.block_bytes_in_all / engine.config.block_size
    cost = ModelCost.of(engine.model_info, kv_bytes)
    return Engine("Inferdeck", run, cost=dataclasses.asdict(cost))


if __name__ == "__main__":
    serve(load)

"""vLLM's CPU build, its engine in this process. 16 bits: dummy checkpoints have no other form that
it reads."""

from __future__ import annotations

import os

from serve import Engine, Made, Options, Prompts, serve


def load(options: Options) -> Engine:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(options["kv_cache_gib"]),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{options['num_threads'] - 1}",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm
    from vllm.sampling_params import RequestOutputKind

    engine = vllm.LLM(
        model=options["model"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=options["max_len"],
        max_num_seqs=options["max_requests"],
        enable_prefix_caching=True,
    ).llm_engine
    sent = 0

    def run(prompts: Prompts, num_output: int, made: Made) -> None:
        nonlocal sent
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=num_output, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        first = sent
        for prompt in prompts:
            engine.add_request(str(sent), {"prompt_token_ids": prompt}, params)
            sent += 1
        while engine.has_unfinished_requests():
            for output in engine.step():
                # an id may have a suffix of the engine's own
                number = int(output.request_id.partition("-")[0]) - first
                made(number, len(output.outputs[0].token_ids))

    return Engine(f"vLLM {vllm.__version__}", run)


if __name__ == "__main__":
    serve(load)

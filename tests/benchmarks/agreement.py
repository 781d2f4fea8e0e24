"""How often bfloat16 gives transformers' own tokens: `python -m tests.benchmarks.agreement`.

In float32 the tests demand identity. In bfloat16 the order of sums decides near-ties, so the rate
is reported: the share of greedy tokens that are equal when both are given the same prefix.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from tests.engine import tiny_models

LENGTHS = (5, 40, 17, 90)


def agreement(family: str, num_tokens: int) -> dict[str, Any]:
    """Teacher-forced: each position is asked with the tokens that transformers chose before."""
    model = tiny_models.make_model(family).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        tiny_models.save(model, Path(folder))
        config = EngineConfig(model=folder, dtype="bfloat16", kv_cache_memory_bytes=2**22)
        engine = LLMEngine(config)
        equal = total = 0
        try:
            for prompt in tiny_models.make_prompts(LENGTHS):
                wanted = tiny_models.reference(model, prompt, num_tokens).token_ids
                prefixes = [prompt + wanted[:i] for i in range(num_tokens)]
                one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
                outputs = engine.generate(prefixes, one)
                equal += sum(o.token_ids == [w] for o, w in zip(outputs, wanted, strict=True))
                total += num_tokens
        finally:
            engine.shutdown()
    return {"family": family, "tokens": total, "agreement": equal / total}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="*", default=sorted(tiny_models.FAMILIES))
    parser.add_argument("--num-tokens", type=int, default=32)
    parser.add_argument("--output-json")
    args = parser.parse_args()
    results = []
    for family in args.families:
        results.append(agreement(family, args.num_tokens))
        print(f"{family:12} {results[-1]['agreement']:7.2%} of {results[-1]['tokens']} tokens")
    if args.output_json:
        Path(args.output_json).write_text(json.dumps({"bfloat16_agreement": results}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

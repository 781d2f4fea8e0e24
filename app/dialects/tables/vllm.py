"""vLLM: docs.vllm.ai/en/stable/usage/metrics, vllm/v1/metrics/loggers.py; before version 0.8
docs.vllm.ai/en/v0.5.5/serving/metrics, vllm/engine/metrics.py."""

from __future__ import annotations

from app.dialects.figures import Figure, Latency, Table, names, share

TABLE = Table(
    figures={
        Figure.RUNNING: names("vllm:num_requests_running"),
        Figure.WAITING: names(
            "vllm:num_requests_waiting + vllm:num_requests_swapped", "vllm:num_requests_waiting"
        ),
        Figure.KV_USAGE: share("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        Figure.PROMPT_TOKENS: names("vllm:prompt_tokens_total"),
        Figure.GENERATION_TOKENS: names("vllm:generation_tokens_total"),
        Figure.PREFIX_QUERIES: names(
            "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
        ),
        Figure.PREFIX_HITS: names(
            "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
        ),
        Figure.PREEMPTIONS: names("vllm:num_preemptions_total"),
        Figure.DRAFT_ROUNDS: names("vllm:spec_decode_num_drafts_total"),
        Figure.DRAFTED: names("vllm:spec_decode_num_draft_tokens_total"),
        Figure.ACCEPTED: names("vllm:spec_decode_num_accepted_tokens_total"),
    },
    latencies={
        Latency.TTFT: names("vllm:time_to_first_token_seconds"),
        # The older name meant the same: the gaps between tokens.
        Latency.ITL: names(
            "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
        ),
    },
    hits_are_tokens=True,
)

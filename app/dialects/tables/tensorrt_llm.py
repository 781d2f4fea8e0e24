"""TensorRT-LLM (trtllm-serve): tensorrt_llm/metrics/collector.py, at /prometheus/metrics. Earlier
versions tell requests and KV usage only by the iterations at /metrics (see `json_pages`).
Time per output token is one mean a request."""

from __future__ import annotations

from app.dialects.figures import Figure, Latency, Table, names, share

TABLE = Table(
    figures={
        Figure.RUNNING: names("trtllm_num_requests_running"),
        Figure.WAITING: names("trtllm_num_requests_waiting"),
        Figure.KV_USAGE: share("trtllm_kv_cache_utilization"),
        Figure.PROMPT_TOKENS: names("trtllm_prompt_tokens_total"),
        Figure.GENERATION_TOKENS: names("trtllm_generation_tokens_total"),
        Figure.PREFIX_QUERIES: names(
            "trtllm_kv_cache_reused_blocks_total + trtllm_kv_cache_missed_blocks_total"
        ),
        Figure.PREFIX_HITS: names("trtllm_kv_cache_reused_blocks_total"),
        Figure.DRAFTED: names(
            "trtllm_spec_decode_num_draft_tokens_total", "trtllm_spec_decode_drafted_tokens_total"
        ),
        Figure.ACCEPTED: names(
            "trtllm_spec_decode_num_accepted_tokens_total",
            "trtllm_spec_decode_accepted_tokens_total",
        ),
    },
    latencies={
        Latency.TTFT: names("trtllm_time_to_first_token_seconds"),
        Latency.ITL: names("trtllm_time_per_output_token_seconds"),
    },
    itl_is_mean=True,
)

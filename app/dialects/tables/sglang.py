"""SGLang (with --enable-metrics): docs.sglang.io/references/production_metrics and
python/sglang/srt/metrics/collector.py. The name without _total of retracted requests is a gauge of
the last batch, not a count."""

from __future__ import annotations

from app.dialects.figures import Figure, Latency, Table, names, share

TABLE = Table(
    figures={
        Figure.RUNNING: names("sglang:num_running_reqs"),
        Figure.WAITING: names("sglang:num_queue_reqs"),
        Figure.KV_USAGE: share("sglang:token_usage"),
        Figure.PROMPT_TOKENS: names("sglang:prompt_tokens_total"),
        Figure.GENERATION_TOKENS: names("sglang:generation_tokens_total"),
        # every prompt token is looked up
        Figure.PREFIX_QUERIES: names("sglang:prompt_tokens_total"),
        Figure.PREFIX_HITS: names("sglang:cached_tokens_total"),
        Figure.ROUND_LENGTH: share("sglang:spec_accept_length"),
        Figure.PREEMPTIONS: names(
            "sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"
        ),
    },
    latencies={
        Latency.TTFT: names("sglang:time_to_first_token_seconds"),
        Latency.ITL: names(
            "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"
        ),
    },
    # with --enable-metrics-for-all-schedulers every rank tells the same
    only={"tp_rank": "0", "pp_rank": "0"},
    hits_are_tokens=True,
)

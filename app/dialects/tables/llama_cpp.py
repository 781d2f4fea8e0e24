"""llama.cpp (llama-server with --metrics): tools/server/README.md. Without --metrics its /slots
tell what runs (see `json_pages`). It had kv_cache_usage_ratio until 2025. No latencies."""

from __future__ import annotations

from app.dialects.figures import Figure, Table, names, share

TABLE = Table(
    figures={
        Figure.RUNNING: names("llamacpp:requests_processing"),
        Figure.WAITING: names("llamacpp:requests_deferred"),
        Figure.KV_USAGE: share("llamacpp:kv_cache_usage_ratio"),
        Figure.PROMPT_TOKENS: names("llamacpp:prompt_tokens_total"),
        Figure.GENERATION_TOKENS: names("llamacpp:tokens_predicted_total"),
    },
)

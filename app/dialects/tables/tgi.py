"""Text Generation Inference: huggingface.co/docs/text-generation-inference/reference/metrics. It
counts tokens when a request has ended, and has no time to the first token: `missing` says so."""

from __future__ import annotations

from app.dialects.figures import Figure, Latency, Table, names

TABLE = Table(
    figures={
        Figure.RUNNING: names("tgi_batch_current_size"),
        Figure.WAITING: names("tgi_queue_size"),
        Figure.PROMPT_TOKENS: names("tgi_request_input_length_sum"),
        Figure.GENERATION_TOKENS: names("tgi_request_generated_tokens_sum"),
    },
    latencies={Latency.ITL: names("tgi_request_mean_time_per_token_duration")},
    itl_is_mean=True,
)

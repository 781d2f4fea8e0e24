"""The metrics that the engine exports: each declared once, under vLLM's names, so that a
dashboard made for vLLM reads them. The server and the documentation are made from this."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"  # a gauge that is always 1; its labels say the rest


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric. `buckets`: upper bounds of a histogram, without +Inf."""

    name: str
    kind: MetricKind
    unit: str
    help: str
    buckets: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    prefix: str = "vllm"  # "inferdeck": what vLLM does not have

    @property
    def exported_name(self) -> str:
        """vLLM's name; a counter's samples end in _total."""
        name = self.name
        if self.kind is MetricKind.COUNTER:
            name = f"{name.removesuffix('_total')}_total"
        return f"{self.prefix}:{name}"


_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

# vLLM's ITL buckets start at 10 ms, which small and quantized models are below.
_ITL_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_REQUEST_BUCKETS = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0),
)
_LENGTH_BUCKETS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_STEP_TOKEN_BUCKETS = tuple(float(2**power) for power in range(15))

_DECLARED = (
    Metric("num_requests_running", _GAUGE, "requests", "Requests in the running batch."),
    Metric("num_requests_waiting", _GAUGE, "requests", "Requests that wait for a place."),
    Metric("kv_cache_usage_perc", _GAUGE, "fraction", "KV blocks in use by requests, 1 is all."),
    Metric(
        "cache_config_info",
        MetricKind.INFO,
        "",
        "Settings of the KV cache, as labels.",
        labels=("block_size", "num_gpu_blocks", "enable_prefix_caching", "gpu_memory_utilization"),
    ),
    Metric("prefix_cache_queries", _COUNTER, "tokens", "Tokens looked up in the prefix cache."),
    Metric("prefix_cache_hits", _COUNTER, "tokens", "Tokens found in the prefix cache."),
    Metric("num_preemptions", _COUNTER, "preemptions", "Requests that gave their blocks back."),
    Metric(
        "prompt_tokens",
        _COUNTER,
        "tokens",
        "Prefill tokens, computed or cached; those of a resumed request count again.",
    ),
    Metric("generation_tokens", _COUNTER, "tokens", "Tokens generated."),
    Metric(
        "request_success",
        _COUNTER,
        "requests",
        "Finished requests.",
        labels=("finished_reason",),
    ),
    Metric(
        "time_to_first_token_seconds",
        _HISTOGRAM,
        "seconds",
        "A request's first bytes to its first token on its way to the client.",
        _TTFT_BUCKETS,
    ),
    Metric(
        "engine_time_to_first_token_seconds",
        _HISTOGRAM,
        "seconds",
        "A request's first bytes to the end of the step that made its first token.",
        _TTFT_BUCKETS,
        prefix="inferdeck",
    ),
    Metric(
        "inter_token_latency_seconds",
        _HISTOGRAM,
        "seconds",
        "Gap between output events; an event of n tokens counts n times gap / n.",
        _ITL_BUCKETS,
    ),
    Metric(
        "request_time_per_output_token_seconds",
        _HISTOGRAM,
        "seconds",
        "Per request: (end to end - TTFT) / (n - 1).",
        _ITL_BUCKETS,
    ),
    Metric(
        "e2e_request_latency_seconds", _HISTOGRAM, "seconds", "Arrival to finish.", _REQUEST_BUCKETS
    ),
    Metric(
        "request_queue_time_seconds",
        _HISTOGRAM,
        "seconds",
        "Arrival to first schedule.",
        _REQUEST_BUCKETS,
    ),
    Metric(
        "request_prefill_time_seconds",
        _HISTOGRAM,
        "seconds",
        "First schedule to first token.",
        _REQUEST_BUCKETS,
    ),
    Metric(
        "request_decode_time_seconds",
        _HISTOGRAM,
        "seconds",
        "First token to last token.",
        _REQUEST_BUCKETS,
    ),
    Metric(
        "request_prompt_tokens",
        _HISTOGRAM,
        "tokens",
        "Prompt tokens of a request.",
        _LENGTH_BUCKETS,
    ),
    Metric(
        "request_generation_tokens",
        _HISTOGRAM,
        "tokens",
        "Tokens generated for a request.",
        _LENGTH_BUCKETS,
    ),
    Metric(
        "spec_decode_num_drafts",
        _COUNTER,
        "drafts",
        "Times that drafts of a request were verified.",
    ),
    Metric("spec_decode_num_draft_tokens", _COUNTER, "tokens", "Tokens drafted."),
    Metric("spec_decode_num_accepted_tokens", _COUNTER, "tokens", "Drafted tokens accepted."),
    Metric(
        "spec_decode_num_accepted_tokens_per_pos",
        _COUNTER,
        "tokens",
        "Drafted tokens accepted, by their place in the draft.",
        labels=("position",),
    ),
    Metric(
        "iteration_tokens_total", _HISTOGRAM, "tokens", "Tokens of one step.", _STEP_TOKEN_BUCKETS
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}
"""Every exported metric by its name without prefix."""

"""Names of metrics of each server, mapped to ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.clients.target import ServerType
from engine.snapshot import Part


class Figure(StrEnum):
    """Gauges, and counters since the server started."""

    RUNNING = "requests running"
    WAITING = "requests waiting"
    KV_USAGE = "KV usage"  # 0 to 1
    PROMPT_TOKENS = "prompt tokens"
    GENERATION_TOKENS = "generated tokens"
    PREFIX_QUERIES = "prefix cache queries"  # in tokens or blocks: the share of hits is what counts
    PREFIX_HITS = "prefix cache hits"
    PREEMPTIONS = "preemptions"
    DRAFT_ROUNDS = "draft steps"
    DRAFTED = "drafted tokens"
    ACCEPTED = "accepted tokens"
    ROUND_LENGTH = "tokens per draft step"


MEANS = frozenset((Figure.KV_USAGE, Figure.ROUND_LENGTH))
"""Figures whose series (data-parallel ranks, sources) are averaged; those of others are summed."""


class Latency(StrEnum):
    """Histograms, in seconds."""

    TTFT = "TTFT"
    ITL = "ITL"
    ENGINE_TTFT = "engine TTFT"  # until the step that made the token, without its way out
    QUEUE = "queue time"  # of a request, until it is first scheduled
    PREFILL = "prefill time"  # from then to its first token
    DECODE = "decode time"  # from then to its last


PARTS: Mapping[Part, tuple[Figure, ...]] = {
    Part.QUEUE: (Figure.RUNNING, Figure.WAITING),
    Part.KV_USAGE: (Figure.KV_USAGE,),
    Part.TOKENS: (Figure.GENERATION_TOKENS,),
    Part.PREFIX_CACHE: (Figure.PREFIX_QUERIES, Figure.PREFIX_HITS),
    Part.PREEMPTIONS: (Figure.PREEMPTIONS,),
    Part.SPECULATION: (Figure.DRAFTED, Figure.ACCEPTED, Figure.ROUND_LENGTH),
}
"""Figures of each part of a snapshot; one reported figure is enough."""

NEVER_REPORTED = frozenset(
    (Part.MODEL, Part.SETTINGS, Part.REQUESTS, Part.BLOCKS, Part.STEPS, Part.MEMORY)
)
"""Parts that no other server reports."""


@dataclass(frozen=True, slots=True)
class Table:
    """Where a server reports its figures (/metrics). `names`: without `prefix`, unless they have a
    colon. Names that a figure has had are joined by |, newest first: the first one present counts.
    Values of names joined by + are added. itl_is_mean: its ITL histogram holds one mean per
    request, not every gap. hits_are_tokens: its prompt tokens include those that its prefix hits
    count. only: labels that a sample must have where it has them."""

    prefix: str
    names: Mapping[Figure | Latency, str]
    itl_is_mean: bool = False
    hits_are_tokens: bool = False
    only: Mapping[str, str] = field(default_factory=dict)

    def spellings(self, figure: Figure | Latency) -> list[list[str]]:
        """The names of a figure, newest first; each as the names whose values are added."""
        return [
            [self.full(part) for part in one.split(" + ")]
            for one in self.names[figure].split(" | ")
        ]

    def full(self, name: str) -> str:
        """The full name. Colons and underscores are treated alike."""
        return (name if ":" in name else self.prefix + name).replace(":", "_")


VLLM = Table(
    "vllm:",
    {
        Figure.RUNNING: "num_requests_running",
        Figure.WAITING: "num_requests_waiting + num_requests_swapped | num_requests_waiting",
        Figure.KV_USAGE: "kv_cache_usage_perc | gpu_cache_usage_perc",
        Figure.PROMPT_TOKENS: "prompt_tokens_total",
        Figure.GENERATION_TOKENS: "generation_tokens_total",
        Figure.PREFIX_QUERIES: "prefix_cache_queries_total | gpu_prefix_cache_queries_total",
        Figure.PREFIX_HITS: "prefix_cache_hits_total | gpu_prefix_cache_hits_total",
        Figure.PREEMPTIONS: "num_preemptions_total",
        Figure.DRAFT_ROUNDS: "spec_decode_num_drafts_total",
        Figure.DRAFTED: "spec_decode_num_draft_tokens_total",
        Figure.ACCEPTED: "spec_decode_num_accepted_tokens_total",
        Latency.TTFT: "time_to_first_token_seconds",
        # The older name meant the same: the gaps between tokens.
        Latency.ITL: "inter_token_latency_seconds | time_per_output_token_seconds",
        Latency.ENGINE_TTFT: "inferdeck:engine_time_to_first_token_seconds",
        Latency.QUEUE: "request_queue_time_seconds",
        Latency.PREFILL: "request_prefill_time_seconds",
        Latency.DECODE: "request_decode_time_seconds",
    },
    hits_are_tokens=True,
)
"""Inferdeck uses these names too."""

LLAMA_CPP = Table(
    "llamacpp:",
    {
        Figure.RUNNING: "requests_processing",
        Figure.WAITING: "requests_deferred",
        Figure.KV_USAGE: "kv_cache_usage_ratio",
        Figure.PROMPT_TOKENS: "prompt_tokens_total",
        Figure.GENERATION_TOKENS: "tokens_predicted_total",
    },
)

SGLANG = Table(
    "sglang:",
    {
        Figure.RUNNING: "num_running_reqs",
        Figure.WAITING: "num_queue_reqs",
        Figure.KV_USAGE: "token_usage",
        Figure.PROMPT_TOKENS: "prompt_tokens_total",
        Figure.GENERATION_TOKENS: "generation_tokens_total",
        Figure.PREFIX_QUERIES: "prompt_tokens_total",  # every prompt token is looked up
        Figure.PREFIX_HITS: "cached_tokens_total",
        Figure.ROUND_LENGTH: "spec_accept_length",
        Figure.PREEMPTIONS: "num_retracted_requests_total | num_retracted_reqs_total",
        Latency.TTFT: "time_to_first_token_seconds",
        Latency.ITL: "inter_token_latency_seconds | time_per_output_token_seconds",
    },
    # with --enable-metrics-for-all-schedulers every rank reports the same
    only={"tp_rank": "0", "pp_rank": "0"},
    hits_are_tokens=True,
)

TENSORRT_LLM = Table(
    "trtllm_",
    {
        Figure.RUNNING: "num_requests_running",
        Figure.WAITING: "num_requests_waiting",
        Figure.KV_USAGE: "kv_cache_utilization",
        Figure.PROMPT_TOKENS: "prompt_tokens_total",
        Figure.GENERATION_TOKENS: "generation_tokens_total",
        Figure.PREFIX_QUERIES: "kv_cache_reused_blocks_total + kv_cache_missed_blocks_total",
        Figure.PREFIX_HITS: "kv_cache_reused_blocks_total",
        Figure.DRAFTED: "spec_decode_num_draft_tokens_total | spec_decode_drafted_tokens_total",
        Figure.ACCEPTED: (
            "spec_decode_num_accepted_tokens_total | spec_decode_accepted_tokens_total"
        ),
        Latency.TTFT: "time_to_first_token_seconds",
        Latency.ITL: "time_per_output_token_seconds",
    },
    itl_is_mean=True,
)

TGI = Table(
    "tgi_",
    {
        Figure.RUNNING: "batch_current_size",
        Figure.WAITING: "queue_size",
        Figure.PROMPT_TOKENS: "request_input_length_sum",
        Figure.GENERATION_TOKENS: "request_generated_tokens_sum",
        Latency.ITL: "request_mean_time_per_token_duration",
    },
    itl_is_mean=True,
)

TABLES: Mapping[ServerType, Table] = {
    ServerType.VLLM: VLLM,
    ServerType.SGLANG: SGLANG,
    ServerType.TGI: TGI,
    ServerType.LLAMA_CPP: LLAMA_CPP,
    ServerType.TENSORRT_LLM: TENSORRT_LLM,
    ServerType.INFERDECK: VLLM,
}
"""In the order in which `probe` tries them on a page."""

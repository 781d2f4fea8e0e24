"""Names of metrics of each server, mapped to ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.clients.target import Dialect
from engine.snapshot import Part


class Figure(StrEnum):
    """Gauges, and counters since the server started."""

    RUNNING = "requests running"
    WAITING = "requests waiting"
    KV_USAGE = "KV usage"  # 0 to 1
    PROMPT_TOKENS = "prompt tokens"
    GENERATION_TOKENS = "generated tokens"
    PREFIX_QUERIES = "prefix queries"  # in tokens or blocks: the share of hits is what counts
    PREFIX_HITS = "prefix hits"
    PREEMPTIONS = "preemptions"
    DRAFT_ROUNDS = "draft steps"
    DRAFTED = "drafted tokens"
    ACCEPTED = "accepted drafts"
    ROUND_LENGTH = "tokens per draft step"


GAUGES = frozenset((Figure.RUNNING, Figure.WAITING, Figure.KV_USAGE, Figure.ROUND_LENGTH))


class Latency(StrEnum):
    """Histograms, in seconds."""

    TTFT = "TTFT"
    ITL = "ITL"
    ENGINE_TTFT = "TTFT, engine"  # until the step that made the token, without its way out


PARTS: Mapping[Part, tuple[Figure, ...]] = {
    Part.QUEUE: (Figure.RUNNING, Figure.WAITING),
    Part.KV_USAGE: (Figure.KV_USAGE,),
    Part.TOKENS: (Figure.GENERATION_TOKENS,),
    Part.PREFIX_CACHE: (Figure.PREFIX_QUERIES, Figure.PREFIX_HITS),
    Part.PREEMPTIONS: (Figure.PREEMPTIONS,),
    Part.SPECULATION: (Figure.DRAFTED, Figure.ACCEPTED, Figure.ROUND_LENGTH),
}
"""What each part of a snapshot is made of; one figure that is told is enough for it."""

NEVER_TOLD = frozenset(
    (Part.MODEL, Part.SETTINGS, Part.REQUESTS, Part.BLOCKS, Part.STEPS, Part.MEMORY)
)
"""What no server of another make tells."""


class Combine(StrEnum):
    """What to do with several series of one name (data-parallel ranks, sources)."""

    SUM = "sum"
    MEAN = "mean"  # of fractions


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a figure has had, the newest first: the first that is there counts. Each may
    be several, joined by +, whose values are added. A colon and an underscore are the same."""

    names: tuple[str, ...]
    combine: Combine = Combine.SUM


def names(*found: str) -> Names:
    return Names(found)


def share(*found: str) -> Names:
    return Names(found, Combine.MEAN)


@dataclass(frozen=True, slots=True)
class Table:
    """Where a dialect's figures are on its page of metrics. itl_is_mean: its ITL histogram holds
    one mean per request, not every gap. hits_are_tokens: its prompt tokens include those that its
    prefix hits count. only: labels that a sample must have where it has them."""

    figures: Mapping[Figure, Names] = field(default_factory=dict)
    latencies: Mapping[Latency, Names] = field(default_factory=dict)
    itl_is_mean: bool = False
    hits_are_tokens: bool = False
    only: Mapping[str, str] = field(default_factory=dict)


VLLM = Table(
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


INFERDECK = dataclasses.replace(
    VLLM,
    latencies={
        **VLLM.latencies,
        Latency.ENGINE_TTFT: names("inferdeck:engine_time_to_first_token_seconds"),
    },
)


LLAMA_CPP = Table(
    figures={
        Figure.RUNNING: names("llamacpp:requests_processing"),
        Figure.WAITING: names("llamacpp:requests_deferred"),
        Figure.KV_USAGE: share("llamacpp:kv_cache_usage_ratio"),
        Figure.PROMPT_TOKENS: names("llamacpp:prompt_tokens_total"),
        Figure.GENERATION_TOKENS: names("llamacpp:tokens_predicted_total"),
    },
)


SGLANG = Table(
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


TENSORRT_LLM = Table(
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


TGI = Table(
    figures={
        Figure.RUNNING: names("tgi_batch_current_size"),
        Figure.WAITING: names("tgi_queue_size"),
        Figure.PROMPT_TOKENS: names("tgi_request_input_length_sum"),
        Figure.GENERATION_TOKENS: names("tgi_request_generated_tokens_sum"),
    },
    latencies={Latency.ITL: names("tgi_request_mean_time_per_token_duration")},
    itl_is_mean=True,
)


TABLES: Mapping[Dialect, Table] = {
    Dialect.INFERDECK: INFERDECK,
    Dialect.VLLM: VLLM,
    Dialect.SGLANG: SGLANG,
    Dialect.TENSORRT_LLM: TENSORRT_LLM,
    Dialect.TGI: TGI,
    Dialect.LLAMA_CPP: LLAMA_CPP,
}

"""The metrics of the engine: key, title, unit and description of each, declared once.

The exported metrics (`engine.telemetry.metrics`), charts, tables and benchmark reports are made
from this table.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """`description`: one sentence, without its period where it follows a title."""

    key: str
    title: str
    unit: str
    description: str

    @property
    def heading(self) -> str:
        """Of a column: "TTFT, ms"."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


_METRICS = (
    Metric("running", "Running", "requests", "Requests in the running batch"),
    Metric("waiting", "Waiting", "requests", "Requests waiting for a batch slot or KV blocks"),
    Metric("kv_usage", "KV usage", "%", "KV blocks in use by requests"),
    Metric("cache_config", "KV cache settings", "", "KV cache settings as metric labels"),
    Metric(
        "prefix_queries", "Prefix cache queries", "tokens", "Tokens looked up in the prefix cache"
    ),
    Metric("prefix_hits", "Prefix cache hits", "tokens", "Tokens served from the prefix cache"),
    Metric("prefix_hit_rate", "Prefix hits", "%", "Prompt tokens served from the prefix cache"),
    Metric("preemptions", "Preemptions", "", "Requests preempted to free KV blocks"),
    Metric(
        "prompt_tokens", "Prompt tokens", "tokens",
        "Prefill tokens, computed or cached; tokens of resumed requests are counted again",
    ),
    Metric("generation_tokens", "Generated tokens", "tokens", "Tokens generated"),
    Metric("finished", "Finished", "requests", "Finished requests"),
    Metric("ttft", "TTFT", "ms", "Time from arrival to first token"),
    Metric("engine_ttft", "Engine TTFT", "ms", "Time from arrival to end of first-token step"),
    Metric("itl", "ITL", "ms", "Time between output tokens, averaged over tokens of one step"),
    Metric("tpot", "TPOT", "ms", "Per request: (E2E latency - TTFT) / (tokens - 1)"),
    Metric("e2e", "E2E latency", "ms", "Time from arrival to completion"),
    Metric("queue", "Queue", "ms", "Time from arrival to first scheduled step, with tokenization"),
    Metric("prefill", "Prefill", "ms", "Time from first scheduled step to first token"),
    Metric("decode", "Decode", "ms", "Time from first token to last token"),
    Metric("request_prompt", "Prompt", "tokens", "Prompt tokens per request"),
    Metric("request_output", "Output", "tokens", "Generated tokens per request"),
    Metric("step_tokens", "Tokens per step", "tokens", "Tokens computed per step"),
    Metric("draft_rounds", "Draft rounds", "drafts", "Draft rounds verified"),
    Metric("drafted", "Draft tokens", "tokens", "Draft tokens proposed"),
    Metric("accepted", "Accepted tokens", "tokens", "Draft tokens accepted"),
    Metric(
        "accepted_at", "Accepted tokens per position", "tokens",
        "Draft tokens accepted at each draft position",
    ),
    Metric("acceptance_rate", "Acceptance rate", "%", "Draft tokens accepted"),
    Metric("acceptance_length", "Acceptance length", "tokens", "Mean tokens per draft round"),
    Metric("output", "Output", "tok/s", "Tokens generated per second"),
    Metric("throughput", "Total", "tok/s", "Prompt and generated tokens per second"),
    Metric("request_rate", "Requests", "req/s", "Requests finished per second"),
    Metric(
        "heartbeat", "Heartbeat age", "s",
        "Time since the engine last started or finished a step or command; 0 while idle",
    ),
    Metric("memory", "Memory", "GiB", "Memory used by this process"),
    Metric("weights", "Weights", "", "Memory used by model weights"),
    Metric("kv_cache", "KV cache", "", "Memory used by the KV cache"),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.key: metric for metric in _METRICS}
"""Every metric by its key."""

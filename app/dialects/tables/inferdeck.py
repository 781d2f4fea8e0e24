"""Our own: vLLM's names, and what it does not have."""

from __future__ import annotations

import dataclasses

from app.dialects.figures import Latency, names
from app.dialects.tables import vllm

TABLE = dataclasses.replace(
    vllm.TABLE,
    latencies={
        **vllm.TABLE.latencies,
        Latency.ENGINE_TTFT: names("inferdeck:engine_time_to_first_token_seconds"),
    },
)

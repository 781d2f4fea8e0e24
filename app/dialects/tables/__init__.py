"""The names of each dialect's metrics, with where they are published."""

from __future__ import annotations

from collections.abc import Mapping

from app.connections.target import Dialect
from app.dialects.figures import Table
from app.dialects.tables import inferdeck, llama_cpp, sglang, tensorrt_llm, tgi, vllm

TABLES: Mapping[Dialect, Table] = {
    Dialect.INFERDECK: inferdeck.TABLE,
    Dialect.VLLM: vllm.TABLE,
    Dialect.SGLANG: sglang.TABLE,
    Dialect.TENSORRT_LLM: tensorrt_llm.TABLE,
    Dialect.TGI: tgi.TABLE,
    Dialect.LLAMA_CPP: llama_cpp.TABLE,
}

"""The engine's settings as command lines of the servers that people deploy. Imports no Qt."""

from app.servers.command import Capacity, ServerCommand
from app.servers.sglang import sglang_command
from app.servers.tensorrt_llm import tensorrt_llm_command
from app.servers.vllm import vllm_command

SERVERS = (vllm_command, sglang_command, tensorrt_llm_command)
"""Each makes a ServerCommand of a configuration and the capacity of its cache."""

__all__ = [
    "SERVERS", "Capacity", "ServerCommand", "sglang_command", "tensorrt_llm_command",
    "vllm_command",
]  # fmt: skip

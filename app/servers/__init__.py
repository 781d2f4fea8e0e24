"""The engine's settings as command lines of the servers that people deploy. Imports no Qt."""

from app.servers.command import Facts, ServerCommand
from app.servers.sglang import sglang_command
from app.servers.tensorrt_llm import tensorrt_llm_command
from app.servers.vllm import vllm_command

SERVERS = (vllm_command, sglang_command, tensorrt_llm_command)
"""Each makes a ServerCommand of a configuration and of what the engine found."""

__all__ = [
    "SERVERS", "Facts", "ServerCommand", "sglang_command", "tensorrt_llm_command",
    "vllm_command",
]  # fmt: skip

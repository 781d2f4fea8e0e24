"""A few flags of vllm-router 0.1.17, as its parser has them."""

from __future__ import annotations

import argparse

POLICIES = [
    "random", "round_robin", "cache_aware", "kv_aware", "power_of_two", "consistent_hash",
    "sticky_least_loaded",
]  # fmt: skip


class RouterArgs:
    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser, use_router_prefix: bool = False) -> None:
        assert not use_router_prefix
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--worker-urls", nargs="*", default=[])
        parser.add_argument(
            "--policy", choices=POLICIES, default="cache_aware",
            help="Load balancing policy to use. In PD mode, prefill and decode inherit it",
        )  # fmt: skip
        for flag, kind, default in (
            ("worker-startup-timeout-secs", int, 600), ("worker-startup-check-interval", int, 30),
            ("cache-threshold", float, 0.3), ("balance-abs-threshold", int, 64),
            ("cb-timeout-duration-secs", int, 60), ("health-failure-threshold", int, 3),
            ("health-check-interval-secs", int, 60), ("prometheus-port", int, 29000),
            ("prometheus-host", str, "127.0.0.1"),
        ):  # fmt: skip
            parser.add_argument(f"--{flag}", type=kind, default=default)

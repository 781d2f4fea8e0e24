"""What others have published of the same shape, as fractions of their own device's floor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gpu.bench.floors import Ceilings, saturated_tokens_per_s
from tests.gpu.bench.shapes import LLAMA_8B, Shape

FILE = Path(__file__).with_name("published.json")


def published() -> dict[str, Any]:
    """The figures with `floor_tokens_per_s` and `fraction` of it each, by the data sheet of their
    device; the sources; and what was looked for and not found."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    shape = Shape.named(LLAMA_8B)
    for figure in data["figures"]:
        device = data["devices"][figure["device"]]
        ceilings = Ceilings(
            device["bytes_per_s"], {"bf16": device["bf16"], "fp8": device["fp8"]}, "data sheet"
        )
        floor = saturated_tokens_per_s(
            shape, figure["precision"], figure["kv"], figure["num_input"], figure["num_output"],
            device["memory"], ceilings,
        )  # fmt: skip
        figure["floor_tokens_per_s"] = round(floor)
        figure["fraction"] = figure["tokens_per_s"] / floor
    return data

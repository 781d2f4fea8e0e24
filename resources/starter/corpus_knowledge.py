"""What the starter model knows about inference: all terms, and the comparisons."""

from __future__ import annotations

from resources.starter.corpus_models import SAMPLING, WEIGHTS
from resources.starter.corpus_serving import MEMORY, METRICS, SCHEDULING
from resources.starter.corpus_topic import Comparison, Topic

TOPICS: tuple[Topic, ...] = METRICS + MEMORY + SCHEDULING + WEIGHTS + SAMPLING

COMPARISONS = (
    Comparison(
        "prefill",
        "decode",
        (
            "Prefill reads the whole prompt in parallel and is limited by compute. Decode makes"
            " one token per step and is limited by memory bandwidth.",
        ),
    ),
    Comparison(
        "TTFT",
        "ITL",
        (
            "TTFT is the wait from the arrival to the first token. ITL is the gap between the"
            " tokens that follow.",
        ),
    ),
    Comparison(
        "ITL",
        "TPOT",
        (
            "ITL is every single gap between two tokens. TPOT is the mean gap of one request, so"
            " it hides single stutters.",
        ),
    ),
    Comparison(
        "continuous batching",
        "static batching",
        (
            "Continuous batching lets requests join and leave at every step. Static batching"
            " waits until the whole batch is done, so short requests wait for long ones.",
        ),
    ),
    Comparison(
        "AWQ",
        "GPTQ",
        (
            "Both make 4-bit weights. AWQ scales the important channels before rounding. GPTQ"
            " rounds column by column and corrects the rest for the error.",
        ),
    ),
    Comparison(
        "int8",
        "fp8",
        (
            "Both take 8 bits. int8 has evenly spaced values and a scale; fp8 has an exponent,"
            " so it covers a wider range.",
        ),
    ),
    Comparison(
        "top-p",
        "top-k",
        (
            "Top-k keeps a fixed number of tokens. Top-p keeps as many as are needed to reach"
            " the probability p.",
        ),
    ),
    Comparison(
        "throughput",
        "latency",
        (
            "Throughput counts the tokens per second of all requests together. Latency is the"
            " time that one request takes. Larger batches raise both.",
        ),
    ),
    Comparison(
        "throughput",
        "goodput",
        (
            "Throughput counts everything. Goodput counts only the requests that meet their"
            " latency targets.",
        ),
    ),
    Comparison(
        "the KV cache",
        "the prefix cache",
        (
            "The KV cache holds the keys and values of running requests. The prefix cache keeps"
            " finished blocks, so that a later prompt with the same start can use them.",
        ),
    ),
)

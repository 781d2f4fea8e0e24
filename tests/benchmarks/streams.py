"""`ask`: many replies of one server at once, and how each ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.clients.calls import make_call
from app.clients.chunks import ReplyReader
from app.clients.errors import TargetError
from app.clients.probe import probe
from app.clients.stream import Streamer
from app.clients.target import Target, parse_address
from engine.sampling_params import SamplingParams

WORDS = ("memory", "block", "cache", "token", "step", "queue", "batch", "layer", "head", "page")


class Reply(NamedTuple):
    """cause: of a failure; "" for none."""

    num_tokens: int
    cause: str


async def ask(
    url: str, prompts: Sequence[str], num_tokens: int, at_once: int = 0,
    after: tuple[int, Callable[[], None]] | None = None,
) -> list[Reply]:  # fmt: skip
    """num_tokens: of each reply. at_once: how many run together; 0 for all. after: call once when
    the streams have this many tokens together."""
    target = Target(url)
    found = await asyncio.to_thread(probe, target)
    streamer = Streamer(target, parse_address(target.base_url))
    places, total, is_due = asyncio.Semaphore(at_once or len(prompts)), 0, after is not None
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)

    async def one(prompt: str) -> Reply:
        nonlocal total, is_due
        call = make_call(
            found.server_type, found.models[0], ({"role": "user", "content": prompt},), params,
            found.max_model_len,
        )  # fmt: skip
        count = 0
        async with places:
            try:
                async for _, piece in streamer.stream(call, ReplyReader(), lambda at: None):
                    count += len(piece.token_ids)
                    total += len(piece.token_ids)
                    if after is not None and is_due and total >= after[0]:
                        is_due = False
                        await asyncio.to_thread(after[1])
            except TargetError as error:
                return Reply(count, str(error))
        return Reply(count, "")

    try:
        return list(await asyncio.gather(*map(one, prompts)))
    finally:
        await streamer.close()


def prompts_of(num_prefixes: int, each: int, num_words: int) -> list[str]:
    """In random order; those of one prefix differ in their last words only."""
    order = random.Random(time.time_ns())
    prefixes = [
        " ".join([f"{order.randrange(10**6)}", *order.choices(WORDS, k=num_words)])
        for _ in range(num_prefixes)
    ]
    made = [f"{prefix} {number}" for prefix in prefixes for number in range(each)]
    order.shuffle(made)
    return made

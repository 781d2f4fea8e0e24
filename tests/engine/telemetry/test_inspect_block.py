"""What a block holds, as one reads it: tokens, owners, its place in the chain."""

from __future__ import annotations

from collections.abc import Callable

from engine import LLMEngine, SamplingParams
from tests.engine import tiny_models

MakeEngine = Callable[..., LLMEngine]
LONG = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


def test_blocks_of_running_requests_and_what_they_leave_behind(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=8)
    (prompt,) = tiny_models.make_prompts((20,))
    first = engine.add_request(prompt, LONG)
    engine.step()
    second = engine.add_request([*prompt[:16], 3, 4, 5], LONG)
    engine.step()
    blocks = engine.snapshot().blocks
    tables = dict(zip(blocks.owners, blocks.tables, strict=True))
    assert tables[first][:2] == tables[second][:2] and tables[first][2] != tables[second][2]
    head, then, tail = (engine.inspect_block(block) for block in tables[first][:3])
    assert head is not None and then is not None and tail is not None
    assert head.owners == (first, second) and list(head.token_ids) == prompt[:8]
    assert head.text == engine.tokenizer.decode(prompt[:8])
    assert head.parent_hash == "" and then.parent_hash == head.block_hash != ""
    assert list(then.token_ids) == prompt[8:16] and then.published is not None
    assert tail.owners == (first,) and tail.block_hash == "" and tail.published is None
    computed = next(r for r in engine.snapshot().requests if r.request_id == first)
    assert list(tail.token_ids[:4]) == prompt[16:]
    assert len(tail.token_ids) == computed.num_computed_tokens - 16
    for request_id in (first, second):
        engine.abort(request_id)
    engine.step()
    left = engine.inspect_block(tables[first][1])
    assert left is not None and left.owners == () and list(left.token_ids) == prompt[8:16]
    engine.reconfigure(enable_prefix_caching=False)
    forgotten = engine.inspect_block(tables[first][1])
    assert forgotten is not None and forgotten.token_ids == () and forgotten.block_hash == ""


def test_a_block_that_does_not_exist(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.inspect_block(-1) is None
    assert engine.inspect_block(engine.snapshot().blocks.num_blocks) is None
    free = engine.inspect_block(0)
    assert free is not None and free.owners == () and free.text == ""

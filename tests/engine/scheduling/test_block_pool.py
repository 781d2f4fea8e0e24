"""The block pool's books balance whatever happens to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.scheduling.block_pool import BlockPool, IntegrityError, chain_hash, root_hash
from tests.tiers import examples

ROOT = root_hash(("test",))


class PoolMachine(RuleBasedStateMachine):
    """Sequences take, share, publish and free blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(num_blocks=12, block_size=4)
        self.tables: list[list[int]] = []
        self.names = 0

    @rule(count=st.integers(1, 12))
    def allocate(self, count: int) -> None:
        if count <= self.pool.num_free_blocks:
            used = self.pool.num_used
            self.tables.append(self.pool.allocate(count))
            assert self.pool.num_used == max(used, max(self.tables[-1]) + 1)
        else:
            before = list(self.pool.ref_count)
            with pytest.raises(IntegrityError):
                self.pool.allocate(count)
            assert list(self.pool.ref_count) == before

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        for block in table[: data.draw(st.integers(0, len(table)))]:
            self.names += 1
            self.pool.publish(block, chain_hash(ROOT, [self.names]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        prefix = table[: data.draw(st.integers(1, len(table)))]
        self.pool.acquire(prefix)
        self.tables.append(list(prefix))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.free(self.tables.pop(index))

    @rule()
    def take_back_cached(self) -> None:
        cached = [b for b in range(12) if self.pool.block_hash[b] and not self.pool.ref_count[b]]
        if cached:
            block_hash = self.pool.block_hash[cached[0]]
            assert block_hash is not None
            found = self.pool.lookup([block_hash])
            assert found == cached[:1]
            self.pool.acquire(found)
            self.tables.append(found)

    @rule()
    def clear(self) -> None:
        self.pool.clear_prefixes()
        assert not any(self.pool.block_hash)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity(self.tables)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_blocks_without_a_prefix_are_evicted_first_then_the_tail_of_the_oldest() -> None:
    pool = BlockPool(num_blocks=6, block_size=4)
    old, new, plain = pool.allocate(2), pool.allocate(2), pool.allocate(2)
    for number, block in enumerate([*old, *new]):
        pool.publish(block, chain_hash(ROOT, [number]))
    for table in (old, new, plain):
        pool.free(table)
    assert set(pool.allocate(2)) == set(plain)
    assert pool.num_evictions == 0
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]
    assert pool.num_evictions == 4


def test_of_two_blocks_with_the_same_content_the_first_keeps_the_name() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    first, second = pool.allocate(2)
    name = chain_hash(ROOT, [1, 2, 3, 4])
    pool.publish(first, name)
    pool.publish(second, name)
    assert pool.lookup([name]) == [first]
    assert pool.block_hash[second] is None


@given(st.lists(st.integers(0, 2**40), max_size=8), st.lists(st.integers(0, 2**40), max_size=8))
def test_a_hash_names_the_tokens_and_everything_before_them(a: list[int], b: list[int]) -> None:
    assert (chain_hash(ROOT, a) == chain_hash(ROOT, b)) == (a == b)
    other = root_hash(("another model",))
    assert chain_hash(ROOT, a) != chain_hash(other, a)


def test_freeing_more_often_than_referenced_is_a_fault() -> None:
    pool = BlockPool(num_blocks=1, block_size=1)
    table = pool.allocate(1)
    pool.free(table)
    with pytest.raises(IntegrityError, match="free of block 0"):
        pool.free(table)

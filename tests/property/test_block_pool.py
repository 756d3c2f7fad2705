"""The KV allocator against random holders: nothing leaks, nothing is given out twice."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atom_lite.kv.allocator import KVAllocator
from atom_lite.kv.prefix_cache import extend_digests, root_digest


class AllocatorMachine(RuleBasedStateMachine):
    """Holders come with token chains, hit what is cached, take the rest, and go."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.allocator = KVAllocator(num_blocks, 2)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}  # what each block was last filled with

    @rule(tokens=st.lists(st.integers(0, 1), max_size=16), register=st.booleans())
    def hold(self, tokens: list[int], register: bool) -> None:
        digests: list[bytes] = []
        extend_digests(digests, root_digest(None), tokens, 2)
        hits = self.allocator.find_prefix(digests, len(digests))
        assert [self.content[block_id] for block_id in hits] == digests[: len(hits)]
        before = self.allocator.num_available
        missing = len(digests) - len(hits)
        idle = len(hits) - self.allocator.count_held(hits)
        if idle + missing > before:
            return
        self.allocator.share(hits)
        taken = self.allocator.take(missing)
        assert self.allocator.num_available == before - idle - missing
        held = {block_id for table in self.tables for block_id in table}
        assert not held & set(taken), "a held block was given out"
        for block_id, digest in zip(taken, digests[len(hits) :], strict=True):
            self.content[block_id] = digest
            if register:
                self.allocator.register(block_id, digest)
        self.tables.append(hits + taken)

    @precondition(lambda self: bool(self.tables))
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        self.allocator.release(self.tables.pop(pick % len(self.tables)))

    @rule(picks=st.lists(st.integers(0, 11)))
    def forget(self, picks: list[int]) -> None:
        held = {block_id for table in self.tables for block_id in table}
        idle = [self.content[pick] for pick in picks if pick in self.content and pick not in held]
        names = set(idle) - {self.content[block_id] for block_id in held}
        self.allocator.forget_idle(names)
        assert not names & self.allocator.names()

    @rule()
    def reset(self) -> None:
        self.allocator.reset_prefix_cache()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.check_integrity(self.tables)
            held = {block_id for table in self.tables for block_id in table}
            assert self.allocator.num_held == len(held)

    def teardown(self) -> None:
        while getattr(self, "tables", []):
            self.release(0)
        if hasattr(self, "allocator"):
            assert self.allocator.num_available == self.allocator.num_blocks


def run(max_examples: int) -> None:
    run_state_machine_as_test(
        AllocatorMachine,
        settings=settings(max_examples=max_examples, stateful_step_count=40, deadline=None),
    )


def test_blocks_never_leak_and_hits_always_hold_what_they_name() -> None:
    run(100)


@pytest.mark.full
def test_blocks_never_leak_many_times() -> None:
    run(3000)

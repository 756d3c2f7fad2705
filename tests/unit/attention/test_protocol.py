"""Slots and tables of a step."""

from __future__ import annotations

from atom_lite.attention.protocol import AttentionMetadata


def test_slots_follow_the_block_tables() -> None:
    metadata = AttentionMetadata.build(
        query_lens=[1, 3, 2],
        context_lens=[6, 5, 2],
        block_tables=[[7, 2], [4, 9], [0]],
        block_size=4,
    )
    assert metadata.slot_mapping.tolist() == [
        2 * 4 + 1,  # position 5
        4 * 4 + 2,  # positions 2, 3, 4
        4 * 4 + 3,
        9 * 4 + 0,
        0,  # positions 0, 1
        1,
    ]
    assert metadata.block_tables.tolist() == [[7, 2], [4, 9], [0, 0]]

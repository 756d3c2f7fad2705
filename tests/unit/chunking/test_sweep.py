import pytest

from atom_lite.chunking.sweep import (
    Alternation,
    atom_max_chunk,
    atom_startup_sizes,
    prefix_sweep_shapes,
)


def test_atom_grid_goes_from_the_budget_to_an_eighth_of_it() -> None:
    sizes = atom_startup_sizes(64, 16384)
    assert len(sizes) == 24
    assert (sizes[0], sizes[-1]) == (16384, 2048)
    assert all(size % 64 == 0 for size in sizes)
    assert sizes == sorted(sizes, reverse=True)


def test_atom_grid_drops_duplicates() -> None:
    sizes = atom_startup_sizes(64, 512)
    assert sizes == [512, 448, 384, 320, 256, 192, 128, 64]


@pytest.mark.parametrize(
    ("budget", "model_len", "expected"),
    [(16384, 8192, 8192), (16384, None, 16384), (1000, 8192, 960)],
)
def test_atom_largest_size_follows_from_flags(
    budget: int, model_len: int | None, expected: int
) -> None:
    assert atom_max_chunk(budget, model_len, 64) == expected


def test_prefix_sweep_tells_the_terms_apart_within_nine_forwards() -> None:
    shapes = prefix_sweep_shapes(128, 16384, 8192)[:9]
    assert len({shape.prefix_tokens for shape in shapes}) == 3
    assert len({shape.new_tokens for shape in shapes}) == 3


def test_prefix_sweep_leaves_out_what_does_not_fit() -> None:
    shapes = prefix_sweep_shapes(128, 256, 1024)
    assert shapes
    assert all(s.new_tokens <= 256 and s.prefix_tokens + s.new_tokens < 1024 for s in shapes)


def test_prompts_get_the_choices_in_turn_and_keep_them() -> None:
    alternation = Alternation((1, 2))
    assert [alternation.choice_for(id) for id in (10, 11, 10, 12, 11)] == [1, 2, 1, 1, 2]
    alternation.forget(10)
    alternation.forget(99)
    assert alternation.choice_for(10) == 2


def test_forgotten_prompts_do_not_pile_up() -> None:
    alternation = Alternation((1, 2))
    for id in range(Alternation.MAX_SEQUENCES + 10):
        alternation.choice_for(id)
    assert len(alternation._given) == Alternation.MAX_SEQUENCES

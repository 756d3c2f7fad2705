from atom_lite.chunking.sources import WINDOW_STEPS, SolePrefillWindow


def test_atom_30_sole_prefill_only_and_a_momentary_lull_does_not_switch_it_on() -> None:
    window = SolePrefillWindow()
    window.observe(2)
    for _ in range(WINDOW_STEPS - 1):
        window.observe(1)
        assert not window.is_sole
    window.observe(1)
    assert window.is_sole
    window.observe(3)
    assert not window.is_sole


def test_atom_30_an_idle_pipeline_counts_as_sole() -> None:
    window = SolePrefillWindow()
    assert window.is_sole
    window.observe(0)
    assert window.is_sole


def test_atom_30_the_window_is_sixteen_steps() -> None:
    assert WINDOW_STEPS == 16

from atom_lite.chunking.sources import (
    WINDOW_STEPS,
    PrefillSource,
    SolePrefillWindow,
    count_prefills,
)


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


def test_atom_31_aborted_remote_kv_and_unschedulable_requests_are_no_supply() -> None:
    assert (
        count_prefills(
            [
                PrefillSource(100),
                PrefillSource(100, is_aborted=True),
                PrefillSource(100, waits_for_remote_kv=True),
                PrefillSource(100, is_schedulable=False),
                PrefillSource(0),
            ]
        )
        == 1
    )

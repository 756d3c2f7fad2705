from typing import TYPE_CHECKING

from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.startup import AtomStartup, PrefixStartup

if TYPE_CHECKING:
    from atom_lite.chunking.calibrator import StepSample


def test_atom_sweep_warms_up_once_and_takes_the_better_of_two_on_the_head() -> None:
    taken: list[tuple[list[int], list[float]]] = []

    def finish(sizes: object, seconds: list[float]) -> list:  # type: ignore[type-arg]
        taken.append((list(sizes), seconds))  # type: ignore[call-overload]
        return []

    sweep = AtomStartup([256, 128], finish)
    assert sweep.is_attention_free
    seen = []
    for head in (90.0, 5.0, 4.0, 2.0, 3.0):
        shape = sweep.next_shape()
        assert shape is not None
        seen.append(shape)
        sweep.finish_shape([head, 0.001])
    assert sweep.next_shape() is None
    assert seen == [(0, 256), (0, 256), (0, 256), (0, 128), (0, 128)]
    sweep.finish()
    assert taken == [([256, 128], [4.0, 2.0])]


def test_prefix_sweep_drops_the_warm_up_and_keeps_to_its_time() -> None:
    samples: list[StepSample] = []
    sweep = PrefixStartup(plan_limits(2048), 8192, samples.append, list)
    assert not sweep.is_attention_free
    spent = 0.0
    while sweep.next_shape() is not None:
        spent += 0.15
        sweep.finish_shape([0.1, 0.05])
    assert spent <= 2.0 + 0.15
    assert len(samples) == round(spent / 0.15) - 1
    assert samples[0].stage_seconds == (0.1, 0.05)


def test_prefix_sweep_without_a_timed_forward_fits_nothing() -> None:
    sweep = PrefixStartup(plan_limits(64), 32, lambda _: None, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert sweep.next_shape() is None
    assert sweep.finish() == []

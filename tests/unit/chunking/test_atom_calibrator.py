from itertools import count

import pytest

from atom_lite.chunking.atom_calibrator import POLL_STEPS, AtomCalibrator
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.planners.atom import AtomSettings
from atom_lite.errors import ConfigError
from tests.unit.chunking.samples import SERVED, Timing, fixed_chunks, noisy

SETTINGS = AtomSettings(budget_tokens=2048, min_chunk_tokens=64, max_model_len=16384)


class Served:
    """A calibrator past its startup, fed with prompts."""

    def __init__(self, settings: AtomSettings = SETTINGS) -> None:
        self.calibrator = AtomCalibrator(settings, num_stages=4)
        sizes = self.calibrator.startup_sizes()
        b, c = SERVED.linear_seconds_per_token, SERVED.constant_seconds
        self.calibrator.finish_startup(sizes, [c + b * size for size in sizes])
        self._ids = count()

    def prompt(
        self, chunk: int, *, tokens: int = 8192, prefix: int = 0, seconds: Timing | None = None
    ) -> None:
        timing = seconds or SERVED.chunk_seconds
        sequence_id = next(self._ids)
        for piece in fixed_chunks(tokens, chunk, prefix):
            self.calibrator.add_sample(
                sequence_id=sequence_id,
                prefix_tokens=piece.prefix_tokens,
                chunk_tokens=piece.new_tokens,
                seconds=timing(*piece),
            )

    def warm_up(self) -> None:
        """The first request, whose timings are discarded."""
        self.prompt(512)

    def poll(self) -> list[str]:
        return [notice.text for notice in self.calibrator.poll()]


def falling(prefix: int, new: int) -> float:
    return 10.0 + 1.5e-5 * new - 1e-9 * Chunk(prefix, new).area


def test_atom_3_too_few_aligned_sizes_turn_it_off_with_a_warning() -> None:
    calibrator = AtomCalibrator(AtomSettings(budget_tokens=448, min_chunk_tokens=64), num_stages=2)
    assert calibrator.state == "off"
    assert calibrator.startup_sizes() == []
    (notice,) = calibrator.start_notices()
    assert notice.level == "warning"
    assert "at least 8 aligned profiling lengths, got 7" in notice.text


def test_atom_2_a_sweep_without_slope_turns_it_off_with_a_warning() -> None:
    calibrator = AtomCalibrator(SETTINGS, num_stages=2)
    sizes = calibrator.startup_sizes()
    (notice,) = calibrator.finish_startup(sizes, [0.1 - 1e-6 * size for size in sizes])
    assert calibrator.state == "off"
    assert notice.level == "warning"
    assert notice.text.startswith("disabling dynamic chunking because ")


def test_atom_4_two_sizes_over_real_prompts_install_the_model() -> None:
    served = Served()
    served.warm_up()
    served.prompt(2048)
    served.prompt(512)
    lines = served.poll()
    assert served.calibrator.state == "installed"
    assert lines[0].startswith("dynamic chunking calibrated from 20 real prefill shapes over 2")
    assert lines[1] == f"Dynamic chunking latency model installed: {SERVED.describe()}"
    model = served.calibrator.model
    assert model is not None
    assert model.attention_seconds_per_area == pytest.approx(SERVED.attention_seconds_per_area)


def test_atom_11_one_prompt_length_is_enough() -> None:
    served = Served()
    for size in (512, 2048, 512, 2048):
        served.prompt(size, tokens=6144)
    served.poll()
    assert served.calibrator.state == "installed"


def test_atom_12_a_failed_fit_is_retried_on_fresh_samples_not_on_each_poll() -> None:
    served = Served()
    served.warm_up()
    served.prompt(2048, seconds=falling)
    served.prompt(512, seconds=falling)
    assert served.poll()[0].startswith("dynamic chunking calibration: ")
    for _ in range(20):
        assert served.poll()[0].startswith("dynamic chunking still calibrating: ")
    assert served.calibrator.state == "calibrating"
    for _ in range(4):  # the medians forget
        served.prompt(2048)
        served.prompt(512)
    served.poll()
    assert served.calibrator.state == "installed"


def test_atom_13_eight_rejections_give_up_and_are_logged() -> None:
    served = Served()
    served.warm_up()
    served.prompt(512, seconds=falling)
    for attempt in range(8):
        assert served.calibrator.state == "calibrating", attempt
        served.prompt(2048, seconds=falling)
        lines = served.poll()
    assert served.calibrator.state == "gave_up"
    assert lines[-1] == (
        "giving up on dynamic chunking calibration after 8 rejected fits over 20 shapes; "
        "chunking stays fixed"
    )
    assert not served.calibrator.needs_acknowledgement
    assert served.poll() == []


def test_atom_18_the_first_sampled_request_is_discarded() -> None:
    served = Served()
    served.prompt(512, seconds=lambda prefix, new: 60.0 * SERVED.chunk_seconds(prefix, new))
    served.prompt(2048)
    served.prompt(512)
    served.poll()
    model = served.calibrator.model
    assert model is not None
    assert model.attention_seconds_per_area == pytest.approx(SERVED.attention_seconds_per_area)


def test_atom_18_a_prefix_cache_hit_does_not_hide_a_new_request() -> None:
    served = Served()
    served.prompt(2048, tokens=2048)
    served.prompt(512, prefix=4096)  # goes on where the first one stopped growing
    assert "12 shapes" not in served.poll()[0]
    assert "8 shapes" in served.poll()[0]


def test_atom_21_a_model_without_useful_shrink_is_ignored_and_logged() -> None:
    flat = LatencyModel.from_milliseconds(a=1e-8, b=0.015, c=3.0)
    served = Served()
    served.warm_up()
    served.prompt(2048, seconds=flat.chunk_seconds)
    served.prompt(512, seconds=flat.chunk_seconds)
    (line,) = served.poll()
    assert line.startswith("Ignoring dynamic chunking calibration a=")
    assert line.endswith(": it predicts no useful shrink")
    assert served.calibrator.state == "ignored"
    assert served.calibrator.model is None


def test_atom_32_eight_requests_without_two_chunk_sizes_give_up() -> None:
    served = Served()
    for _ in range(7):
        served.prompt(2048)
        served.poll()
        assert served.calibrator.state == "calibrating"
    served.prompt(2048)
    (line,) = served.poll()
    assert served.calibrator.state == "gave_up"
    assert line == (
        "giving up on dynamic chunking calibration with 8 sampled requests, 1 chunk sizes, "
        "after 8 polls; chunking stays fixed"
    )


def test_atom_32_sixteen_polls_without_a_sample_give_up() -> None:
    served = Served()
    for _ in range(15):
        served.poll()
        assert served.calibrator.state == "calibrating"
    assert "0 sampled requests" in served.poll()[0]
    assert served.calibrator.state == "gave_up"


def test_atom_32_a_poll_comes_every_32_steps_of_the_head() -> None:
    served = Served()
    for _ in range(16 * POLL_STEPS - 1):
        served.calibrator.end_step()
    assert served.calibrator.state == "calibrating"
    assert served.calibrator.end_step()
    assert served.calibrator.state == "gave_up"
    assert served.calibrator.end_step() == []


def test_atom_35_acknowledgements_are_asked_while_calibrating_or_installed_only() -> None:
    calibrator = AtomCalibrator(SETTINGS, num_stages=2)
    assert not calibrator.needs_acknowledgement  # profiling
    served = Served()
    assert served.calibrator.needs_acknowledgement
    served.warm_up()
    served.prompt(2048)
    served.prompt(512)
    served.poll()
    assert served.calibrator.state == "installed"
    assert served.calibrator.needs_acknowledgement


def test_atom_sampling_stops_once_installed() -> None:
    served = Served()
    for size in (512, 2048, 512):
        served.prompt(size)
    assert served.calibrator.wants_sample(num_sequences=1, num_prefills=1)
    served.poll()
    assert not served.calibrator.wants_sample(num_sequences=1, num_prefills=1)
    model = served.calibrator.model
    served.prompt(512, seconds=noisy(SERVED, 0.5))
    assert served.poll() == []
    assert served.calibrator.model is model


@pytest.mark.parametrize(("sequences", "prefills"), [(2, 1), (2, 2), (1, 0)])
def test_atom_only_steps_of_one_prefill_are_sampled(sequences: int, prefills: int) -> None:
    assert not Served().calibrator.wants_sample(num_sequences=sequences, num_prefills=prefills)


def test_atom_is_off_with_a_warning_when_min_chunk_reaches_the_budget() -> None:
    calibrator = AtomCalibrator(
        AtomSettings(budget_tokens=4096, min_chunk_tokens=4096), num_stages=4
    )
    assert calibrator.state == "off"
    assert "4096, must be below" in calibrator.start_notices()[0].text


def test_atom_refuses_one_stage() -> None:
    with pytest.raises(ConfigError, match="at least 2, got 1"):
        AtomCalibrator(SETTINGS, num_stages=1)


def test_atom_startup_says_what_it_measured() -> None:
    calibrator = AtomCalibrator(SETTINGS, num_stages=2)
    assert calibrator.start_notices() == []
    sizes = calibrator.startup_sizes()
    (notice,) = calibrator.finish_startup(sizes, [0.003 + 1.5e-5 * size for size in sizes])
    assert notice.text.startswith("dynamic chunking chunk overhead b=1.500e-02 c=3.000e+00")
    assert calibrator.poll()[0].text == (
        "dynamic chunking still calibrating: 0 timed prefills, 0 shapes, 0 distinct prefixes, "
        "0 chunk sizes"
    )
    assert not calibrator.wants_sample(num_sequences=2, num_prefills=2)


def test_atom_samples_before_calibration_are_dropped() -> None:
    calibrator = AtomCalibrator(SETTINGS, num_stages=2)
    calibrator.add_sample(sequence_id=1, prefix_tokens=0, chunk_tokens=64, seconds=1.0)
    assert calibrator.poll() == []
    assert calibrator.end_step() == []

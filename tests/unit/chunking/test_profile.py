import json
from dataclasses import replace
from pathlib import Path

import pytest

from atom_lite.chunking.fit_robust import FitQuality
from atom_lite.chunking.profile import Fingerprint, Profile, load_profile, mismatch, save_profile
from atom_lite.errors import ConfigError
from tests.unit.chunking.samples import KIMI, SERVED

FINGERPRINT = Fingerprint(
    model="tiny", dtype="float32", device="cpu", num_threads=1, layers_per_stage=(15, 15)
)
PROFILE = Profile(
    fingerprint=FINGERPRINT,
    models=(KIMI, SERVED),
    qualities=(
        FitQuality(
            num_rows=99,
            median_relative_error=0.02,
            p90_relative_error=0.06,
            sigma=0.03,
            stderr=0.01,
        ),
        None,
    ),
)


def test_a_profile_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(path, PROFILE)
    assert load_profile(path) == PROFILE
    save_profile(path, replace(PROFILE, models=(SERVED, KIMI)))
    loaded = load_profile(path)
    assert loaded is not None
    assert loaded.models == (SERVED, KIMI)
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    assert load_profile(tmp_path / "profile.json") is None


def saved(tmp_path: Path) -> dict[str, object]:
    save_profile(tmp_path / "good.json", PROFILE)
    document = json.loads((tmp_path / "good.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"stages": []},
        {"stages": [{"model": {"a": 1}, "quality": None}] * 2},
        {"stages": "two"},
        {"fingerprint": {"model": "tiny"}},
        {"fingerprint": None},
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(saved(tmp_path) | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"profile\.json is not a profile of version 1"):
        load_profile(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "\x00\x01"])
def test_a_corrupt_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="delete it to calibrate anew"):
        load_profile(path)


def test_coefficients_of_the_wrong_sign_or_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for value in (-1.0, "fast", None, float("nan")):
        text = json.dumps(saved(tmp_path))
        text = text.replace(json.dumps(KIMI.constant_seconds), json.dumps(value), 1)
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="not a profile"):
            load_profile(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profile(path)


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing/profile\.json cannot be written"):
        save_profile(tmp_path / "missing" / "profile.json", PROFILE)


def test_a_profile_of_another_machine_does_not_count() -> None:
    assert mismatch(FINGERPRINT, FINGERPRINT) is None
    other = replace(FINGERPRINT, num_threads=2, layers_per_stage=(16, 14))
    assert mismatch(FINGERPRINT, other) == (
        "num_threads 1 is now 2; layers_per_stage (15, 15) is now (16, 14)"
    )

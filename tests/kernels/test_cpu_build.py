"""Building the C++ kernels: once, cached, and never in the way of a machine without a compiler."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import torch  # first: the libraries share its OpenMP threads

from atom_lite_kernels.cpu import build

if TYPE_CHECKING:
    from pathlib import Path

assert torch


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "atom_lite" / "kernels"


def test_a_library_is_compiled_once_and_then_found(cache: Path) -> None:
    if build.load_library("decode_attention") is None:
        pytest.skip("this machine has no C++ compiler")
    (library,) = cache.iterdir()
    made = library.stat().st_mtime_ns
    assert build.load_library("decode_attention") is not None
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [made]


def test_without_a_compiler_there_is_a_warning_and_no_kernel(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert build.load_library("decode_attention") is None
    assert "no C++ compiler" in caplog.text


def test_a_source_that_does_not_compile_is_a_warning_that_says_why(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.cpp").write_text("this is not C++\n")
    monkeypatch.setattr(build, "_SOURCES", tmp_path)
    with caplog.at_level(logging.WARNING):
        assert build.load_library("broken") is None
    assert "broken.cpp" in caplog.text


def test_an_unwritable_cache_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert build.load_library("decode_attention") is None
    assert "decode_attention.cpp" in caplog.text

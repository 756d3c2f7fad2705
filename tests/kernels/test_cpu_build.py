"""Building the C++ kernels: once, cached, and never in the way of a machine without a compiler."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch  # first: the library shares its OpenMP threads

from atom_lite_kernels.cpu import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

assert torch

SMALL = """#include "small.h"
extern "C" int answer() { return kAnswer; }
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and one small source in place of the kernels."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "small.cpp").write_text(SMALL)
    (sources / "small.h").write_text("constexpr int kAnswer = 42;\n")
    monkeypatch.setattr(build, "_SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.load_library.cache_clear()
    yield tmp_path / "atom_lite" / "kernels"
    build.load_library.cache_clear()


@pytest.fixture
def compiler() -> None:
    """Skip where there is none."""
    try:
        build.find_compiler()
    except build.BuildError:
        pytest.skip("this machine has no C++ compiler")


def load_again() -> int | None:
    """What the library answers to a process that starts now."""
    build.load_library.cache_clear()
    library = build.load_library()
    return None if library is None else int(library.answer())


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.so"))


@pytest.mark.usefixtures("compiler")
def test_a_library_is_compiled_once_and_then_found(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert load_again() == 42
    assert "compiling CPU kernels, 1 of 1" in caplog.text
    (library,) = libraries(cache)
    made = library.stat().st_mtime_ns
    assert load_again() == 42
    assert [path.stat().st_mtime_ns for path in libraries(cache)] == [made]


@pytest.mark.usefixtures("compiler")
def test_a_change_of_a_header_makes_a_new_library(cache: Path) -> None:
    assert load_again() == 42
    (cache.parents[1] / "sources" / "small.h").write_text("constexpr int kAnswer = 43;\n")
    assert load_again() == 43
    assert len(libraries(cache)) == 2


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_broken_library_is_built_again(cache: Path, damage: str) -> None:
    cache.mkdir(parents=True)
    path = build.build(build.variant_for(build._cpu_flags()))
    whole = path.read_bytes()
    changed = whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]
    path.write_bytes({"cut": whole[:-100], "changed": changed, "empty": b""}[damage])
    assert load_again() == 42


@pytest.mark.usefixtures("compiler")
def test_several_that_start_at_once_compile_once(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(build.build, [build.PORTABLE] * 4))
    assert paths == set(libraries(cache)) and len(paths) == 1
    assert caplog.text.count("compiling 1 CPU kernels") == 1


@pytest.mark.usefixtures("compiler")
def test_a_library_built_ahead_serves_where_there_is_no_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["build"])
    assert build.main() == 0
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert load_again() == 42


def test_without_a_compiler_there_is_a_warning_and_no_kernel(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert load_again() is None
    assert "no C++ compiler" in caplog.text
    monkeypatch.setattr("sys.argv", ["build"])
    assert build.main() == 1


@pytest.mark.usefixtures("compiler")
def test_a_source_that_does_not_compile_is_a_warning_that_says_why(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache.parents[1] / "sources" / "broken.cpp").write_text("this is not C++\n")
    assert load_again() is None
    assert "broken.cpp" in caplog.text and "error" in caplog.text


def test_an_unwritable_cache_is_a_warning(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert load_again() is None
    assert "torch runs instead" in caplog.text


def test_the_cpu_decides_the_variant() -> None:
    names = [variant.name for variant in build.X86_VARIANTS]
    assert names == ["avx512-bf16", "avx512", "avx2", "portable"]
    for variant in build.variants():
        assert build.variant_for(variant.needs) is variant
        if variant.needs:
            less = build.variant_for(variant.needs - {"fma"})
            assert less is build.PORTABLE
    assert build.variant_for(frozenset()) is build.PORTABLE

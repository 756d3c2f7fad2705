"""A module's name says what is inside; sources are ASCII and leave nothing half done."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("atom_lite", "kernels", "benchmarks", "tests")
PROGRAM = ("atom_lite", "kernels", "benchmarks")
MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")


def files(folders: tuple[str, ...]) -> list[Path]:
    found = [path for name in folders for path in sorted((ROOT / name).rglob("*.py"))]
    assert found
    return found


def names_of(path: Path) -> set[str]:
    """The words of a module's path that a reader sees in an import."""
    return {part.strip("_") for part in (*path.parent.parts, path.stem)}


def test_no_module_has_a_name_that_says_nothing() -> None:
    bad = [
        str(path.relative_to(ROOT))
        for path in files(SOURCES)
        if names_of(path.relative_to(ROOT)) & MEANINGLESS
    ]
    assert not bad, bad


@pytest.mark.parametrize("name", ["atom_lite/utils.py", "atom_lite/common/x.py", "a/_helpers.py"])
def test_a_meaningless_name_would_be_found(name: str) -> None:
    assert names_of(Path(name)) & MEANINGLESS


def test_nothing_is_left_half_done() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files(PROGRAM)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


def test_program_sources_are_ascii() -> None:
    bad = [str(path.relative_to(ROOT)) for path in files(PROGRAM) if not is_ascii(path)]
    assert not bad, bad


def is_ascii(path: Path) -> bool:
    return path.read_bytes().isascii()


def test_every_program_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in files(PROGRAM)
        if not path.read_text(encoding="utf-8").lstrip().startswith(('"""', 'r"""'))
    ]
    assert not silent, silent

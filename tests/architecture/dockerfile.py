"""A reader of Dockerfiles, as far as this project's own one goes.

`docker build --check` needs a daemon; this needs none. Unknown instructions are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER"}
KNOWN |= {"ADD", "LABEL", "SHELL", "STOPSIGNAL", "VOLUME", "WORKDIR"}


@dataclass(frozen=True)
class Instruction:
    word: str
    value: str


def parse_dockerfile(text: str) -> list[Instruction]:
    """Instructions in order, continuation lines joined, comments dropped."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        word, _, value = line.partition(" ")
        if word not in KNOWN or not value.strip():
            raise ValueError(f"not a Dockerfile instruction: {line!r}")
        found.append(Instruction(word, value.strip()))
    return found

"""Why a fit was not taken, and what calibration has to tell the log.

Reasons are data: the state in `/server_info`, the log line and the metric's label come from the one
place where a gate said no. Pure; the head process logs notices, this package never does.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from atom_lite.errors import AtomLiteError

Gate: TypeAlias = Literal[
    "samples",  # too few, or not diverse enough to tell the terms apart
    "slope",  # the per-token cost is not positive
    "coefficients",  # wrong count or sign
    "growth",  # cost does not rise with attention area
    "residual",  # the formula does not describe the timings
    "condition",  # the shapes do not separate the terms
    "uncertainty",  # the noise does not let the terms be told apart
    "useful",  # nothing would be gained
]


class FitRefused(AtomLiteError):
    """A fit did not pass; calibration catches this, keeps the reason and goes on."""

    def __init__(self, gate: Gate, message: str, *, num_missing: int | None = None) -> None:
        """`num_missing`: about how many more samples would do, where that can be told."""
        super().__init__(message)
        self.gate = gate
        self.message = message
        self.num_missing = num_missing


class Notice(NamedTuple):
    """A line for the log."""

    level: Literal["info", "warning"]
    text: str

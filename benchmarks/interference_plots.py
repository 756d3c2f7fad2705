"""The timelines as a PNG; needs matplotlib (extra `bench`).

One row for each arm: the gaps of each stream over time, and what each step held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from benchmarks.interference_timeline import gaps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.interference_timeline import Timeline

_DOTS_PER_INCH = 100


def write_plots(timelines: Sequence[Timeline], path: Path) -> None:
    """All arms below each other, on axes of the same range."""
    figure = Figure(figsize=(16, 2.6 * len(timelines)), layout="constrained")
    grid = figure.subplots(len(timelines), 2, squeeze=False, sharey="col")
    for row, line in zip(grid, timelines, strict=True):
        _gaps(row[0], line)
        _steps(row[1], line)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _gaps(axes: Axes, line: Timeline) -> None:
    for index, times in enumerate(line.streams):
        found = gaps(times)
        axes.plot(
            [at for at, _ in found],
            [1e3 * gap for _, gap in found],
            marker=".",
            linewidth=0.6,
            label=f"stream {index}",
        )
    _mark_long(axes, line)
    axes.set_yscale("log")
    axes.set_title(f"{line.arm}: gaps of each stream, ms")
    axes.set_xlabel("seconds")


def _steps(axes: Axes, line: Timeline) -> None:
    starts = [step.ended - step.seconds for step in line.steps]
    widths = [step.seconds for step in line.steps]
    decodes = [step.decode_rows for step in line.steps]
    chunks = [step.prefill_tokens for step in line.steps]
    axes.bar(starts, decodes, widths, align="edge", color="tab:blue", label="decode rows")
    axes.bar(
        starts,
        chunks,
        widths,
        bottom=decodes,
        align="edge",
        color="tab:orange",
        edgecolor="white",
        linewidth=0.3,
        label="prefill tokens",
    )
    _mark_long(axes, line)
    axes.set_yscale("symlog", linthresh=16)
    axes.set_title(f"{line.arm}: tokens of each step")
    axes.set_xlabel("seconds")
    axes.legend(loc="upper right", fontsize="small")


def _mark_long(axes: Axes, line: Timeline) -> None:
    """From the long prompt's arrival to its first token."""
    if line.long_began is not None:
        axes.axvspan(line.long_came, line.long_began, color="grey", alpha=0.15)

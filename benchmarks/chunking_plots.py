"""PNG plots of a replay study; the only module that needs matplotlib (extra `bench`)."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from benchmarks.replay_view import MAKESPAN

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.replay_study import Point
    from benchmarks.replay_view import ReplayView

_ARMS = (MAKESPAN, "atom", "sglang")
_DOTS_PER_INCH = 110


def write_plots(view: ReplayView, path: Path) -> None:
    """One row for each pipeline: chunk sizes, prediction, and two timelines."""
    points = view.shown_points()
    figure = Figure(figsize=(18, 4 * len(points)), layout="constrained")
    grid = figure.subplots(len(points), 4, squeeze=False)
    for row, point in zip(grid, points, strict=True):
        _chunk_sizes(row[0], view, point)
        _prediction(row[1], view, point)
        for axes, arm in ((row[2], view.best_fixed(point)), (row[3], MAKESPAN)):
            _timeline(axes, view, point, arm)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _chunk_sizes(axes: Axes, view: ReplayView, point: Point) -> None:
    for arm in (view.best_fixed(point), *_ARMS):
        if arm in view.study.cuts[point]:
            sizes = view.sizes(point, arm)
            prefixes = list(accumulate(sizes[:-1], initial=0))
            axes.step(prefixes, sizes, where="post", label=arm, marker=".")
    axes.set_title(f"PP{point[0]}, {point[1]} tokens: chunk size over prefix")
    axes.set_xlabel("prefix, tokens")
    axes.set_ylabel("chunk, tokens")
    axes.set_ylim(bottom=0)
    axes.legend()


def _prediction(axes: Axes, view: ReplayView, point: Point) -> None:
    split = view.study.settings.splits[point[0]]
    kept = [entry for entry in view.predictions() if entry.num_layers in split]
    measured = [entry.measured for entry in kept]
    dots = axes.scatter(
        measured,
        [entry.predicted for entry in kept],
        c=[entry.prefix_tokens for entry in kept],
        s=12,
    )
    axes.axline((0.0, 0.0), slope=1.0, color="grey", linewidth=1)
    axes.set_title(f"PP{point[0]}: predicted against measured")
    axes.set_xlabel("measured, s")
    axes.set_ylabel("predicted, s")
    axes.figure.colorbar(dots, ax=axes, label="prefix, tokens")


def _timeline(axes: Axes, view: ReplayView, point: Point, arm: str) -> None:
    taken = view.replayed(point, arm)
    for stage in range(point[0]):
        boxes = [box for box in taken.intervals if box.stage == stage]
        axes.broken_barh(
            [(box.start_seconds, box.duration_seconds) for box in boxes],
            (stage - 0.4, 0.8),
            facecolors=["tab:blue" if index % 2 else "tab:cyan" for index in range(len(boxes))],
        )
    longest = view.replayed(point, view.best_fixed(point)).makespan_seconds
    axes.set_xlim(0.0, max(longest, taken.makespan_seconds))
    axes.set_title(f"PP{point[0]} {arm}: {taken.makespan_seconds:.2f} s")
    axes.set_xlabel("seconds")
    axes.set_ylabel("stage")
    axes.set_yticks(range(point[0]))
    axes.invert_yaxis()

"""Tables in plain text: what the command prints. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atom_lite.simulation.contest import Entry

MILLISECONDS_PER_SECOND = 1000.0


def render(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed, the first one to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in (head, *rows)) for index in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def contest_table(entries: Mapping[str, Entry]) -> str:
    """One row per policy; columns that say nothing about this load are left out.

    Args:
        entries: what was asked for -> the run that counts.
    """
    figures = [entry.figures for entry in entries.values()]
    best = min(figure.ttft_seconds.mean for figure in figures)
    columns: list[tuple[str, list[str]]] = [
        ("policy", [_name(text, entry) for text, entry in entries.items()]),
        ("TTFT ms", [_ms(f.ttft_seconds.mean) for f in figures]),
        ("to best", [f"{f.ttft_seconds.mean / best:.3f}" for f in figures]),
    ]
    if any(f.ttft_seconds.count > 1 for f in figures):
        columns.append(("TTFT p99", [_ms(f.ttft_seconds.p99) for f in figures]))
    if any(f.itl_seconds.count > 0 for f in figures):
        columns.append(("ITL p50", [_ms(f.itl_seconds.p50) for f in figures]))
        columns.append(("ITL p99", [_ms(f.itl_seconds.p99) for f in figures]))
        columns.append(("output tok/s", [f"{f.output_tokens_per_second:.1f}" for f in figures]))
    columns += [
        ("prompt tok/s", [f"{f.prompt_tokens_per_second:.0f}" for f in figures]),
        ("steps", [str(f.num_steps) for f in figures]),
        ("busy", [f"{f.busy_share:.1%}" for f in figures]),
        ("bubbles s", ["/".join(f"{s:.2f}" for s in f.bubble_seconds) for f in figures]),
    ]
    if any(f.num_refused for f in figures):
        columns.append(("refused", [str(f.num_refused) for f in figures]))
    head = [name for name, _ in columns]
    rows = [[cells[index] for _, cells in columns] for index in range(len(figures))]
    return render(head, rows)


def _name(text: str, entry: Entry) -> str:
    """The policy as asked for; of one tuned in hindsight also what won."""
    chosen = str(entry.policy)
    return text if text == chosen else f"{text} = {chosen.split(':', 1)[-1]}"


def _ms(seconds: float) -> str:
    return f"{seconds * MILLISECONDS_PER_SECOND:.1f}"

"""A comparison with several peers as rows, and as a page to read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.paired import describe
from benchmarks.peer_goals import goal_of
from benchmarks.ratios import Rounds, best_peer, median_of, names_of, ratio_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.visits import Visit

OURS = "atom_lite"


def rows(visits: Sequence[Visit]) -> list[dict[str, Any]]:
    """One row for each setup and figure: medians, ratios to every peer, the goal."""
    found = []
    for setup in dict.fromkeys(visit.setup for visit in visits):
        servers: dict[str, Rounds] = {}
        for visit in visits:
            if visit.setup == setup:
                figures = {measure.name: measure for measure in visit.measures}
                servers.setdefault(visit.server, {})[visit.round] = figures
        ours = servers.get(OURS, {})
        peers = {name: rounds for name, rounds in servers.items() if name != OURS}
        found += [_row(setup, name, ours, peers) for name in names_of([ours, *peers.values()])]
    return found


def _row(setup: str, name: str, ours: Rounds, peers: dict[str, Rounds]) -> dict[str, Any]:
    ratios = {peer: ratio_over(ours, rounds, name) for peer, rounds in peers.items()}
    best = best_peer(peers, name)
    mine = median_of(ours, name)
    goal = goal_of(setup, name)
    return {
        "setup": setup,
        "figure": name,
        "medians": {OURS: mine} | {peer: median_of(rounds, name) for peer, rounds in peers.items()},
        "ratios": {peer: r._asdict() for peer, r in ratios.items() if r is not None},
        "best_peer": best,
        "ratio_to_best": describe(ratios.get(best) if best else None),
        "required": _required(goal),
        "met": goal.is_met(mine, ratios.get(best) if best else None) if goal else None,
        "aim": goal.aim if goal else None,
    }


def _required(goal: Any) -> str | None:
    if goal is None:
        return None
    return f"under {goal.limit:g}" if goal.limit is not None else f"{goal.least:g}x best peer"


def markdown(document: dict[str, Any], visits: Sequence[Visit]) -> str:
    """The comparison as a page."""
    machine = document["machine"]
    lines = [
        "# atom_lite and other servers, same model, same client, same run",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        f"- Software: Python {machine['python']}, {machine['versions']}",
        f"- Model: {document['model']}; plain and budget as {document['dtype']}",
        f"- Prompts: seed {document['seed']}, scale {document['scale']}",
        f"- Run: `{document['command']}` at {document['time']}",
        "",
        "A ratio above 1 means that atom_lite is better: faster, shorter or smaller. It is the",
        "median of the ratios of the same round, with its 95 % interval from three rounds on;",
        "values are medians over the rounds. `plain`: weights expanded. `budget`: steps of at most",
        "256 tokens. `quantized`: the file's own format is kept. Aims are for AVX512-BF16.",
    ]
    for setup in dict.fromkeys(row["setup"] for row in document["rows"]):
        mine = [row for row in document["rows"] if row["setup"] == setup]
        lines += ["", f"## {setup}", "", *_table(mine), "", "Servers:", ""]
        commands = dict.fromkeys(v.command for v in visits if v.setup == setup)
        lines += [f"- `{command}`" for command in commands]
    failures = [(v, line) for v in visits for line in v.failures]
    if failures:
        lines += ["", "## What failed", ""]
        lines += [f"- round {v.round}, {v.setup}, {v.server}: {_line(f)}" for v, f in failures]
    return "\n".join(lines) + "\n"


def _table(mine: Sequence[dict[str, Any]]) -> list[str]:
    servers = list(dict.fromkeys(name for row in mine for name in row["medians"]))
    head = ["", *servers, "best peer", "ratio to it", "required", "met", "aim"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in mine:
        met = {None: "-", True: "yes", False: "no"}[row["met"]]
        cells = [
            row["figure"],
            *(_cell(row["medians"].get(name)) for name in servers),
            *(row["best_peer"] or "-", row["ratio_to_best"], row["required"] or "-", met),
            _cell(row["aim"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"

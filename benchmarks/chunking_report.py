"""What a run of `dynamic_chunking` says: one page of tables, plots as text, and a trace.

Everything is made from the JSON document, so an old one can be shown again. PNG plots are in
`chunking_plots`, which needs matplotlib; without it the text plots stand alone.
"""

from __future__ import annotations

import statistics
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from atom_lite.simulation.chrome_trace import write_chrome_trace
from benchmarks.paired import Ratio, describe
from benchmarks.replay_view import ReplayView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MAKESPAN = "makespan"
_TIMELINE_WIDTH = 96
_BAR_WIDTH = 48


def write_reports(document: dict[str, Any], output: Path) -> str:
    """Write the page, the trace and the plots beside the JSON; returns the page."""
    text = page(document)
    output.with_suffix(".md").write_text(text)
    if _is_replayed(document):
        view = ReplayView(document)
        write_chrome_trace(output.with_suffix(".trace.json"), view.timelines())
        if find_spec("matplotlib") is None:
            print("no PNG plots: matplotlib is not installed", file=sys.stderr)
        else:
            from benchmarks.chunking_plots import write_plots

            write_plots(view, output.with_suffix(".png"))
    return text


def page(document: dict[str, Any]) -> str:
    """All tables and text plots as Markdown."""
    machine = document["machine"]
    lines = [
        "# Chunk-size policies over pipeline stages",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        f"- Software: Python {machine['python']}, {machine['versions']}",
        f"- Model: {document['model']} as {document['dtype']}; prompt seed {document['seed']}",
        f"- Run: `{document['command']}`, finished after {document['time']}",
        "",
        "TTFT in seconds. A ratio is makespan's time over the other's: below 1 makespan is faster;",
        "in brackets the 95 % interval.",
    ]
    if "pairs" in document:
        lines += ["", *_pairs_section(document)]
    if _is_replayed(document):
        lines += ["", *_replay_section(document)]
    if "http" in document:
        lines += ["", *_http_section(document["http"])]
    if "load" in document:
        lines += ["", *_load_section(document["load"])]
    return "\n".join([*lines, ""])


def _is_replayed(document: dict[str, Any]) -> bool:
    """Whether there is a study that was not cut short."""
    return "results" in document.get("replay", {})


def _pairs_section(document: dict[str, Any]) -> list[str]:
    results = document["pairs"]["results"]
    rounds = len({r["round"] for r in document["pairs"]["runs"] if r["phase"] == "judge"})
    lines = [
        f"## Real PP2, {rounds} interleaved pairs",
        "",
        "The best fixed chunk was picked on runs of its own. ATOM's and SGLang's rules have",
        "makespan's fitted model and a base of a quarter of the longest prompt.",
        "",
        *_table(
            ["prompt", "best fixed", "its TTFT", "makespan", "ratio", "to atom", "to sglang"],
            [_pairs_row(result) for result in results],
        ),
    ]
    longest = results[-1]
    if "fixed-2048" in longest["makespan_over"]:
        ratio = _ratio(longest["makespan_over"]["fixed-2048"])
        lines += ["", f"Over fixed-2048 at {longest['tokens']} tokens: {ratio}."]
    if _is_replayed(document):
        lines += ["", *_agreement(results, document["replay"]["results"])]
    return lines


def _pairs_row(result: dict[str, Any]) -> list[str]:
    best, medians, ratios = (
        result[key] for key in ("best_fixed", "median_seconds", "makespan_over")
    )
    return [
        str(result["tokens"]),
        best or "-",
        _seconds(medians.get(best)),
        _seconds(medians.get(MAKESPAN)),
        _ratio(ratios.get(best)),
        _ratio(ratios.get("atom")),
        _ratio(ratios.get("sglang")),
    ]


def _agreement(pairs: Iterable[dict[str, Any]], replayed: Iterable[dict[str, Any]]) -> list[str]:
    """How far replay's PP2 is from the real one, by every arm that both have."""
    by_tokens = {result["tokens"]: result["arms"] for result in replayed if result["stages"] == 2}
    rows, ratios = [], []
    for result in pairs:
        for arm, seconds in result["median_seconds"].items():
            entry = by_tokens.get(result["tokens"], {}).get(arm)
            if entry is None or seconds is None:
                continue
            ratios.append(seconds / entry["seconds"])
            rows.append(
                [
                    str(result["tokens"]),
                    arm,
                    _seconds(seconds),
                    _seconds(entry["seconds"]),
                    f"{ratios[-1]:.3f}",
                ]
            )
    if not rows:
        return []
    middle = statistics.median(ratios)
    return [
        f"Real PP2 over PP2 by replay: median {middle:.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f}.",
        "",
        *_table(["prompt", "policy", "real", "replay", "ratio"], rows),
    ]


def _replay_section(document: dict[str, Any]) -> list[str]:
    record = document["replay"]
    view = ReplayView(document)
    lines = [
        f"## By replay, {record['rounds']} rounds, {record['clock']} time",
        "",
        "Each chunk was run for real on one core while the other core ran another stage's chunk,",
        "then the exact flow-shop recursion put them together. Stages with equally many layers",
        "share measurements; the final norm and head "
        f"({1000 * record['draw_seconds']:.1f} ms) count once, on the last stage.",
        f"Hop: {1000 * record['hop']['latency_seconds']:.2f} ms and "
        f"{1e6 * record['hop']['seconds_per_token']:.2f} us a token. Figures without an interval",
        "rest on one measurement of some chunk.",
    ]
    lines += [
        f"- PP{stages}: layers {', '.join(map(str, split))}"
        for stages, split in record["splits"].items()
    ]
    lines += ["", *_replay_ttft(record["results"]), "", *_replay_ratios(record["results"])]
    for point in view.shown_points():
        lines += ["", *_text_plots(view, point)]
    return [*lines, "", *_prediction(view)]


def _replay_ttft(results: Sequence[dict[str, Any]]) -> list[str]:
    arms = dict.fromkeys(
        arm for result in results for arm in result["arms"] if not arm.startswith("atom-")
    )
    rows = []
    for result in results:
        found = {arm: entry["seconds"] for arm, entry in result["arms"].items()}
        tuned = {arm: seconds for arm, seconds in found.items() if arm.startswith("atom-")}
        best = min(tuned, key=tuned.__getitem__, default=None)
        rows.append(
            [
                f"PP{result['stages']} {result['tokens']}",
                *(_seconds(found.get(arm)) for arm in arms),
                "-" if best is None else f"{tuned[best]:.3f} ({best.removeprefix('atom-')})",
            ]
        )
    return _table(["", *arms, "atom tuned (base-smooth)"], rows)


def _replay_ratios(results: Sequence[dict[str, Any]]) -> list[str]:
    names = ("best fixed", "atom tuned in hindsight", "atom", "sglang", "fixed-2048")
    rows = [
        [
            f"PP{result['stages']} {result['tokens']}",
            *(_ratio(result["makespan_over"].get(name)) for name in names),
        ]
        for result in results
    ]
    titles = ("best fixed", "atom, tuned in hindsight", "atom, its recipe", *names[3:])
    return _table(["makespan over", *titles], rows)


def _text_plots(view: ReplayView, point: tuple[int, int]) -> list[str]:
    """Chunk size over prefix, and the stages' timeline, of makespan and the best fixed chunk."""
    stages, tokens = point
    lines = [f"### PP{stages}, {tokens} tokens", "", "```", "prefix  chunk"]
    sizes = view.sizes(point, MAKESPAN)
    most, prefix = max(sizes), 0
    for size in sizes:
        lines.append(f"{prefix:6d}  {size:5d} {'#' * max(1, round(size / most * _BAR_WIDTH))}")
        prefix += size
    for arm in (view.best_fixed(point), MAKESPAN):
        taken = view.replayed(point, arm)
        lines += ["", f"{arm}: {taken.makespan_seconds:.3f} s"]
        scale = _TIMELINE_WIDTH / view.replayed(point, view.best_fixed(point)).makespan_seconds
        for stage in range(stages):
            row = [" "] * (round(taken.makespan_seconds * scale) + 1)
            boxes = [box for box in taken.intervals if box.stage == stage]
            for index, box in enumerate(boxes):
                begin, end = round(box.start_seconds * scale), round(box.end_seconds * scale)
                row[begin:end] = ("#", "=")[index % 2] * (end - begin)
            lines.append(f"stage {stage} |{''.join(row).rstrip()}")
    return [*lines, "```"]


def _prediction(view: ReplayView) -> list[str]:
    """How well the fitted models predict what was measured, by chunk size."""
    rows = []
    by_size: dict[int, list[float]] = {}
    for point in view.predictions():
        bucket = 1 << (point.new_tokens - 1).bit_length()
        by_size.setdefault(bucket, []).append(point.predicted / point.measured - 1.0)
    for bucket, errors in sorted(by_size.items()):
        ordered = sorted(errors)
        typical = statistics.median(abs(error) for error in errors)
        rows.append(
            [
                f"up to {bucket}",
                str(len(errors)),
                f"{statistics.median(errors):+.1%}",
                f"{typical:.1%}",
                f"{ordered[0]:+.1%} .. {ordered[-1]:+.1%}",
            ]
        )
    titles = ["chunk tokens", "chunks", "median error", "median size of error", "range"]
    return ["Predicted against measured chunk times:", "", *_table(titles, rows)]


def _http_section(record: dict[str, Any]) -> list[str]:
    medians = record["median_ttft_seconds"]
    visits = len({run["visit"] for run in record["runs"]})
    lengths = sorted({int(tokens) for row in medians.values() for tokens in row})
    rows = []
    for arm, row in medians.items():
        by_tokens = {int(tokens): seconds for tokens, seconds in row.items()}
        rows.append([arm, *(_seconds(by_tokens.get(tokens)) for tokens in lengths)])
    return [
        f"## Over HTTP, one prompt at a time, {visits} visits",
        "",
        "PP1 has both cores in its one stage; a stage of PP2 has one core. Two one-core stages",
        "cannot beat one two-core stage: a pipeline pays where one device cannot hold the model,",
        "or where tensor parallelism scales worse than stages do.",
        "",
        *_table(["TTFT of", *map(str, lengths)], rows),
    ]


def _load_section(record: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{entry['prompts_at_once']} x {entry['tokens']}",
            entry["best_fixed"],
            f"{entry['best_fixed_tokens_per_second']:.0f}",
            f"{entry['makespan_tokens_per_second']:.0f}",
            _ratio(entry["throughput_ratio"]),
        ]
        for entry in record["throughput"]
    ]
    titles = ["prompts", "best fixed", "its tokens/s", "makespan's", "throughput ratio"]
    lines = ["## Under load, real PP2", "", "Here a ratio above 1 means makespan is faster."]
    lines += ["", *_table(titles, rows)]
    beside = record["interference"]
    if beside is not None:
        gaps = ", ".join(
            f"{arm} {1000 * seconds:.0f} ms (prefill {beside['prefill_seconds'][arm]:.2f} s)"
            for arm, seconds in beside["gap_p99_seconds"].items()
        )
        lines += [
            "",
            f"Gaps of 4 streams during the longest prompt's prefill, 99th percentile: {gaps}; "
            f"ratio {_ratio(beside['gap_ratio'])}; decode-only control "
            f"{1000 * beside['control_p99_seconds']:.0f} ms.",
        ]
    return lines


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(titles)} |",
        f"|---|{'---:|' * (len(titles) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ratio(value: dict[str, Any] | None) -> str:
    return describe(None if value is None else Ratio(**value))

"""What the field says of its schedulers, checked in the simulator: a row for each claim.

    python -m benchmarks.scheduling_claims

Writes OUTPUT.json and OUTPUT.md; the rows that need the engine come from `benchmarks.interference`
and are kept. Exit code 0 whatever holds; 2: the file is there and is none of ours.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from atom_lite.errors import AtomLiteError
from benchmarks import simulated_claims
from benchmarks.claims import merge_claims
from benchmarks.stream_client import LoadError

REQUESTS = 100


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default = Path("benchmarks/results/scheduling-claims")
    parser.add_argument("--output", type=Path, default=default, help="path without suffix")
    parser.add_argument("--rows", default="", help="only these, such as 6,9,a")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each trace")
    options = parser.parse_args()
    count = options.requests
    command = f"python -m benchmarks.scheduling_claims --requests {count}"
    wanted = tuple(f"{word}-" for word in options.rows.split(",") if word)
    rows = {
        "6-chunks-reread-kv": partial(simulated_claims.rereads, command),
        "9-crossover": partial(simulated_claims.crossover, command),
        "b-naive-hybrid": partial(simulated_claims.naive_hybrid, command),
        "7-bubbles-pp4-pp8": partial(simulated_claims.bubbles, command, count),
        "8-deadline-in-simulation": partial(simulated_claims.deadline, command, count),
        "c-varying-trace": partial(simulated_claims.varying_trace, command, 2 * count),
        "a-capacity": partial(simulated_claims.capacity, command, count),
    }
    text = ""
    try:
        for name, row in rows.items():
            if wanted and not name.startswith(wanted):
                continue
            print(f"{name}: begins", file=sys.stderr, flush=True)
            claim = row()
            print(f"  {claim.found}\n  {claim.verdict}", file=sys.stderr, flush=True)
            text = merge_claims(options.output, [claim])
    except (LoadError, AtomLiteError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(text)


if __name__ == "__main__":
    main()

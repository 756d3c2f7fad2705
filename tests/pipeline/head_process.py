"""A head that can be killed or stopped: `python -m tests.pipeline.head_process SECONDS LINK`.

SECONDS is when a peer counts as hung, LINK is `gloo` or `shared-memory`. Prints the process ids of
its two stages, then runs one step for each line on standard input and prints `ok`. On a
PipelineError it ends with code 1.
"""

from __future__ import annotations

import os
import sys

from atom_lite.parallel.link import LinkTiming, PipelineError
from tests.pipeline.processes import Nursery, Pipeline
from tests.pipeline.stage_process import Step


def main() -> int:
    hang_seconds = float(sys.argv[1])
    timing = LinkTiming(heartbeat_seconds=hang_seconds / 4, hang_seconds=hang_seconds)
    pipeline = Pipeline(Nursery(is_one_host=sys.argv[2] == "shared-memory"), 3, timing=timing)
    print(*(process.pid for process in pipeline.stages.values()), flush=True)
    try:
        for step_id, _ in enumerate(sys.stdin):
            step = Step(shape=(4, 8), seed=step_id)
            pipeline.start(step_id, step)
            assert pipeline.wait_for_results(1) == [(step_id, pipeline.expected(step))]
            print("ok", flush=True)
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if set(pipeline.close().values()) == {0} else 2


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)

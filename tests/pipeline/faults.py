"""Plants a fault in one stage's forward pass: for the entry points in this directory only.

The environment says which, as it reaches every process of a run:

    ATOM_LITE_TEST_FAULT = {"layer": 1, "kind": "hang", "step_id": 3}

The stage whose first layer is `layer` hangs for ever, raises, refuses or dies at that step or the
first after it, before it runs its layers; at step LOADING it does so while it loads. Its other
threads live on, as with a real deadlock.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from atom_lite.errors import ConfigError
from atom_lite.worker import runner as runner_module
from atom_lite.worker.runner import Runner

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan

VARIABLE = "ATOM_LITE_TEST_FAULT"
LOADING = -1


def fault(*, layer: int, kind: str, step_id: int) -> str:
    """The variable's value."""
    return json.dumps({"layer": layer, "kind": kind, "step_id": step_id})


def plant_fault() -> None:
    """Make this process's runner obey the variable."""
    wanted = json.loads(os.environ[VARIABLE])
    run_stage = Runner.run_stage

    def faulty(self: Runner, plan: StepPlan, *args: Any) -> Any:
        if self.layers.first == wanted["layer"] and plan.step_id >= wanted["step_id"]:
            _fail(wanted["kind"])
        return run_stage(self, plan, *args)

    Runner.run_stage = faulty  # type: ignore[method-assign, assignment]
    if wanted["step_id"] == LOADING:
        _plant_while_loading(wanted)


def _plant_while_loading(wanted: dict[str, Any]) -> None:
    load_stage = runner_module.load_stage

    def faulty(*args: Any, **options: Any) -> Any:
        parts = load_stage(*args, **options)
        if parts.layers.first == wanted["layer"]:
            _fail(wanted["kind"])
        return parts

    runner_module.load_stage = faulty


def _fail(kind: str) -> None:
    match kind:
        case "hang":
            threading.Event().wait()
        case "raise":
            raise ValueError("planted")
        case "refuse":
            raise ConfigError("planted")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise AssertionError(kind)

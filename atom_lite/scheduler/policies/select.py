"""The batching policy that the limits name. Pure; runs in the head process, once at start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.scheduler.policies.orca import Orca
from atom_lite.scheduler.policies.prefill_first import PrefillFirst
from atom_lite.scheduler.policies.request_level import RequestLevel
from atom_lite.scheduler.policies.slo import Slo
from atom_lite.scheduler.policies.stall_free import StallFree
from atom_lite.scheduler.policies.unified import Unified

if TYPE_CHECKING:
    from atom_lite.scheduler.forecast import Forecast
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.scheduler.policies.policy import BatchingPolicy


def make_policy(limits: SchedulerLimits, forecast: Forecast | None = None) -> BatchingPolicy:
    """A fresh instance, which lives as long as its scheduler; only `slo` needs the forecast."""
    match limits.batching_policy:
        case "request-level":
            return RequestLevel()
        case "orca":
            return Orca()
        case "prefill-first":
            return PrefillFirst()
        case "unified":
            return Unified()
        case "stall-free":
            return StallFree()
        case "slo":
            assert forecast is not None
            return Slo(limits, forecast)

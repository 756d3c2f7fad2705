"""Which CPUs each stage of one host runs on.

Two stages that share cores slow each other down in bursts (an OpenMP team waits for its slowest
thread), so each gets CPUs of its own: whole physical cores, side by side, so that a share seldom
spans two sockets. Called by each process of the engine for itself, before its model is loaded;
`split_cpus` is pure, so all of them compute the same shares.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SYSFS_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """A CPU as the kernel schedules on it; ordered so that neighbours share a core or a socket."""

    package: int
    core: int
    number: int

    @property
    def physical_core(self) -> tuple[int, int]:
        """Equal for the hyper-threads of one core."""
        return self.package, self.core


def usable_cpus(sysfs: Path = _SYSFS_CPUS) -> list[Cpu]:
    """The CPUs that this process may use, in order.

    Where the kernel does not say which CPUs form a core, each counts as one.
    """
    if hasattr(os, "sched_getaffinity"):
        numbers = os.sched_getaffinity(0)
    else:  # macOS has no affinity
        numbers = set(range(os.cpu_count() or 1))
    return sorted(_read_cpu(sysfs, number) for number in numbers)


def split_cpus(cpus: Sequence[Cpu], num_shares: int) -> list[tuple[Cpu, ...]]:
    """Divide CPUs into shares as equal as possible; earlier shares get what is over.

    Physical cores stay whole while there are enough of them, then hyper-threads are dealt out; with
    fewer CPUs than shares, several shares have the same CPU.
    """
    assert cpus
    assert num_shares >= 1
    ordered = sorted(cpus)
    if len(ordered) < num_shares:
        return [(ordered[share * len(ordered) // num_shares],) for share in range(num_shares)]
    cores = [
        tuple(siblings) for _, siblings in itertools.groupby(ordered, lambda cpu: cpu.physical_core)
    ]
    if len(cores) < num_shares:
        cores = [(cpu,) for cpu in ordered]
    size, over = divmod(len(cores), num_shares)
    shares: list[tuple[Cpu, ...]] = []
    start = 0
    for share in range(num_shares):
        end = start + size + (share < over)
        shares.append(tuple(itertools.chain.from_iterable(cores[start:end])))
        start = end
    return shares


def num_physical_cores(share: Sequence[Cpu]) -> int:
    """How many compute threads a share feeds: a second hyper-thread adds nothing to a GEMM."""
    return len({cpu.physical_core for cpu in share})


def pin_process(share: Sequence[Cpu], *, num_threads: int | None = None) -> None:
    """Keep this process on its share, and torch's thread teams at its size.

    All threads that exist are moved; those made later inherit.

    Args:
        share: from `split_cpus`.
        num_threads: compute threads; None is one for each physical core of the share.
    """
    if hasattr(os, "sched_setaffinity"):
        numbers = {cpu.number for cpu in share}
        for task in Path("/proc/self/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), numbers)
            except ProcessLookupError:  # a thread that ended meanwhile
                continue
    # here, so that a process without torch (the launcher) can use the rest of this module
    import torch

    torch.set_num_threads(num_threads or num_physical_cores(share))


def _read_cpu(sysfs: Path, number: int) -> Cpu:
    topology = sysfs / f"cpu{number}" / "topology"
    try:
        package = int((topology / "physical_package_id").read_text(encoding="ascii"))
        core = int((topology / "core_id").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Cpu(package=0, core=number, number=number)
    return Cpu(package=package, core=core, number=number)

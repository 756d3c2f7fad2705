"""The stage processes that are started on this host: by the head, or by the launcher of a node.

Each gets its `StageSpec` on standard input, which then stays open as its lifeline: it ends when the
process that started it ends. No torch here: the launcher of a node has no use for it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from atom_lite.engine.stage_spec import StageSpec
from atom_lite.parallel.affinity import Cpu, split_cpus, usable_cpus
from atom_lite.parallel.link import PipelineError

if TYPE_CHECKING:
    from atom_lite.config import Config
    from atom_lite.parallel.placement import Placement

STAGE_MODULE = "atom_lite.engine.stage_process"
_EXIT_SECONDS = 3.0


def local_shares(placement: Placement) -> list[tuple[Cpu, ...]]:
    """The cores of each stage on this host, in their order."""
    return split_cpus(usable_cpus(), placement.num_local)


class Followers:
    """The followers that `placement` says this process starts.

    Args:
        config: passed on to each.
        placement: with the port at which the head's store listens.
        shares: the cores of each stage on this host; empty pins nothing.
        has_own_flags: `config` is of this node and not the head's.
    """

    def __init__(
        self,
        config: Config,
        placement: Placement,
        shares: list[tuple[Cpu, ...]],
        *,
        has_own_flags: bool = False,
    ) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in placement.started_ranks:
            spec = StageSpec(
                config=config,
                rank=rank,
                placement=placement,
                cpus=shares[placement.local_index(rank)] if shares else (),
                has_own_flags=has_own_flags,
            )
            process = subprocess.Popen(
                [sys.executable, "-m", STAGE_MODULE], stdin=subprocess.PIPE, start_new_session=True
            )
            self._processes[rank] = process
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(spec) + b"\n")
            process.stdin.flush()

    def check(self) -> None:
        """Raise PipelineError when one of them has ended."""
        for rank, process in self._processes.items():
            code = process.poll()
            if code is not None:
                raise PipelineError(f"the process of stage {rank} ended with exit code {code}")

    def exit_codes(self) -> dict[int, int | None]:
        """By rank; None for those that run."""
        return {rank: process.poll() for rank, process in self._processes.items()}

    def end(self, *, wait_seconds: float = _EXIT_SECONDS) -> None:
        """Wait for them to end, and kill what does not (a stopped one never would)."""
        deadline = time.monotonic() + wait_seconds
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._let_go(process)

    def stop(self) -> None:
        """End them now: each leaves when its lifeline closes."""
        for process in self._processes.values():
            self._let_go(process)
        self.end()

    @staticmethod
    def _let_go(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()

"""Which stages run on which host: `--nnodes` and its companions, torchrun's variables, or neither.

    --nnodes 2 --pipeline-parallel-size 4            torchrun --nproc-per-node 4 (or on more nodes)

    node 0: frontend, head = stage 0, stage 1        rank 0: frontend, head = stage 0
    node 1: stages 2 and 3                           rank r: stage r

Stages fill one node after the other, so that only one hop leaves a node. With `--nnodes` the first
process of a node starts its stages; torchrun starts each rank itself. Pure: no torch, no I/O, and
the environment is an argument. Every process of a run uses it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError
from atom_lite.parallel.rendezvous import Rendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom_lite.config import ParallelConfig

_TORCHRUN_SIGNS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# No transfer may fail for its age before the step that it belongs to is called stuck.
_LEAST_GROUP_SECONDS = 1800.0
_STEPS_BEYOND_STAGES = 2  # one that runs ahead, and one to spare
_GROUP_SECONDS_OF_NO_LIMIT = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the stages run, as one host sees it.

    Args:
        num_stages: of the whole run.
        first_local: the first stage on this host.
        num_local: stages on this host.
        rank: of this process; with `--nnodes`, of the first stage that it starts.
        rendezvous: where all stages meet.
        num_nodes: hosts of the run, as the flags say; 1 under torchrun, which counts them itself.
        is_torchrun: whether each rank is started by torchrun, and none by us.
    """

    num_stages: int
    first_local: int
    num_local: int
    rank: int
    rendezvous: Rendezvous
    num_nodes: int = 1
    is_torchrun: bool = False

    @property
    def has_head(self) -> bool:
        """Whether this process starts the frontend and the head."""
        return self.rank == 0

    @property
    def started_ranks(self) -> range:
        """The followers that this process (or the head that it starts) starts."""
        if self.is_torchrun:
            return range(0)
        return range(max(1, self.first_local), self.first_local + self.num_local)

    @property
    def foreign_ranks(self) -> list[int]:
        """The followers that the head does not start: with flags and files of their own."""
        return [rank for rank in range(1, self.num_stages) if rank not in self.started_ranks]

    def with_port(self, port: int) -> Placement:
        """The same, once the head knows at which port its store listens."""
        return replace(self, rendezvous=replace(self.rendezvous, port=port))

    def local_index(self, rank: int) -> int:
        """Which of this host's stages a rank is: chooses its device and its share of the cores."""
        assert self.first_local <= rank < self.first_local + self.num_local
        return rank - self.first_local


def one_host(num_stages: int, parallel: ParallelConfig) -> Placement:
    """All stages here, started by the head, which takes a free port."""
    return Placement(
        num_stages=num_stages,
        first_local=0,
        num_local=num_stages,
        rank=0,
        rendezvous=replace(
            _rendezvous(parallel, num_stages, "127.0.0.1", 0),
            is_one_host=sys.platform == "linux",
        ),
    )


def find_placement(parallel: ParallelConfig, environ: Mapping[str, str]) -> Placement | None:
    """What flags or torchrun say of several hosts or processes; None where they say nothing.

    Args:
        parallel: the flags.
        environ: this process's environment.

    Raises:
        ConfigError: the numbers do not fit together.
    """
    torchrun = all(environ.get(name) for name in _TORCHRUN_SIGNS)
    if torchrun and _number(environ, "WORLD_SIZE") > 1:
        return _under_torchrun(parallel, environ)
    if parallel.node_rank >= parallel.nnodes:
        raise ConfigError(
            f"--node-rank {parallel.node_rank}: must be below --nnodes ({parallel.nnodes})"
        )
    return _of_nodes(parallel) if parallel.nnodes > 1 else None


def _of_nodes(parallel: ParallelConfig) -> Placement:
    nodes, stages = parallel.nnodes, parallel.pipeline_parallel_size
    if parallel.master_addr is None:
        raise ConfigError(f"--nnodes {nodes}: needs --master-addr, an address of node 0")
    if stages is None:
        raise ConfigError(f"--nnodes {nodes}: needs --pipeline-parallel-size, a multiple of it")
    if stages % nodes:
        raise ConfigError(
            f"--pipeline-parallel-size {stages}: cannot be divided evenly over "
            f"--nnodes {nodes} (each node runs as many stages)"
        )
    num_local = stages // nodes
    return Placement(
        num_stages=stages,
        first_local=parallel.node_rank * num_local,
        num_local=num_local,
        rank=parallel.node_rank * num_local,
        rendezvous=_rendezvous(parallel, stages, parallel.master_addr, parallel.master_port),
        num_nodes=nodes,
    )


def _under_torchrun(parallel: ParallelConfig, environ: Mapping[str, str]) -> Placement:
    if parallel.nnodes > 1:
        raise ConfigError(
            f"--nnodes {parallel.nnodes}: torchrun (RANK and WORLD_SIZE are set) says which node "
            "this is; use one or the other"
        )
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank = _number(environ, "LOCAL_RANK")
    stages = parallel.pipeline_parallel_size
    if stages is not None and stages != world_size:
        raise ConfigError(
            f"--pipeline-parallel-size {stages}: torchrun started WORLD_SIZE {world_size} "
            "processes, and each is one stage"
        )
    agent_holds_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Placement(
        num_stages=world_size,
        first_local=rank - local_rank,
        num_local=_number(environ, "LOCAL_WORLD_SIZE"),
        rank=rank,
        rendezvous=_rendezvous(
            parallel,
            world_size,
            environ["MASTER_ADDR"],
            _number(environ, "MASTER_PORT"),
            hosts_store=not agent_holds_store,
            prefix=f"atom_lite/{run}/{restart}",
        ),
        is_torchrun=True,
    )


def _rendezvous(
    parallel: ParallelConfig,
    num_stages: int,
    address: str,
    port: int,
    *,
    hosts_store: bool = True,
    prefix: str = "atom_lite",
) -> Rendezvous:
    # A receive is posted when its plan comes, behind every step that is in flight then.
    longest = (num_stages + _STEPS_BEYOND_STAGES) * parallel.step_timeout_seconds
    return Rendezvous(
        address=address,
        port=port,
        startup_seconds=parallel.startup_timeout_seconds,
        group_seconds=max(_LEAST_GROUP_SECONDS, longest) if longest else _GROUP_SECONDS_OF_NO_LIMIT,
        hosts_store=hosts_store,
        prefix=prefix,
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise ConfigError(
            f"{name}={text}: RANK and WORLD_SIZE are set as torchrun does, so this must be a number"
        ) from None

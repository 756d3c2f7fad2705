"""What a follower stage is told at its start. No torch: a node's launcher makes it too."""

from __future__ import annotations

from dataclasses import dataclass

from atom_lite.config import Config
from atom_lite.parallel.affinity import Cpu
from atom_lite.parallel.placement import Placement
from atom_lite.parallel.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One line of JSON on the stage's standard input."""

    config: Config
    rank: int
    placement: Placement
    cpus: tuple[Cpu, ...] = ()  # this stage's share of the host's cores; empty: all
    # Whether `config` comes from flags of its own, which may differ from the head's.
    has_own_flags: bool = False

    @property
    def topology(self) -> Topology:
        """Its place among all stages."""
        return Topology(num_stages=self.placement.num_stages, rank=self.rank)

"""Who is who among the ranks of one model: stages in a row, tensor-parallel ranks in each.

    rank = stage * tensor_parallel_size + tp_rank

                  stage 0     stage 1     stage 2
    tp_rank 0     rank 0  ->  rank 2  ->  rank 4     rank 0 is the head, rank 4 returns the results
    tp_rank 1     rank 1  ->  rank 3  ->  rank 5

The ranks of one stage are neighbours, so that a launcher which fills one host after the other
keeps tensor parallelism inside a host. Pure numbers: no torch, no I/O. Every process uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def name_stages(stages: Sequence[int]) -> str:
    """Stages as log lines name them: `stage 1`, `stages 2, 3`."""
    numbers = ", ".join(map(str, stages))
    return f"stage {numbers}" if len(stages) == 1 else f"stages {numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One rank's place; equal in all processes but for `rank`.

    Raises:
        ConfigError: the numbers do not fit together (they come from flags or from torchrun).
    """

    num_stages: int
    rank: int
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name, value in (
            ("pipeline parallel size", self.num_stages),
            ("tensor parallel size", self.tensor_parallel_size),
        ):
            if value < 1:
                raise ConfigError(f"{name} {value} must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} is not one of 0..{self.world_size - 1} "
                f"({self.num_stages} stages x {self.tensor_parallel_size} ranks)"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return self.num_stages * self.tensor_parallel_size

    @property
    def stage(self) -> int:
        """Which layers this rank runs: 0 is the first."""
        return self.rank // self.tensor_parallel_size

    @property
    def tp_rank(self) -> int:
        """Which share of its stage's layers this rank holds."""
        return self.rank % self.tensor_parallel_size

    @property
    def head_rank(self) -> int:
        """The rank that schedules."""
        return 0

    @property
    def result_rank(self) -> int:
        """The rank that returns results: TP rank 0 of the last stage."""
        return (self.num_stages - 1) * self.tensor_parallel_size

    @property
    def is_head(self) -> bool:
        """Whether this rank schedules."""
        return self.rank == self.head_rank

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank embeds token ids."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank's stage samples."""
        return self.stage == self.num_stages - 1

    @property
    def returns_results(self) -> bool:
        """Whether this rank sends results to the head."""
        return self.rank == self.result_rank

    @property
    def middle_stages(self) -> range:
        """The stages between the first and the last: those that send their times apart."""
        return range(1, self.num_stages - 1)

    @property
    def reports_times(self) -> bool:
        """Whether this rank tells the head how long its part of a step took."""
        return self.stage in self.middle_stages and self.tp_rank == 0

    @property
    def previous_rank(self) -> int | None:
        """Where this rank's hidden states come from; None in the first stage."""
        return None if self.is_first_stage else self.rank - self.tensor_parallel_size

    @property
    def next_rank(self) -> int | None:
        """Where this rank's hidden states go; None in the last stage."""
        return None if self.is_last_stage else self.rank + self.tensor_parallel_size

    @property
    def follower_ranks(self) -> tuple[int, ...]:
        """Every rank but the head: those that receive plans."""
        return tuple(range(1, self.world_size))

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The ranks of this rank's stage, itself included: its tensor-parallel group."""
        first = self.stage * self.tensor_parallel_size
        return tuple(range(first, first + self.tensor_parallel_size))

    def at(self, rank: int) -> Topology:
        """The place of another rank of the same run."""
        return replace(self, rank=rank)

    @property
    def name(self) -> str:
        """This rank as log lines and errors name it, as `stage 1` or `stage 1 (TP rank 3)`."""
        name = f"stage {self.stage}"
        return name if self.tensor_parallel_size == 1 else f"{name} (TP rank {self.tp_rank})"

    def describe(self, rank: int) -> str:
        """The `name` of another rank."""
        return self.at(rank).name

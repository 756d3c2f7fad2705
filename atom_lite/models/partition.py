"""Which layers each pipeline stage holds. Pure numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from atom_lite.models.spec import ModelSpec

# The output head sees only the rows that draw a token, a few beside hundreds of prompt tokens, so
# it costs the reading of its weights. Reading a matrix takes about as long as multiplying this many
# rows by it (CPU: 25 GB/s of float32 against 140 GFLOP/s); prefill is cut for chunks of that size.
_ROWS_PER_READ = 11
_CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Layers [first, end) of a model of `num_layers`."""

    first: int
    end: int
    num_layers: int

    @property
    def is_first(self) -> bool:
        """Whether the stage embeds token ids."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage has the final norm and the output head."""
        return self.end == self.num_layers

    @property
    def count(self) -> int:
        """Number of layers."""
        return self.end - self.first


def whole_model(spec: ModelSpec) -> StageLayers:
    """The one stage that has everything."""
    return StageLayers(0, spec.num_layers, spec.num_layers)


def partition_layers(
    spec: ModelSpec, num_stages: int, partition: str | None = None
) -> list[StageLayers]:
    """Cut the model into stages of equal prefill time, or as the operator says.

    Args:
        spec: the model.
        num_stages: at least 1.
        partition: `--pipeline-layer-partition`, such as "15,15,15,16"; None for the even cut.

    Raises:
        ConfigError: more stages than layers, or numbers that do not add up.
    """
    if num_stages > spec.num_layers:
        raise ConfigError(
            f"--pipeline-parallel-size {num_stages}: more than the model's {spec.num_layers} layers"
        )
    if partition is None:
        counts = _even_counts(spec.num_layers, num_stages, _head_layers(spec))
    else:
        counts = _explicit_counts(spec.num_layers, num_stages, partition)
    stages, first = [], 0
    for count in counts:
        stages.append(StageLayers(first, first + count, spec.num_layers))
        first += count
    return stages


def _explicit_counts(num_layers: int, num_stages: int, partition: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in partition.split(","))
    except ValueError:
        counts = ()
    if len(counts) != num_stages or sum(counts) != num_layers or min(counts) < 1:
        raise ConfigError(
            f"--pipeline-layer-partition {partition}: needs {num_stages} numbers of at least 1 "
            f"that add up to the model's {num_layers} layers"
        )
    return counts


def _head_layers(spec: ModelSpec) -> float:
    """The head's cost in a prefill step, counted in layers."""
    attention = spec.head_size * (2 * spec.num_heads + 2 * spec.num_kv_heads)
    layer_weights = spec.hidden_size * (attention + 3 * spec.intermediate_size)
    head_weights = spec.hidden_size * spec.vocab_size
    return head_weights * _ROWS_PER_READ / (layer_weights * _CHUNK_ROWS)


def _even_counts(num_layers: int, num_stages: int, head_layers: float) -> tuple[int, ...]:
    """Layers of each stage so that the heaviest stage, the head included, is as light as it can be.

    Every stage but the last gets the same share, rounded; what rounding leaves goes to early
    stages, which start first.
    """
    share = (num_layers + head_layers) / num_stages
    last = min(max(1, round(share - head_layers)), num_layers - num_stages + 1)
    if num_stages == 1:
        return (num_layers,)
    size, over = divmod(num_layers - last, num_stages - 1)
    return (*(size + (stage < over) for stage in range(num_stages - 1)), last)

"""What all stages of a run must agree on, and how a node with other flags is refused.

Nodes are started by separate commands, so their flags can differ, and stages of two models would
compute nonsense without an error. Two checks, both through the store where the stages meet:

    before anything connects   the flags that decide what a stage computes; the head's are put
                               there, and a stage that has others says so there and ends
    once stage 0 is loaded     what the flags led to (dtype, layers of each stage, sizes), with the
                               number of KV blocks, which followers take from the head

A model may lie in another directory on each node, so of a path only the last part is compared.
Stages that the head starts itself get its config and are not asked.
"""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from atom_lite import __version__
from atom_lite.errors import ConfigError
from atom_lite.parallel.link import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import Store  # type: ignore[attr-defined]

    from atom_lite.config import Config
    from atom_lite.parallel.topology import Topology
    from atom_lite.worker.runner import RunnerInfo

_FLAGS_KEY = "head_flags"
_FACTS_KEY = "head_facts"
_REFUSED_KEY = "refused"
_UNUSABLE_KEY = "unusable"
_LOADED_KEY = "loaded"
_READY_KEY = "ready"
_HEAD_GONE = "the head is gone while the stages start"
_POLL_SECONDS = 0.02
_FACTS = (
    "architecture",
    "dtype",
    "activation_dtype",
    "quantization",
    "layers_per_stage",
    "vocab_size",
    "hidden_size",
    "max_model_len",
    "num_blocks",
)

Terms = dict[str, str]


def flags_of(config: Config) -> Terms:
    """The settings that decide what a stage computes."""
    model, cache, parallel = config.model, config.cache, config.parallel
    name = None if model.model is None else PurePath(model.model).name
    settings = {
        "the version of atom_lite": __version__,
        "--model": name,
        "--revision": model.revision,
        "--dtype": model.dtype,
        "--quantization": model.quantization,
        "--load-format": model.load_format,
        "--device": model.device,
        "--seed": model.seed,
        "--max-model-len": model.max_model_len,
        "--block-size": cache.block_size,
        "--kv-cache-dtype": cache.kv_cache_dtype,
        "--max-num-seqs": config.scheduler.max_num_seqs,
        "--pipeline-parallel-size": parallel.pipeline_parallel_size,
        "--pipeline-layer-partition": parallel.pipeline_layer_partition,
    }
    return {key: "not given" if value is None else str(value) for key, value in settings.items()}


def facts_of(info: RunnerInfo) -> Terms:
    """What the flags led to."""
    return {name: str(getattr(info, name)) for name in _FACTS}


def difference(here: Terms, head: Terms) -> str | None:
    """Where another node differs from the head's, for the operator; None if it does not."""
    differing = [
        f"{key} is {here.get(key)} instead of the head's {value}"
        for key, value in head.items()
        if here.get(key) != value
    ]
    return "; ".join(differing) or None


class HeadTerms:
    """The head's side.

    Args:
        store: where all meet; keys are put under the run's prefix.
        topology: the head's.
    """

    def __init__(self, store: Store, topology: Topology) -> None:
        self._store = store
        self._topology = topology
        self._others_loaded_at: float | None = None

    def publish_flags(self, config: Config) -> None:
        """Let the other nodes compare."""
        self._store.set(_FLAGS_KEY, msgspec.json.encode(flags_of(config)).decode())

    def publish_facts(self, info: RunnerInfo) -> None:
        """Let the others compare, and take the number of blocks."""
        self._store.set(_FACTS_KEY, msgspec.json.encode(facts_of(info)).decode())

    def check_refusals(self, ranks: Sequence[int]) -> None:
        """Raise ConfigError if one of these stages has other flags."""
        for rank in ranks:
            key = f"{_REFUSED_KEY}/{rank}"
            if self._store.check([key]):
                reason = self._store.get(key).decode()
                name = self._topology.describe(rank)
                raise ConfigError(f"{name} was started with other settings: {reason}")

    def check_loads(self) -> None:
        """Raise ConfigError if a stage has found its flags or files of no use."""
        for rank in self._topology.follower_ranks:
            key = f"{_UNUSABLE_KEY}/{rank}"
            if self._store.check([key]):
                raise ConfigError(
                    f"{self._topology.describe(rank)}: {self._store.get(key).decode()}"
                )

    def check_own_load(self, patience_seconds: float) -> None:
        """Notice that stage 0 is stuck while it loads: all others have loaded long ago.

        The other half of `wait_until_ready`, for the same reason.

        Args:
            patience_seconds: how much longer stage 0 may take.

        Raises:
            PipelineError: it takes longer.
        """
        now = time.monotonic()
        if self._others_loaded_at is None:
            ranks = self._topology.follower_ranks
            if self._store.check([f"{_LOADED_KEY}/{rank}" for rank in ranks]):
                self._others_loaded_at = now
        elif now - self._others_loaded_at > patience_seconds:
            raise PipelineError(_stuck("stage 0", patience_seconds, "all other stages"))

    def wait_until_ready(self, patience_seconds: float, check: Callable[[], None]) -> None:
        """Wait until every follower has loaded its layers; stage 0 has.

        All have begun at about the same time, and have about as much to load. So a follower that
        needs that much longer than stage 0 is stuck, though its process lives and answers.

        Args:
            patience_seconds: how much longer.
            check: called every few milliseconds; what it raises ends the wait.

        Raises:
            PipelineError: a follower is stuck.
        """
        deadline = time.monotonic() + patience_seconds
        missing = list(self._topology.follower_ranks)
        while missing := [r for r in missing if not self._store.check([f"{_READY_KEY}/{r}"])]:
            check()
            if time.monotonic() > deadline:
                names = ", ".join(self._topology.describe(rank) for rank in missing)
                raise PipelineError(_stuck(names, patience_seconds, "stage 0"))
            time.sleep(_POLL_SECONDS)


class FollowerTerms:
    """A follower's side.

    Args:
        store: see HeadTerms.
        topology: the follower's.
        startup_seconds: most that it waits for the head's flags.
    """

    def __init__(self, store: Store, topology: Topology, startup_seconds: float) -> None:
        self._store = store
        self._topology = topology
        self._startup_seconds = startup_seconds

    def check_flags(self, config: Config) -> None:
        """Wait for the head's flags and compare.

        Raises:
            ConfigError: they differ; the head is told.
            PipelineError: the head is gone, or does not come up.
        """
        deadline = time.monotonic() + self._startup_seconds
        head = self._wait(_FLAGS_KEY, lambda: time.monotonic() > deadline)
        if (reason := difference(flags_of(config), head)) is not None:
            self._store.set(f"{_REFUSED_KEY}/{self._topology.rank}", reason)
            raise ConfigError(f"all nodes need the same settings: {reason}")

    def pool_blocks(self) -> int:
        """Say that this stage has its weights; wait for the head, and its number of KV blocks.

        Raises:
            PipelineError: the head is gone.
        """
        self._store.set(f"{_LOADED_KEY}/{self._topology.rank}", "1")
        return int(self._wait(_FACTS_KEY, lambda: False)["num_blocks"])

    def tell_unusable(self, reason: str) -> None:
        """Let the head know that the operator can mend what ends this stage.

        It knows before it sees the stage fail.

        Raises:
            PipelineError: the head is gone.
        """
        key = f"{_UNUSABLE_KEY}/{self._topology.rank}"
        try:
            self._store.set(key, reason)
            self._store.get(key)  # has come back, so it is there
        except RuntimeError as error:  # the store ends with the head's process
            raise PipelineError(_HEAD_GONE) from error

    def check_head(self) -> None:
        """Raise PipelineError if the head is gone."""
        try:
            self._store.check([_FLAGS_KEY])
        except RuntimeError as error:  # the store ends with the head's process
            raise PipelineError(_HEAD_GONE) from error

    def check_facts(self, info: RunnerInfo) -> None:
        """Compare what was loaded here, then say that this stage is ready.

        Raises:
            ConfigError: it differs.
        """
        head = self._wait(_FACTS_KEY, lambda: False)
        if (reason := difference(facts_of(info), head)) is not None:
            raise ConfigError(f"all stages need the same model: {reason}")
        self._store.set(f"{_READY_KEY}/{self._topology.rank}", "1")

    def _wait(self, key: str, is_late: Callable[[], bool]) -> Terms:
        try:
            while not self._store.check([key]):
                if is_late():
                    raise PipelineError(
                        f"the head did not come up within {self._startup_seconds:g} s"
                    )
                time.sleep(_POLL_SECONDS)
            return msgspec.json.decode(self._store.get(key), type=Terms)
        except RuntimeError as error:  # the store ends with the head's process
            raise PipelineError(_HEAD_GONE) from error


def _stuck(names: str, patience_seconds: float, others: str) -> str:
    return (
        f"{names} did not load within {patience_seconds:g} s (--startup-timeout-seconds) after "
        f"{others}: stuck, or in need of a longer limit"
    )

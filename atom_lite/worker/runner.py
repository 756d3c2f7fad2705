"""Runs step plans on one stage: mirror, inputs, layers, sampling, log probabilities.

The data plane's front door. It decides nothing: which tokens are computed, into which blocks, and
which rows draw a token is all in the plan; its only state is the mirror of the live sequences. Runs
in the engine process, on the forward thread; must not be called from two threads at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from atom_lite.attention.select import select_backend
from atom_lite.errors import ConfigError
from atom_lite.messages import RowError, SampledToken, StepResult
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.dtype import choose_quantization, choose_types
from atom_lite.models.partition import partition_layers
from atom_lite.models.registry import load_model
from atom_lite.models.spec import load_spec
from atom_lite.worker.device import resolve_device, set_threads
from atom_lite.worker.forward_timer import timer_for
from atom_lite.worker.freed_memory import keep_freed_memory
from atom_lite.worker.grammar import GrammarMasks
from atom_lite.worker.grammar_loader import GrammarLoader
from atom_lite.worker.inputs import build_inputs
from atom_lite.worker.kv_cache import allocate_pool
from atom_lite.worker.logprobs import KeptLogits
from atom_lite.worker.memory import (
    activation_bytes_per_token,
    check_model_len,
    resident_bytes,
)
from atom_lite.worker.prompt_scores import prompt_spans, score_spans
from atom_lite.worker.sampler import Draw, Sampler
from atom_lite.worker.sampling_defaults import sampling_defaults
from atom_lite.worker.scripted import scripted_logits
from atom_lite.worker.sequence_shaping import current_shaping
from atom_lite.worker.sequence_table import SequenceTable

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.attention.protocol import Backend
    from atom_lite.config import Config
    from atom_lite.messages import PromptScores, StepPlan, StepTimes
    from atom_lite.models.checkpoint import Checkpoint
    from atom_lite.models.decoder import Decoder
    from atom_lite.models.dtype import ModelTypes
    from atom_lite.models.partition import StageLayers
    from atom_lite.models.spec import ModelSpec
    from atom_lite.worker.grammar import StepMasks
    from atom_lite.worker.grammar_loader import Vocabulary
    from atom_lite.worker.inputs import StepInputs
    from atom_lite.worker.kv_cache import KVPool
    from atom_lite.worker.sequence_shaping import SequenceShaping
    from atom_lite.worker.sequence_table import MirroredSequence

SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """What the engine learns from the loaded model and the pool."""

    num_blocks: int
    max_model_len: int  # tokens, prompt plus output
    num_stages: int
    layers_per_stage: tuple[int, ...]
    vocab_size: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str  # of the weights: "float32", "bfloat16", ...
    activation_dtype: str  # of the hidden states between stages, among others
    quantization: str  # of the matrices: "none", "gguf" (as the file has them), "int8", "int4"
    device: str  # "cpu", "cuda:0"
    architecture: str
    default_sampling: dict[str, float]
    memory_bytes: dict[str, int]  # by kind: weights, kv_cache, process (before both)
    activation_bytes_per_token: int = 0  # of a step, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Which stage of how many a runner is, and how large its pool must be.

    `pool_blocks` is asked once the weights are loaded: the stages of a pipeline share block ids, so
    followers take the number that the head found.
    """

    stage: int = 0
    num_stages: int = 1
    pool_blocks: Callable[[], int] | None = None


class StageOutput(NamedTuple):
    """What one stage makes of a step."""

    hidden: Tensor | None  # [T, E] for the next stage; None from the last
    tokens: list[SampledToken]  # from the last stage
    times: list[StepTimes]  # of model calls here, as far as they have become known
    prompt_scores: Sequence[PromptScores] = ()  # from the last stage
    errors: Sequence[RowError] = ()  # from the last stage


class StageParts(NamedTuple):
    """A loaded stage, in the order of Runner's arguments."""

    config: Config
    info: RunnerInfo
    decoder: Decoder
    pool: KVPool
    layers: StageLayers


class Runner:
    """One stage. Made by `Runner.load`.

    Args:
        config: the whole tree; read only.
        info: what `info` shows.
        decoder: the layers of this stage.
        pool: its KV cache.
        layers: which layers those are.
        grammars: reads the grammars of the last stage's sequences.
    """

    def __init__(
        self,
        config: Config,
        info: RunnerInfo,
        decoder: Decoder,
        pool: KVPool,
        layers: StageLayers,
        grammars: GrammarLoader | None = None,
    ) -> None:
        self.info = info
        self.layers = layers
        self._decoder = decoder
        self._pool = pool
        self._scripted = config.model.load_format == SCRIPTED
        self._device = torch.device(info.device)
        self._timer = timer_for(self._device)
        self._sampler = Sampler(vocab_size=info.vocab_size, eos_token_ids=info.eos_token_ids)
        self._grammars = (
            GrammarMasks(info.vocab_size, grammars or GrammarLoader(None))
            if layers.is_last
            else None
        )
        self._num_rows = config.scheduler.max_num_seqs
        self._block_size = config.cache.block_size
        self.reset()

    @classmethod
    def load(
        cls,
        config: Config,
        place: StagePlace | None = None,
        *,
        vocabulary: Callable[[], Vocabulary] | None = None,
    ) -> Runner:
        """Load the checkpoint that the flags name, or one stage of it, and allocate its KV cache.

        Args:
            config: the whole tree.
            place: which stage of how many; None is the whole model.
            vocabulary: reads the tokens that grammars are about, where this is the last stage.

        Raises:
            ConfigError: anything the operator can cause; the engine reports it and exits 2.
        """
        place = place or StagePlace()
        grammars = GrammarLoader(vocabulary) if place.stage == place.num_stages - 1 else None
        parts = load_stage(config, place)
        if grammars is not None:
            grammars.wait()
        return cls(*parts, grammars)

    def reset(self) -> None:
        """Forget every sequence, so that another scheduler may drive this runner from its start."""
        self._table = SequenceTable(
            max_model_len=self.info.max_model_len,
            block_size=self._block_size,
            num_rows=self._num_rows,
        )
        if self._grammars is not None:
            self._grammars.clear()

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step of a whole model: apply drops and starts, compute the rows, draw tokens."""
        output = self.run_stage(plan)
        return StepResult(
            step_id=plan.step_id,
            tokens=output.tokens,
            times=output.times,
            prompt_scores=list(output.prompt_scores),
            errors=list(output.errors),
        )

    @torch.inference_mode()
    def run_stage(self, plan: StepPlan, receive: Callable[[], Tensor] | None = None) -> StageOutput:
        """Run this stage's part of a step.

        Args:
            plan: the step; every stage gets the same.
            receive: waits for the hidden states [T, E] of the stage before; None in the first. It
                is called when all else is ready, and its time is not the model's.
        """
        sequences = self._table.apply(plan)
        if self._grammars is not None:
            self._grammars.follow(plan)
        if not sequences:
            return StageOutput(None, [], self._timer.take())
        inputs = build_inputs(plan, sequences, self._table, self._device)
        masks = (
            None if self._grammars is None else self._grammars.begin(inputs.sampled, self._table)
        )
        arriving = inputs.token_ids if receive is None else receive()
        self._timer.start(plan.step_id)
        hidden = self._decoder.forward(
            arriving,
            inputs.positions,
            self._pool.layers,
            None if plan.skip_attention else inputs.metadata,
        )
        self._timer.stop()
        if not self.layers.is_last:
            return StageOutput(hidden, [], self._timer.take())
        tokens, errors = self._draw(hidden, inputs, masks) if inputs.sampled else ([], [])
        spans = prompt_spans(plan, sequences)
        scores = score_spans(spans, self._table, hidden, self._decoder.logits) if spans else ()
        if inputs.sampled or spans:
            self._timer.stop_draw()
        return StageOutput(None, tokens, self._timer.take(), scores, errors)

    def hidden_layout(self, plan: StepPlan) -> tuple[tuple[int, int], torch.dtype]:
        """Shape and type of the hidden states that stages pass on for a step."""
        num_tokens = sum(row.num_tokens for row in plan.rows)
        return (num_tokens, self.info.hidden_size), getattr(torch, self.info.activation_dtype)

    def _draw(
        self, hidden: Tensor, inputs: StepInputs, masks: StepMasks | None
    ) -> tuple[list[SampledToken], list[RowError]]:
        """Draw the next token of the rows that ask for one.

        Args:
            hidden: [T, E] of the last layer.
            inputs: of the step.
            masks: what grammars allow.
        """
        sequences = [row.sequence for row in inputs.sampled]
        indices = [row.output_index for row in inputs.sampled]
        if self._scripted:
            logits = scripted_logits(
                sequences,
                indices,
                vocab_size=self.info.vocab_size,
                eos_token_ids=self.info.eos_token_ids,
                device=self._device,
            )
        else:
            logits = self._decoder.logits(hidden[inputs.logits_rows])
        kept = KeptLogits.of(logits, [row.sampling for row in sequences])
        failures = {} if masks is None else masks.apply(logits)
        token_ids = self._sampler.sample(
            logits,
            [
                Draw(row.sampling, index, self._shaping(row))
                for row, index in zip(sequences, indices, strict=True)
            ],
        )
        logprobs = {} if kept is None else kept.report(token_ids)
        tokens = [
            SampledToken(row.sequence_id, row.epoch, token_id, logprobs.get(index))
            for index, (row, token_id) in enumerate(zip(sequences, token_ids, strict=True))
            if index not in failures
        ]
        errors = [
            RowError(
                sequences[index].sequence_id, sequences[index].epoch, str(failure), failure.status
            )
            for index, failure in failures.items()
        ]
        return tokens, errors

    def _shaping(self, sequence: MirroredSequence) -> SequenceShaping | None:
        tokens = self._table.token_ids(sequence)
        return current_shaping(sequence, tokens, vocab_size=self.info.vocab_size)


def load_stage(config: Config, place: StagePlace, *, backend: Backend | None = None) -> StageParts:
    """Load one stage's layers and allocate its KV cache; what `Runner` is made of.

    Args:
        config: the whole tree.
        place: which stage of how many.
        backend: attends over the cache; None takes the one that the flags name.

    Raises:
        ConfigError: anything the operator can cause.
    """
    _check_sizes(config)
    set_threads(config.model.threads)
    device = resolve_device(config.model.device)
    checkpoint = _find_checkpoint(config)
    spec = load_spec(checkpoint)
    # Before the weights, which take seconds: what cannot work should fail at once.
    check_model_len(config.model.max_model_len, spec.max_position_embeddings)
    partition = config.parallel.pipeline_layer_partition
    stages = partition_layers(spec, place.num_stages, partition)
    layers = stages[place.stage]
    types = choose_types(config.model.dtype, device, spec)
    types = choose_quantization(
        config.model.quantization,
        *(config.model.dtype, types, device),
        is_gguf=checkpoint.kind == "gguf" and config.model.load_format not in ("dummy", SCRIPTED),
    )
    process_bytes = resident_bytes()
    if backend is None:
        backend = select_backend(config.model.attention_backend, device)
    decoder = load_model(
        checkpoint,
        spec,
        types=types,
        device=device,
        load_format=config.model.load_format,
        backend=backend,
        seed=config.model.seed,
        stage=layers,
    )
    if place.pool_blocks is not None:
        config = _with_pool_blocks(config, place.pool_blocks())
    pool = allocate_pool(config, spec, backend, types.weights, device, num_layers=layers.count)
    defaults = sampling_defaults(config.model, checkpoint)
    info = runner_info(spec, stages, types, device, pool, defaults, decoder.weight_bytes())
    info.memory_bytes["process"] = process_bytes
    if device.type == "cpu":
        keep_freed_memory()
    return StageParts(config, info, decoder, pool, layers)


def _find_checkpoint(config: Config) -> Checkpoint:
    model = config.model
    checkpoint = resolve_checkpoint(
        model.model, revision=model.revision, load_format=model.load_format
    )
    return dataclasses.replace(checkpoint, weights_cache_bytes=model.weights_cache_bytes)


def runner_info(
    spec: ModelSpec,
    stages: list[StageLayers],
    types: ModelTypes,
    device: torch.device,
    pool: KVPool,
    default_sampling: dict[str, float],
    weight_bytes: int,
) -> RunnerInfo:
    """Gather what the engine is told."""
    return RunnerInfo(
        num_blocks=pool.num_blocks,
        max_model_len=pool.max_model_len,
        num_stages=len(stages),
        layers_per_stage=tuple(stage.count for stage in stages),
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        eos_token_ids=tuple(spec.eos_token_ids),
        dtype=_type_name(types.weights),
        activation_dtype=_type_name(types.activations),
        quantization=types.quantization,
        device=str(device),
        architecture=spec.architecture,
        default_sampling=default_sampling,
        memory_bytes={"weights": weight_bytes, "kv_cache": pool.num_bytes},
        activation_bytes_per_token=activation_bytes_per_token(spec),
    )


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _with_pool_blocks(config: Config, num_blocks: int) -> Config:
    cache = dataclasses.replace(config.cache, num_gpu_blocks_override=num_blocks)
    return dataclasses.replace(config, cache=cache)


def _check_sizes(config: Config) -> None:
    """The sizes that everything below divides or multiplies by."""
    for flag, value in (
        ("--block-size", config.cache.block_size),
        ("--max-num-seqs", config.scheduler.max_num_seqs),
    ):
        if value < 1:
            raise ConfigError(f"{flag} {value}: must be at least 1")

"""Every message that crosses a process boundary, in one place.

All are frozen `msgspec.Struct`s, sent as msgpack. Never pickle. Nothing here imports torch, so that
the frontend and the pure control plane can use the same types.

    frontend -> engine   FrontendMessage: SubmitSequence, AbortSequence, ResetPrefixCache, Shutdown
    engine -> frontend   EngineMessage: EngineReady, EngineEvents, EngineFailed
    head -> stages       StepPlan: new sequences in full, known ones as a difference
    last stage -> head   StepResult: the sampled tokens and how long each stage took

What frontend and grammar compiler say to each other is in `ipc/grammar_messages.py`.

Names: a *request* is one HTTP call, a *sequence* one token stream of it. Sequence ids are small
integers made by the frontend and never reused within a run, so two requests that carry the same
client-chosen request id cannot meet in the engine.

Clocks: every `_time` is `time.monotonic()` in seconds; all processes of a host share that clock.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]

# Upper bounds of the histogram of chunk sizes that `ChunkingStats` carries.
CHUNK_SIZE_BUCKETS_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one sequence are drawn; already validated by the frontend.

    `seed` is always set (the frontend draws one if the client gave none; a choice of n > 1 gets its
    own), so a recomputed token is drawn again identically: the uniform for output token i is a pure
    function of (seed, i).

    The order in which logits change: grammar, allowed_token_ids and bad words forbid; logit_bias
    adds; the penalties change what is left; then temperature and the filters. Log probabilities
    that are reported are of the logits before all of it.
    """

    max_tokens: int  # 0: only the prompt is computed, for its log probabilities
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0  # of output tokens, as in OpenAI's reference
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # of prompt and output tokens, as in transformers
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None  # None allows all
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not come
    # Likeliest tokens beside the drawn one, at most the vocabulary; None reports none.
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None  # the same for prompt tokens; reads no cached prefix


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled grammar that every output token must keep to.

    `key` names it among all grammars of a run, so that a stage that still knows it need not read
    `compiled` again. Of "xgrammar" `compiled` is what Grammar.serialize_json() gives, of "guidance"
    the grammar text that an LLMatcher reads; both were tried out with the vocabulary that
    `worker/grammar_vocabulary.py` makes of the same pieces.

    EOS is allowed only where the grammar may end, and ends the sequence with "stop", also with
    ignore_eos. Before min_tokens it is not allowed, unless the grammar allows nothing else.
    """

    key: str
    backend: Literal["xgrammar", "guidance"]
    compiled: bytes


# ---------------------------------------------------------------- frontend -> engine


class SubmitSequence(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A new sequence. Answered by exactly one SequenceFinished, whatever happens."""

    sequence_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_time: float
    priority: int = 0  # lower is earlier
    cache_salt: str | None = None  # isolates the prefix cache
    group: int | None = None  # sequences of one request that share its prompt's KV (n > 1)
    ttft_slo_seconds: float | None = None  # objectives of its own; None leaves the server's
    tbt_slo_seconds: float | None = None
    grammar: Grammar | None = None
    script: list[int] | None = None  # load format `scripted` only: the ids to emit


class AbortSequence(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """End a sequence now. Unknown or finished ids are ignored (the two can cross on the wire).

    `reason` is "stop" when the frontend matched a stop string, "abort" when the client left.
    """

    sequence_id: int
    reason: Literal["stop", "abort"] = "abort"


class ResetPrefixCache(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget every cached block that no running sequence holds."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Finish what is in flight on the device, abort the rest and exit 0."""


FrontendMessage: TypeAlias = SubmitSequence | AbortSequence | ResetPrefixCache | Shutdown


# ---------------------------------------------------------------- engine -> frontend


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position: of the token that stands there, then of the likeliest.

    Raw: the log-softmax of the model's own logits. `token_ids` are 1 + k int32 and `logprobs` as
    many float32, both little-endian (k may be the whole vocabulary, and bytes cost nothing to
    pack). The likeliest come best first, the lower id first among equals, and may hold the token
    itself again. `rank` is the token's own, 1 for the likeliest.
    """

    token_ids: bytes
    logprobs: bytes
    rank: int


class TokensGenerated(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False
):
    """New output tokens of one sequence, in order."""

    sequence_id: int
    token_ids: list[int]
    num_cached_tokens: int = 0  # prompt tokens taken from the prefix cache at first admission
    logprobs: list[Logprobs] = []  # one for each of token_ids, where asked for


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Log probabilities of the prompt tokens at positions [start, start + len(positions)).

    A sequence's come in order, without gaps or repeats, from position 1 (nothing predicts the
    first token), all before its first output token.
    """

    sequence_id: int
    start: int
    positions: list[Logprobs]


class SequenceTimings(msgspec.Struct, frozen=True, kw_only=True):
    """When things happened to a sequence; None where they never did."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finish_time: float


class SequenceFinished(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The one terminal message of a sequence.

    `stop_token_id` is the matched id of `stop_token_ids` (None at EOS). `error` is set with reason
    "error"; `error_status` is then its HTTP status (400: can never fit; 500: our fault).
    """

    sequence_id: int
    reason: FinishReason
    timings: SequenceTimings
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    stop_token_id: int | None = None
    error: str | None = None
    error_status: int = 500


SequenceEvent: TypeAlias = TokensGenerated | PromptLogprobs | SequenceFinished


class ChunkingStats(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chunk-size policy and its calibration stand; refreshed about once a second."""

    policy: str
    num_stages: int
    state: str  # of the calibration; "off" for a policy that learns nothing
    reason: str
    chunks_by_reason: dict[str, int]  # placed since start
    chunk_tokens_by_reason: dict[str, int] = {}  # of those chunks
    # Chunks per bucket of CHUNK_SIZE_BUCKETS_TOKENS (not cumulated), larger ones at the end.
    chunk_sizes_by_reason: dict[str, list[int]] = {}
    models: list[str] = []  # a, b, c, gamma in milliseconds, one line per stage
    coefficients: list[dict[str, float]] = []  # the same as fields of LatencyModel, in seconds
    fit_errors: list[float | None] = []  # median relative error of each stage's fit
    fits: list[dict[str, float] | None] = []  # all of each fit's quality, as fields of FitQuality
    prediction_error: float | None = None  # median relative error of the last predictions
    last_plan: list[int] = []  # chunk sizes of the prompt planned last
    last_plan_start: int = 0  # its first token: later ones after a cache hit or a refit on the way
    last_plan_seconds: float | None = None  # their predicted time through the stages


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the engine. Gauges are current, counters are totals since start."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # 0..1, share of blocks that running sequences hold
    # counters
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    num_preemptions: int = 0
    num_steps: int = 0
    prompt_tokens_computed: int = 0
    output_tokens: int = 0
    deadline_overruns: int = 0
    static_budget_steps: int = 0  # of policy slo, without a latency model to trust
    # counters by pipeline stage; see engine/occupancy.py
    stage_busy_seconds: list[float] = []
    stage_bubble_seconds: list[float] = []
    chunking: ChunkingStats | None = None


class EngineEvents(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that one step brought, in one frame; also sent as a heartbeat (no events) when idle.

    `step_tokens` lists the token counts of the steps run since the last frame, for a histogram.
    """

    events: list[SequenceEvent]
    stats: EngineStats
    step_tokens: list[int] = []


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent once, when the engine can serve: what the frontend needs to validate requests."""

    vocab_size: int
    max_model_len: int  # tokens, prompt plus output
    eos_token_ids: list[int]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str  # "cpu", "cuda:0"
    dtype: str  # "float32", "bfloat16", ...
    architecture: str
    default_sampling: dict[str, float]  # generation_config.json's temperature, top_p, top_k ...
    # By kind, of one stage: weights; kv_cache, taken as it fills; activations, the most that a step
    # takes; process, what it held before all of these.
    memory_bytes: dict[str, int]
    num_stages: int = 1  # of the pipeline


class EngineFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last message of a dying engine. `config` means the operator's fault: exit code 2."""

    message: str
    config: bool = False


EngineMessage: TypeAlias = EngineReady | EngineEvents | EngineFailed


# ---------------------------------------------------------------- head <-> stages


class SequenceStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sequence that the stages do not know (new, or resumed after preemption), in full.

    `token_ids` are the prompt and, after a preemption, the output so far: all is prefilled again.
    """

    sequence_id: int
    epoch: int  # counts preemptions; results of an old epoch are dropped
    token_ids: list[int]
    num_prompt_tokens: int  # of token_ids, how many the client sent
    sampling: SamplingParams
    grammar: Grammar | None = None
    script: list[int] | None = None


class StepRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One sequence's share of a step: tokens [start, start + num_tokens) of it are computed.

    A decode is a row of one token. `token_ids` carries the input of a decode (the token sampled
    last, which only the last stage has seen); a prefill chunk's tokens are in its SequenceStart.
    `new_block_ids` extend the block table; in a sequence's first row they include cached blocks.
    """

    sequence_id: int
    epoch: int
    start: int
    num_tokens: int
    sample: bool  # draw the next token from the last position
    new_block_ids: list[int] = []
    token_ids: list[int] = []


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one step (microbatch) runs. Rows keep the scheduler's order: decodes first.

    `drops` are (sequence_id, epoch) that the stages forget before anything else in this plan.
    `skip_attention` is for timing the linear part alone; what such a step computes is meaningless.
    `acknowledge`: for the head the step is over when the last stage's result is home, else when
    stage 0 has handed it on (`scheduler/in_flight.py`). The last stage answers every step.
    """

    step_id: int
    starts: list[SequenceStart]
    rows: list[StepRow]
    drops: list[tuple[int, int]] = []
    skip_attention: bool = False
    acknowledge: bool = True


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One drawn token."""

    sequence_id: int
    epoch: int
    token_id: int
    logprobs: Logprobs | None = None


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """What a prefill chunk says about the prompt tokens from position `start` on."""

    sequence_id: int
    epoch: int
    start: int
    positions: list[Logprobs]


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step took; `stage_seconds[s]` is the layers' duration on stage s.

    `draw_seconds` came on top on the last stage: the LM head and whatever works on logits. It is 0
    in a step of which no row draws a token.
    """

    step_id: int
    stage_seconds: list[float]
    draw_seconds: float = 0.0


class RowError(msgspec.Struct, frozen=True, array_like=True):
    """Why a sequence ends instead of getting the token that it was to get.

    `status` is the HTTP status: 400 where the request asked for what cannot be done.
    """

    sequence_id: int
    epoch: int
    message: str
    status: int = 500


class StepResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a step brought back, and the times that have become known with it.

    Where a stage knows the time of a step when it has run it, as on a CPU, `times` is this step's.
    An accelerator may still be at it: then its time comes with a later result, in order; of a step
    that was not timed none comes. A step without rows has no time, but brings those of others.
    """

    step_id: int
    tokens: list[SampledToken]
    times: list[StepTimes] = []
    prompt_scores: list[PromptScores] = []
    errors: list[RowError] = []  # each stands in the place of a token

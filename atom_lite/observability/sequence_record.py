"""What one sequence contributes to the metrics, from its arrival to its end.

Two clocks meet here and are the same one: `time.monotonic()` is shared by all processes of a host,
so the engine's timings and the frontend's own may be subtracted from each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_lite.messages import FinishReason, SequenceFinished
    from atom_lite.observability.fluidity import FluidityCount
    from atom_lite.observability.metrics import Metrics


class SequenceRecord:
    """Feeds the metrics as tokens arrive; `finish` and `phases` count once each.

    They are apart because a stop string ends a sequence here before the engine has heard of it:
    the client's answer and its metrics do not wait for the engine's last word, the phases do.
    """

    def __init__(
        self,
        metrics: Metrics,
        num_prompt_tokens: int,
        arrival_time: float,
        fluidity: FluidityCount | None = None,
    ) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._arrival_time = arrival_time
        self._first_token_time: float | None = None
        self._last_token_time = arrival_time
        self._finished = False
        self._fluidity = fluidity

    def tokens(self, num_tokens: int, num_cached_tokens: int, now: float) -> None:
        """Tokens arrived in one event."""
        metrics = self._metrics
        metrics.generation_tokens.inc(num_tokens)
        num_gaps = num_tokens
        if self._first_token_time is None:
            self._first_token_time = now
            self._last_token_time = now
            metrics.ttft.observe(now - self._arrival_time)
            metrics.prompt_tokens.inc(self._num_prompt_tokens)
            metrics.prompt_tokens_cached.inc(num_cached_tokens)
            num_gaps -= 1
            if self._fluidity is not None:
                self._fluidity.token(now - self._arrival_time)
        for _ in range(num_gaps):
            gap = now - self._last_token_time
            metrics.itl.observe(gap)
            if self._fluidity is not None:
                self._fluidity.token(gap)
            self._last_token_time = now

    def finish(self, reason: FinishReason, num_output_tokens: int, now: float) -> None:
        """The sequence ended for its client; later calls do nothing."""
        if self._finished:
            return
        self._finished = True
        metrics = self._metrics
        metrics.request_success[reason].inc()
        metrics.e2e.observe(now - self._arrival_time)
        metrics.request_prompt_tokens.observe(self._num_prompt_tokens)
        metrics.request_generation_tokens.observe(num_output_tokens)
        metrics.request_max_generation_tokens.observe(num_output_tokens)
        if self._first_token_time is None:
            if reason == "length":  # only the prompt was asked for
                metrics.prompt_tokens.inc(self._num_prompt_tokens)
        else:
            decode_time = self._last_token_time - self._first_token_time
            metrics.time_per_output_token.observe(decode_time / max(1, num_output_tokens - 1))
            if self._fluidity is not None:
                metrics.fluidity_docs.observe(self._fluidity.docs)
                metrics.fluidity_paper.observe(self._fluidity.paper)

    def phases(self, event: SequenceFinished) -> None:
        """The engine's last word: when the sequence was scheduled, preempted and done."""
        metrics, timings = self._metrics, event.timings
        metrics.request_preemptions.observe(event.num_preemptions)
        scheduled, first, end = (
            timings.first_scheduled_time,
            timings.first_token_time,
            timings.finish_time,
        )
        if scheduled is None:
            return
        metrics.queue_time.observe(scheduled - timings.arrival_time)
        metrics.inference_time.observe(end - scheduled)
        if first is None:
            return
        metrics.prefill_time.observe(first - scheduled)
        metrics.decode_time.observe(end - first)
        metrics.request_prefill_computed.observe(event.num_prompt_tokens - event.num_cached_tokens)

"""What the routes share: the engine, the tokenizer, admission, and the way to an end.

Checks run in this order, all before an answer starts: key, JSON, schema, model, template,
tokenization, context length, KV capacity, then whether the server takes work at all (shutting
down, engine dead, queue full). One instance per application, in `app.state.frontend`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from atom_lite.api.generation import Generation, SequenceOutput
from atom_lite.api.prompts import PromptBuilder, read_template
from atom_lite.api.sampling import SamplingBuilder, check_xargs
from atom_lite.errors import RequestError
from atom_lite.messages import SubmitSequence
from atom_lite.text.output import OutputText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from atom_lite.api.engine_client import EngineClient
    from atom_lite.api.schema import GenerationRequest
    from atom_lite.config import Config
    from atom_lite.messages import SamplingParams
    from atom_lite.observability.metrics import Metrics
    from atom_lite.text.tokenizer import Tokenizer


class Frontend:
    """The HTTP layer's one shared object.

    Args:
        config: server and model settings.
        engine: where sequences run.
        tokenizer: of the served model.
        names: model names that requests may use; the first is the default.
        metrics: of this server.
    """

    def __init__(
        self,
        config: Config,
        engine: EngineClient,
        tokenizer: Tokenizer,
        *,
        names: tuple[str, ...],
        metrics: Metrics,
    ) -> None:
        self.config = config
        self.engine = engine
        self.tokenizer = tokenizer
        self.names = names
        self.metrics = metrics
        self.shutting_down = False
        self.started_at = int(time.time())
        self.prompts = PromptBuilder(tokenizer, read_template(config.model.chat_template))
        self.sampling = SamplingBuilder(
            engine.ready,
            base_seed=config.model.seed,
            scripted=config.model.load_format == "scripted",
        )
        self._queue = QueueLimit(engine, config.server.max_num_queued_reqs)
        self._open: set[Generation] = set()

    # ------------------------------------------------------------ the life of the server

    @property
    def open_requests(self) -> int:
        """Generating requests whose answer is not complete."""
        return len(self._open)

    def begin_shutdown(self) -> None:
        """Refuse new work with 503 from now on; running answers go on."""
        self.shutting_down = True

    def abort_all(self) -> None:
        """Cut off what still runs; the answers end with finish reason "abort"."""
        for generation in list(self._open):
            generation.abort()

    @contextmanager
    def open_request(self, generation: Generation) -> Iterator[None]:
        """Count a request as open for as long as its answer takes."""
        self._open.add(generation)
        try:
            yield
        finally:
            self._open.discard(generation)

    # ------------------------------------------------------------ admission

    def check_model(self, name: str | None) -> str:
        """The name that the answer shall carry.

        Raises:
            RequestError: 404 for a model that is not served.
        """
        if not name:
            return self.names[0]
        if name not in self.names:
            raise RequestError(
                f"The model {ascii(name)[:200]} does not exist; served: {', '.join(self.names)}",
                param="model",
                code="model_not_found",
                status=404,
            )
        return name

    def generation(
        self,
        body: GenerationRequest,
        prompts: list[list[int]],
        *,
        default_max_tokens: int | None = None,
    ) -> Generation:
        """A generation that is ready to start.

        Args:
            body: the validated request.
            prompts: token ids; one sequence each.
            default_max_tokens: this much where the client says nothing, as far as it fits; None
                means all that fits.

        Raises:
            RequestError: 400 where a prompt or a parameter cannot be served, 503 where the server
                takes no work now.
        """
        check_xargs(body)
        self._check_priority(body)
        script = self.sampling.script(body)
        planned = []
        for prompt in prompts:
            limit = self._max_tokens(body, len(prompt), default_max_tokens)
            planned.append((prompt, self.sampling.build(body, limit)))
        self._admit(len(prompts))
        return Generation(
            self.engine,
            [
                self._output(index, body, prompt, sampling, script)
                for index, (prompt, sampling) in enumerate(planned)
            ],
        )

    def _output(
        self,
        index: int,
        body: GenerationRequest,
        prompt: list[int],
        sampling: SamplingParams,
        script: list[int] | None,
    ) -> SequenceOutput:
        arrival_time = time.monotonic()
        message = SubmitSequence(
            sequence_id=self.engine.next_sequence_id(),
            prompt_token_ids=prompt,
            sampling=sampling,
            arrival_time=arrival_time,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            script=script,
        )
        include_stop = bool(body.include_stop_str_in_output)
        text = OutputText(
            self.tokenizer,
            prompt,
            stops=body.stops,
            include_stop_str_in_output=include_stop,
            skip_special_tokens=body.skip_special_tokens is not False,
            min_tokens=sampling.min_tokens,
        )
        record = self.metrics.start_sequence(
            num_prompt_tokens=len(prompt),
            max_tokens=sampling.max_tokens,
            arrival_time=arrival_time,
        )
        hidden = set() if include_stop else set(sampling.stop_token_ids)
        if not sampling.ignore_eos and not include_stop:
            hidden.update(self.engine.ready.eos_token_ids)
        return SequenceOutput(index, message, text, record, frozenset(hidden))

    def _check_priority(self, body: GenerationRequest) -> None:
        if body.priority and self.config.scheduler.scheduling_policy != "priority":
            raise RequestError(
                f"'priority' = {body.priority} needs a server with --scheduling-policy priority",
                param="priority",
            )

    def _max_tokens(self, body: GenerationRequest, num_prompt: int, default: int | None) -> int:
        ready, asked = self.engine.ready, body.asked_max_tokens
        limit = ready.max_model_len
        if num_prompt == 0:
            raise RequestError(
                "The prompt is empty: it needs at least one token", param=body.prompt_param
            )
        if num_prompt + (asked or 1) > limit:
            blame = "max_tokens" if asked and num_prompt < limit else body.prompt_param
            raise _too_long(num_prompt, asked or 1, limit, blame)
        capacity = ready.num_blocks * ready.block_size
        if num_prompt + 1 > capacity:
            raise RequestError(
                f"The prompt's {num_prompt} tokens and one of output do not fit the KV cache of "
                f"{capacity} tokens",
                param=body.prompt_param,
                code="context_length_exceeded",
            )
        room = limit - num_prompt
        if asked is not None:
            return asked
        if default is None:
            default = int(ready.default_sampling.get("max_new_tokens", room))
        return min(room, default)

    def _admit(self, num_new: int) -> None:
        if self.shutting_down:
            self._refuse("shutting_down", "The server is shutting down")
        if not self.engine.alive:
            self._refuse("engine_dead", "The engine is dead")
        if not self._queue.take(num_new):
            self._refuse(
                "queue_full",
                f"The queue is full: {self.config.server.max_num_queued_reqs} requests wait",
            )

    def _refuse(self, reason: str, message: str) -> NoReturn:
        self.metrics.reject(reason)
        raise RequestError(message, code=reason, status=503)


class QueueLimit:
    """Decides whether a new request would make the waiting queue too long.

    The engine's snapshot is a step old, so sequences sent since then are counted here: first as
    taking free seats, then as waiting.

    Args:
        engine: whose snapshots are read.
        limit: most sequences that may wait; None is no limit.
    """

    def __init__(self, engine: EngineClient, limit: int | None) -> None:
        self._engine = engine
        self._limit = limit
        self._snapshot = engine.stats
        self._num_since = 0

    def take(self, num_new: int) -> bool:
        """Count new sequences in, or return False when they would have to wait and may not."""
        stats = self._engine.stats
        if stats is not self._snapshot:
            self._snapshot, self._num_since = stats, 0
        if self._limit is not None:
            free = 0
            if stats.num_waiting == 0:
                free = max(0, self._engine.ready.max_num_seqs - stats.num_running)
            num_waiting = stats.num_waiting + max(0, self._num_since - free)
            must_wait = self._num_since + num_new > free
            if must_wait and num_waiting >= self._limit:
                return False
        self._num_since += num_new
        return True


def _too_long(num_prompt: int, num_output: int, limit: int, param: str) -> RequestError:
    """OpenAI's own words: client libraries look for "maximum context length"."""
    return RequestError(
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{num_prompt + num_output} tokens ({num_prompt} in the prompt, {num_output} for the "
        "completion). Please reduce the length of the prompt or of the completion.",
        param=param,
        code="context_length_exceeded",
    )


def frontend_of(request: Request) -> Frontend:
    """The shared object of the application that a request came to."""
    frontend = request.app.state.frontend
    assert isinstance(frontend, Frontend)
    return frontend

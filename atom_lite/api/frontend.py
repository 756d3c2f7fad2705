"""What the routes share: the engine, the tokenizer, admission, and the way to an end.

Checks run in this order, all before an answer starts: key, JSON, schema, model, template,
tokenization, context length, KV capacity, then whether the server takes work at all (shutting
down, engine dead, queue full). One instance per application, in `app.state.frontend`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from atom_lite.api.admission import (
    ContextLimits,
    QueueLimit,
    check_num_sequences,
    check_prompt_figures,
)
from atom_lite.api.chat_formats import ChatFormats
from atom_lite.api.generation import Generation
from atom_lite.api.logprobs import TokenTable
from atom_lite.api.prompts import PromptBuilder, read_template
from atom_lite.api.sampling import SamplingBuilder, check_xargs
from atom_lite.api.sequences import SequenceMaker
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from atom_lite.api.admission import PromptInput
    from atom_lite.api.chat_formats import MessageForm
    from atom_lite.api.engine_client import EngineClient
    from atom_lite.api.schema import GenerationRequest
    from atom_lite.api.structured import GrammarSource
    from atom_lite.config import Config
    from atom_lite.messages import Grammar
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
        grammars: compiles what outputs must look like; None where nothing can.
    """

    def __init__(
        self,
        config: Config,
        engine: EngineClient,
        tokenizer: Tokenizer,
        *,
        names: tuple[str, ...],
        metrics: Metrics,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.config = config
        self.engine = engine
        self.tokenizer = tokenizer
        self.names = names
        self.metrics = metrics
        self.grammars = grammars
        self.shutting_down = False
        self.started_at = int(time.time())
        override = read_template(config.model.chat_template)
        template = override or tokenizer.chat_templates.get("tool_use") or tokenizer.chat_template
        self.formats = ChatFormats(config.chat, tokenizer, template)
        self.prompts = PromptBuilder(
            tokenizer,
            override,
            engine.ready.max_model_len,
            self.formats,
            trusts_requests=config.chat.trust_request_chat_template,
        )
        self.sampling = SamplingBuilder(engine.ready, tokenizer, config.model)
        self.token_table = TokenTable(tokenizer)
        self._limits = ContextLimits(engine.ready)
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
        prompts: list[PromptInput],
        *,
        default_max_tokens: int | None = None,
        grammar: Grammar | None = None,
        form: MessageForm | None = None,
    ) -> Generation:
        """A generation that is ready to start.

        Args:
            body: the validated request.
            prompts: one or several.
            default_max_tokens: this much where the client says nothing, as far as it fits; None
                means all that fits.
            grammar: that the output must keep to.
            form: how thoughts and calls are found in the output; None looks for none.

        Raises:
            RequestError: 400 where a prompt or a parameter cannot be served, 503 where the server
                takes no work now.
        """
        check_xargs(body)
        self._check_priority(body)
        check_num_sequences(body, len(prompts))
        script = self.sampling.script(body)
        asked = body.asked_max_tokens
        room = asked if asked is not None else default_max_tokens or 1
        prompts = [self._limits.truncated(body, prompt, room) for prompt in prompts]
        max_tokens = [
            self._limits.max_tokens(body, len(prompt.token_ids), default_max_tokens)
            for prompt in prompts
        ]
        sampling = self.sampling.build(body, max_tokens)
        check_prompt_figures(body, prompts, sampling[0].num_prompt_logprobs)
        self._admit(len(prompts) * body.num_candidates)
        maker = SequenceMaker(
            self.engine,
            self.tokenizer,
            self.metrics,
            body,
            script=script,
            grammar=grammar,
            form=form,
        )
        return Generation(
            self.engine,
            maker.make(prompts, sampling),
            num_candidates=body.num_candidates,
            num_choices=body.num_choices,
        )

    def _check_priority(self, body: GenerationRequest) -> None:
        if body.priority and self.config.scheduler.scheduling_policy != "priority":
            raise RequestError(
                f"'priority' = {body.priority} needs a server with --scheduling-policy priority",
                param="priority",
            )

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


def frontend_of(request: Request) -> Frontend:
    """The shared object of the application that a request came to."""
    frontend = request.app.state.frontend
    assert isinstance(frontend, Frontend)
    return frontend

"""What all generating endpoints accept, and how a body becomes one of the schemas.

Pydantic reads the JSON itself (no dict in between) and the same classes make /openapi.json. Unknown
fields are accepted with one warning per name: clients of other servers send extras all the time.
Known ones must have the JSON type that the document states, as OpenAI has it: "5" and true are no
integers, and a typing error of a client is told instead of guessed at. Only 5.0 passes as 5, for
clients whose JSON library knows no integers.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from atom_lite.api.body import read_bounded
from atom_lite.api.faults import conflict, from_validation, shown
from atom_lite.api.not_yet import NOT_YET, refuse_not_yet
from atom_lite.api.schema_sampling import Int64, PositiveInt, SamplingFields
from atom_lite.api.schema_structured import StructuredFields
from atom_lite.config_scheduling import LEAST_SLO_MS, MOST_SLO_MS
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

SloMilliseconds = Annotated[float, Field(ge=LEAST_SLO_MS, le=MOST_SLO_MS)]

_MAX_WARNED_NAMES = 256  # a client must not grow our memory by inventing names

# Fields that change nothing in the answer of a server like this one.
_IGNORED = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "session_id",
    )
)

logger = logging.getLogger(__name__)
_warned_names: set[str] = set()


class JsonObject(BaseModel):
    """What a client sends as an object, which may hold more than we know."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=()
    )


class StreamOptions(JsonObject):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RequestBody(JsonObject):
    """The body of a request."""

    prompt_param: ClassVar[str] = "prompt"  # the field that a too long prompt came in


class GenerationRequest(RequestBody, SamplingFields, StructuredFields):
    """The fields that chat and plain completions share."""

    num_logprobs_param: ClassVar[str]  # the field that says how many alternatives to tell

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None  # the newer name, which wins
    priority: Int64 | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,256}$")] | None = None
    stream_interval: PositiveInt | None = None
    ttft_slo_ms: SloMilliseconds | None = None
    tbt_slo_ms: SloMilliseconds | None = None
    vllm_xargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "'stream_options' needs 'stream': true")
        if self.stream and self.prompt_logprobs is not None:
            raise conflict(
                "prompt_logprobs", "'prompt_logprobs' are not available with 'stream': true"
            )
        self._check_best_of()
        return self

    def _check_best_of(self) -> None:
        if self.num_candidates < self.num_choices:
            raise conflict(
                "best_of", f"'best_of' = {self.best_of} is less than 'n' = {self.num_choices}"
            )
        if self.stream and self.num_candidates > self.num_choices:
            raise conflict(
                "best_of",
                f"'best_of' = {self.best_of} of 'n' = {self.num_choices} cannot be streamed: the "
                "best are known at the end",
            )

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, none to many."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def num_choices(self) -> int:
        """Choices of the answer for each prompt."""
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        """Sequences that are run for each prompt; of more than choices the best are shown."""
        return self.best_of or self.num_choices

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Alternatives told with each output token; None tells no log probabilities."""

    @property
    def lists_tokens(self) -> bool:
        """Whether the answer lists its tokens one by one beside the text."""
        return self.num_logprobs is not None or bool(self.return_token_ids)

    @property
    def echoes_prompt(self) -> bool:
        """Whether the prompt's tokens stand before the output's in what is told of them."""
        return False

    @property
    def repeats_prompt(self) -> bool:
        """Whether each choice, not the answer as a whole, says what is told of the prompt."""
        return False

    @property
    def echoed_text(self) -> str:
        """What the answer begins with, where that is known before tokenization."""
        return ""

    @property
    def asked_max_tokens(self) -> int | None:
        """The most output tokens that the client asked for, under either name."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def max_tokens_param(self) -> str:
        """The name that counts."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream carries usage; only together with the last one."""
        return self.wants_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


Body = TypeVar("Body", bound=RequestBody)


async def read_body(request: Request, schema: type[Body]) -> Body:
    """Read and validate a JSON body.

    Raises:
        RequestError: 400 for a wrong type, bad JSON, a bad or unsupported field; 413 for too much.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        got = shown(media_type) if media_type else "none"
        raise RequestError(f"The content type must be application/json, got {got}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RequestError(
            f"The body must not be compressed, got content-encoding {shown(encoding)}"
        )
    raw = await read_bounded(request)
    try:
        body = schema.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error) from None
    if body.model_extra:
        refuse_not_yet(body.model_extra)
        _warn_unknown(body.model_extra)
    return body


def _warn_unknown(extra: dict[str, Any]) -> None:
    for name in extra.keys() - NOT_YET.keys() - _IGNORED - _warned_names:
        if len(_warned_names) >= _MAX_WARNED_NAMES:
            return
        _warned_names.add(name)
        logger.warning("ignoring the unknown request field %s", shown(name))

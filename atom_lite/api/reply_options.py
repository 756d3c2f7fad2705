"""What a request says about the form of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from atom_lite.api.sampling import SamplingBuilder
    from atom_lite.api.schema import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """The form of one answer.

    Attributes:
        request_id: what the answer's id is made of.
        model: the name that the client used.
        stream: in chunks.
        usage: a stream ends with a usage chunk.
        running_usage: every chunk carries usage.
        num_logprobs: alternatives to each token; None lists no log probabilities.
        num_prompt_logprobs: the same of the prompt's tokens, as vLLM tells them.
        token_ids: list the ids of prompt and output.
        tokens_as_ids: name tokens by their ids in log probabilities.
        echo: completions begin with their prompt.
        echoed_text: chat answers begin with this.
    """

    request_id: str
    model: str
    stream: bool = False
    usage: bool = False
    running_usage: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    echo: bool = False
    echoed_text: str = ""

    @classmethod
    def of(
        cls, body: GenerationRequest, sampling: SamplingBuilder, *, request_id: str, model: str
    ) -> Self:
        """The options of a request whose numbers have been checked."""
        return cls(
            request_id=request_id,
            model=model,
            stream=bool(body.stream),
            usage=body.wants_usage,
            running_usage=body.wants_running_usage,
            num_logprobs=sampling.limit_logprobs(body.num_logprobs, body.num_logprobs_param),
            num_prompt_logprobs=sampling.limit_logprobs(body.prompt_logprobs, "prompt_logprobs"),
            token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            echo=body.echoes_prompt,
            echoed_text=body.echoed_text,
        )

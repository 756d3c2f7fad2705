"""The bodies of answers, as /openapi.json describes them.

Written for the document and for the tests that hold the server to it. Answers themselves are not
made of these classes: `replies.py` writes a chunk in a microsecond, which no validating class does.
A field with a default is left out of an answer where it has nothing to say.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from atom_lite.messages import FinishReason

ChatFinishReason: TypeAlias = FinishReason | Literal["tool_calls"]


class ErrorDetail(BaseModel):
    """What went wrong, and in which field of the request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """OpenAI's nested error body, of every status from 400 on."""

    error: ErrorDetail


# ---------------------------------------------------------------- generated text


class PromptTokensDetails(BaseModel):
    """What became of the prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """What the output's tokens were."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens of all choices, or of one in running usage; details of a model that reasons."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class LikelyToken(BaseModel):
    """A token that could have stood here; `bytes` may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ScoredToken(LikelyToken):
    """The token that stands here, and the likeliest ones."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """Log probabilities of a message, token by token."""

    content: list[ScoredToken] | None
    refusal: list[ScoredToken] | None


class CompletionLogprobs(BaseModel):
    """Log probabilities of a text: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class RankedToken(BaseModel):
    """What is told of a token of a prompt; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


# Of each token of a prompt, by token id; null of the first.
PromptLogprobs = list[dict[str, RankedToken] | None]


class FunctionCall(BaseModel):
    """What is called; the arguments are a JSON object as text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(BaseModel):
    """The answer to a conversation; thoughts stand under two names."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = []


class ChatChoice(BaseModel):
    """One answer of a conversation and why it ended."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    token_ids: list[int] = []
    finish_reason: ChatFinishReason
    stop_reason: str | int | None


class TextChoice(BaseModel):
    """One continuation of a prompt and why it ended."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    token_ids: list[int] = []
    finish_reason: FinishReason
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs = []
    prompt_token_ids: list[int] = []


class _Generated(BaseModel):
    id: str
    created: int
    model: str


class _Whole(_Generated):
    usage: Usage
    system_fingerprint: str
    service_tier: str | None


class _Chunk(_Generated):
    usage: Usage | None = None
    system_fingerprint: str | None = None


class ChatCompletion(_Whole):
    """A whole answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs = []
    prompt_token_ids: list[int] = []


class Completion(_Whole):
    """A whole answer of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class FunctionCallDelta(BaseModel):
    """What is new of a call: first its name, then pieces of its arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """What is new of the call with this number; id and type come once."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class MessageDelta(BaseModel):
    """What is new of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] = []


class ChatChunkChoice(BaseModel):
    """What is new of a choice."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    token_ids: list[int] = []
    finish_reason: ChatFinishReason | None
    stop_reason: str | int | None = None


class TextChunkChoice(BaseModel):
    """What is new of a choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []
    finish_reason: FinishReason | None
    stop_reason: str | int | None


class ChatCompletionChunk(_Chunk):
    """One event of a streamed chat completion; the usage chunk has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] = []


class CompletionChunk(_Chunk):
    """One event of a streamed completion; the usage chunk has no choices."""

    object: Literal["text_completion"]
    choices: list[TextChunkChoice]


# ---------------------------------------------------------------- all else


class ModelCard(BaseModel):
    """A served name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "atom_lite"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[dict[str, Any]] = []


class ModelList(BaseModel):
    """All served names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeAnswer(BaseModel):
    """The token ids of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(BaseModel):
    """The text of token ids."""

    prompt: str


class Version(BaseModel):
    """The version of this server."""

    version: str


class Load(BaseModel):
    """How many generating requests are open."""

    server_load: int


class ServerInfo(BaseModel):
    """What runs: the engine's first message and its latest statistics."""

    version: str
    served_model_names: list[str]
    engine: dict[str, Any]
    stats: dict[str, Any]

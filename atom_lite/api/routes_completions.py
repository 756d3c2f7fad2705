"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation
from starlette.responses import Response  # noqa: TC002

from atom_lite.api.admission import PromptInput
from atom_lite.api.frontend import frontend_of
from atom_lite.api.gate import rename_request, request_id_of
from atom_lite.api.objectives import header_parameters, take_headers
from atom_lite.api.openapi import GENERATES, answers, body_of
from atom_lite.api.replies import CompletionReply
from atom_lite.api.reply_options import ReplyOptions
from atom_lite.api.respond import GenerationResponse
from atom_lite.api.schema import read_body
from atom_lite.api.schema_answers import Completion, CompletionChunk
from atom_lite.api.schema_completions import DEFAULT_MAX_TOKENS, CompletionRequest
from atom_lite.api.structured import compile_grammar, stated_form
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from atom_lite.api.frontend import Frontend

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    openapi_extra=body_of(CompletionRequest) | {"parameters": header_parameters()},
    responses=answers(*GENERATES, whole=Completion, event=CompletionChunk),
)
async def completions(request: Request) -> Response:
    """Continue one or several prompts; several give one choice each, in their order."""
    frontend = frontend_of(request)
    body = await read_body(request, CompletionRequest)
    if body.request_id is not None:
        rename_request(request, body.request_id)
    take_headers(body, request.headers)
    model = frontend.check_model(body.model)
    prompts = await _prompts(frontend, body)
    grammar = await compile_grammar(frontend.grammars, stated_form(body))
    generation = frontend.generation(
        body, prompts, default_max_tokens=DEFAULT_MAX_TOKENS, grammar=grammar
    )
    options = ReplyOptions.of(
        body, frontend.sampling, request_id=request_id_of(request), model=model
    )
    reply = CompletionReply(options, frontend.token_table)
    return GenerationResponse(
        frontend, generation, reply, stream_interval=body.stream_interval or 1
    )


async def _prompts(frontend: Frontend, body: CompletionRequest) -> list[PromptInput]:
    if not body.prompts:
        raise RequestError("'prompt' holds no prompt", param="prompt")
    prompts = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            ids = await frontend.prompts.from_text(
                prompt,
                add_special_tokens=body.add_special_tokens,
                must_fit=body.truncate_prompt_tokens is None,
            )
            prompts.append(PromptInput(ids, prompt))
        else:
            frontend.sampling.tokens.check(prompt, "prompt")
            prompts.append(PromptInput(prompt))
    return prompts

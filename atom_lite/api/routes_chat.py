"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation
from starlette.responses import Response  # noqa: TC002

from atom_lite.api.admission import PromptInput
from atom_lite.api.answer_grammar import constrain
from atom_lite.api.frontend import frontend_of
from atom_lite.api.gate import rename_request, request_id_of
from atom_lite.api.objectives import header_parameters, take_headers
from atom_lite.api.openapi import GENERATES, answers, body_of
from atom_lite.api.replies import ChatReply
from atom_lite.api.reply_options import ReplyOptions
from atom_lite.api.respond import GenerationResponse
from atom_lite.api.schema import read_body
from atom_lite.api.schema_answers import ChatCompletion, ChatCompletionChunk
from atom_lite.api.schema_chat import ChatCompletionRequest

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    openapi_extra=body_of(ChatCompletionRequest) | {"parameters": header_parameters()},
    responses=answers(*GENERATES, whole=ChatCompletion, event=ChatCompletionChunk),
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation with one assistant message, whole or as server-sent events."""
    frontend = frontend_of(request)
    body = await read_body(request, ChatCompletionRequest)
    if body.request_id is not None:
        rename_request(request, body.request_id)
    take_headers(body, request.headers)
    model = frontend.check_model(body.model)
    prompt = await frontend.prompts.from_messages(
        body.messages,
        body,
        add_special_tokens=body.add_special_tokens,
        must_fit=body.truncate_prompt_tokens is None,
    )
    form = frontend.formats.form(body, prompt.text)
    grammar, form = await constrain(frontend.grammars, body, form)
    generation = frontend.generation(
        body, [PromptInput(prompt.token_ids)], grammar=grammar, form=form
    )
    options = ReplyOptions.of(
        body, frontend.sampling, request_id=request_id_of(request), model=model
    )
    reply = ChatReply(
        options, frontend.token_table, short_call_ids=form is not None and form.short_call_ids
    )
    return GenerationResponse(
        frontend, generation, reply, stream_interval=body.stream_interval or 1
    )

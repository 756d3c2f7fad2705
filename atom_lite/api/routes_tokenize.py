"""POST /tokenize, POST /detokenize and GET /tokenizer_info, as vLLM has them.

A client may send megabytes here. Long answers are made in a worker thread, whose loops let the
event loop in between, and are written as JSON by msgspec: FastAPI's own way would look at each of a
million ids while the streams of all others stand still.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation
from starlette.responses import Response

from atom_lite.api import sse
from atom_lite.api.frontend import frontend_of
from atom_lite.api.openapi import READS_BODY, answers, body_of
from atom_lite.api.schema import read_body
from atom_lite.api.schema_answers import DetokenizeAnswer, TokenizeAnswer
from atom_lite.api.schema_tokenize import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.api.frontend import Frontend

# About 1 ms of work; a thread hop takes about 0.1 ms.
_THREAD_ABOVE_TOKENS = 4096

router = APIRouter(tags=["tokenizer"])


@router.post(
    "/tokenize",
    openapi_extra=body_of(TokenizeRequest),
    responses=answers(*READS_BODY, whole=TokenizeAnswer),
)
async def tokenize(request: Request) -> Response:
    """The token ids that a prompt, or messages under the chat template, would have."""
    frontend = frontend_of(request)
    body = await read_body(request, TokenizeRequest)
    frontend.check_model(body.model)
    special = body.add_special_tokens
    if body.messages is not None:
        prompt = await frontend.prompts.from_messages(
            body.messages, body, add_special_tokens=bool(special)
        )
        ids = prompt.token_ids
    else:
        assert body.prompt is not None  # the schema wants one of the two
        ids = await frontend.prompts.from_text(body.prompt, add_special_tokens=special is not False)
    return await _answer(lambda: _described(frontend, ids, body.return_token_strs), len(ids))


@router.post(
    "/detokenize",
    openapi_extra=body_of(DetokenizeRequest),
    responses=answers(*READS_BODY, whole=DetokenizeAnswer),
)
async def detokenize(request: Request) -> Response:
    """The text of token ids, control tokens included."""
    frontend = frontend_of(request)
    body = await read_body(request, DetokenizeRequest)
    frontend.check_model(body.model)

    def decode() -> dict[str, str]:
        return {"prompt": frontend.tokenizer.decode(body.tokens, skip_special_tokens=False)}

    return await _answer(decode, len(body.tokens))


@router.get("/tokenizer_info", responses=answers(401))
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """The content of the model's tokenizer_config.json."""
    return dict(frontend_of(request).tokenizer.info())


def _described(frontend: Frontend, ids: list[int], with_strings: bool | None) -> dict[str, Any]:
    name_of = frontend.tokenizer.backend.id_to_token
    return {
        "count": len(ids),
        "max_model_len": frontend.engine.ready.max_model_len,
        "tokens": ids,
        "token_strs": [name_of(token_id) for token_id in ids] if with_strings else None,
    }


async def _answer(make: Callable[[], dict[str, Any]], num_tokens: int) -> Response:
    def write() -> bytes:
        return sse.json_bytes(make())

    body = await asyncio.to_thread(write) if num_tokens > _THREAD_ABOVE_TOKENS else write()
    return Response(body, media_type="application/json")

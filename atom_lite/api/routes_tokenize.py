"""POST /tokenize, POST /detokenize and GET /tokenizer_info, as vLLM has them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation

from atom_lite.api.frontend import frontend_of
from atom_lite.api.openapi import body_of
from atom_lite.api.schema import read_body
from atom_lite.api.schema_tokenize import DetokenizeRequest, TokenizeRequest

router = APIRouter(tags=["tokenizer"])


@router.post("/tokenize", openapi_extra=body_of(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """The token ids that a prompt, or messages under the chat template, would have."""
    frontend = frontend_of(request)
    body = await read_body(request, TokenizeRequest)
    frontend.check_model(body.model)
    special = body.add_special_tokens
    if body.messages is not None:
        ids = await frontend.prompts.from_messages(
            body.messages, body, add_special_tokens=bool(special)
        )
    else:
        assert body.prompt is not None  # the schema wants one of the two
        ids = await frontend.prompts.from_text(body.prompt, add_special_tokens=special is not False)
    backend = frontend.tokenizer.backend
    return {
        "count": len(ids),
        "max_model_len": frontend.engine.ready.max_model_len,
        "tokens": ids,
        "token_strs": [backend.id_to_token(i) for i in ids] if body.return_token_strs else None,
    }


@router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, str]:
    """The text of token ids, control tokens included."""
    frontend = frontend_of(request)
    body = await read_body(request, DetokenizeRequest)
    frontend.check_model(body.model)
    return {"prompt": frontend.tokenizer.decode(body.tokens, skip_special_tokens=False)}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """The content of the model's tokenizer_config.json."""
    return dict(frontend_of(request).tokenizer.info())

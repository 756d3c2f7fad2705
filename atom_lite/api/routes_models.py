"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation

from atom_lite.api.frontend import frontend_of

if TYPE_CHECKING:
    from atom_lite.api.frontend import Frontend

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """One card per served name."""
    frontend = frontend_of(request)
    return {"object": "list", "data": [_card(frontend, name) for name in frontend.names]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    """The card of one name, which may hold slashes; 404 for any other."""
    frontend = frontend_of(request)
    return _card(frontend, frontend.check_model(model))


def _card(frontend: Frontend, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": frontend.started_at,
        "owned_by": "atom_lite",
        "root": frontend.names[0],
        "parent": None,
        "max_model_len": frontend.engine.ready.max_model_len,
        "permission": [],
    }

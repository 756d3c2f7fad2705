"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation

from atom_lite.api.frontend import frontend_of
from atom_lite.api.openapi import answers
from atom_lite.api.schema_answers import ModelCard, ModelList

if TYPE_CHECKING:
    from atom_lite.api.frontend import Frontend

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=answers(401))
async def list_models(request: Request) -> ModelList:
    """One card per served name."""
    frontend = frontend_of(request)
    return ModelList(data=[_card(frontend, name) for name in frontend.names])


@router.get("/v1/models/{model:path}", responses=answers(401, 404))
async def retrieve_model(request: Request, model: str) -> ModelCard:
    """The card of one name, which may hold slashes; 404 for any other."""
    frontend = frontend_of(request)
    return _card(frontend, frontend.check_model(model))


def _card(frontend: Frontend, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=frontend.started_at,
        root=frontend.names[0],
        max_model_len=frontend.engine.ready.max_model_len,
    )

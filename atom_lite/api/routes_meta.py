"""Health, version, metrics and the small controls: no inference here."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002  # FastAPI reads the annotation
from starlette.responses import PlainTextResponse, Response

from atom_lite import __version__
from atom_lite.api.faults import error_response
from atom_lite.api.frontend import frontend_of
from atom_lite.api.openapi import answers
from atom_lite.api.schema_answers import Load, ServerInfo, Version

router = APIRouter(tags=["server"])


@router.get("/health", response_class=Response, responses=answers(503))
async def health(request: Request) -> Response:
    """200 and nothing else while the server takes work; 503 with the reason otherwise."""
    frontend = frontend_of(request)
    if not frontend.engine.alive:
        return error_response(503, "The engine is dead", code="engine_dead")
    if not frontend.engine.responding:
        return error_response(503, "The engine does not respond", code="engine_hung")
    if frontend.shutting_down:
        return error_response(503, "The server is shutting down", code="shutting_down")
    return Response()


@router.get("/ping", name="ping", response_class=Response, responses=answers(503))
async def ping(request: Request) -> Response:
    """The same for SageMaker."""
    return await health(request)


@router.post("/ping", name="ping_post", response_class=Response, responses=answers(503))
async def ping_post(request: Request) -> Response:
    """The same for SageMaker, which may also POST."""
    return await health(request)


@router.get("/version")
async def version() -> Version:
    """The version of this server."""
    return Version(version=__version__)


@router.get("/server_info", responses=answers(401))
async def server_info(request: Request) -> ServerInfo:
    """What runs: the model, its limits, the engine's statistics and the calibration's state."""
    frontend = frontend_of(request)
    return ServerInfo(
        version=__version__,
        served_model_names=list(frontend.names),
        engine=msgspec.to_builtins(frontend.engine.ready),
        stats=msgspec.to_builtins(frontend.engine.stats),
    )


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"application/openmetrics-text": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """All series, in the Prometheus text format or OpenMetrics as the client prefers."""
    frontend = frontend_of(request)
    if not frontend.engine.alive:
        frontend.metrics.observe_engine_death()
    page, content_type = frontend.metrics.exposition(request.headers.get("accept", ""))
    return Response(page, headers={"content-type": content_type})


@router.get("/load", responses=answers(401))
async def load(request: Request) -> Load:
    """How many generating requests are open."""
    return Load(server_load=frontend_of(request).open_requests)


@router.post("/reset_prefix_cache", response_class=Response, responses=answers(401))
async def reset_prefix_cache(request: Request) -> Response:
    """Forget cached KV blocks that no running sequence holds."""
    frontend_of(request).engine.reset_prefix_cache()
    return Response()

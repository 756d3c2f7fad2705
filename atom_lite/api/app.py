"""Puts the HTTP application together.

Runs in the frontend process; imports neither torch nor transformers. The launcher uses
`app.state.frontend` (`open_requests`, `begin_shutdown`, `abort_all`) to stop it gracefully.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from atom_lite import __version__
from atom_lite.api import (
    faults,
    openapi,
    routes_chat,
    routes_completions,
    routes_meta,
    routes_models,
    routes_tokenize,
)
from atom_lite.api.frontend import Frontend
from atom_lite.api.gate import Gate
from atom_lite.api.schema_answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    DetokenizeAnswer,
    TokenizeAnswer,
)
from atom_lite.api.schema_chat import ChatCompletionRequest
from atom_lite.api.schema_completions import CompletionRequest
from atom_lite.api.schema_tokenize import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from atom_lite.api.engine_client import EngineClient
    from atom_lite.api.structured import GrammarSource
    from atom_lite.config import Config
    from atom_lite.observability.metrics import Metrics
    from atom_lite.text.tokenizer import Tokenizer

_ROUTES = (routes_chat, routes_completions, routes_models, routes_tokenize, routes_meta)
_SCHEMAS: list[type[BaseModel]] = [
    ChatCompletionRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    TokenizeAnswer,
    DetokenizeAnswer,
]


def create_app(
    config: Config,
    engine: EngineClient,
    tokenizer: Tokenizer,
    *,
    model_name: str,
    metrics: Metrics,
    grammars: GrammarSource | None = None,
) -> FastAPI:
    """The application of one served model.

    Args:
        config: the whole tree; `server` and `model` are read here.
        engine: ready to take sequences.
        tokenizer: of the model.
        model_name: served under this name where `--served-model-name` gives none.
        metrics: filled by requests, shown at /metrics.
        grammars: compiles what the output must look like; None refuses to.

    Raises:
        ConfigError: the chat template cannot be read.
    """
    app = FastAPI(title="atom_lite", version=__version__, redoc_url=None)
    app.state.frontend = Frontend(
        config,
        engine,
        tokenizer,
        names=config.model.served_model_name or (model_name,),
        metrics=metrics,
        grammars=grammars,
    )
    for module in _ROUTES:
        app.include_router(module.router)
    faults.install(app)
    openapi.install(app, _SCHEMAS, secured=bool(config.server.api_key))
    app.add_middleware(Gate, api_keys=config.server.api_key, metrics=metrics)
    if config.server.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.server.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    metrics.expect_routes(
        (route.path, method)
        for module in _ROUTES
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    )
    return app

"""The HTTP server: uvicorn as the launcher wants it, over a socket that is bound already."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from fastapi import FastAPI

    from atom_lite.config import ServerConfig

_LAST_SECONDS = 5  # for connections that are open when uvicorn is told to exit


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the launcher decides what a signal means."""

    @classmethod
    def of(cls, app: FastAPI, settings: ServerConfig) -> HttpServer:
        """A server of `app`, not started yet."""
        return cls(
            uvicorn.Config(
                app,
                log_level=settings.uvicorn_log_level,
                access_log=not settings.disable_uvicorn_access_log,
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=_LAST_SECONDS,
                root_path=settings.root_path,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # uvicorn's own is a generator too
        """None are: see the class."""
        yield

    def refuse_new_connections(self) -> None:
        """Stop listening; what is connected goes on."""
        for server in self.servers:
            server.close()

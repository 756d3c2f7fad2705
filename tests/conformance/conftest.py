"""The same live server as the end-to-end tests use."""

from tests.e2e.conftest import live_server

__all__ = ["live_server"]

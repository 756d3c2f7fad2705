"""The exception tree: who is at fault decides what happens.

    AtomLiteError
    |-- ConfigError     the operator: a flag, a file, a checkpoint. One line on stderr, exit code 2.
    |-- RequestError    the client: a 4xx with OpenAI's nested error body. The engine goes on.
    `-- EngineError     us: a 5xx. The engine may be dead.

`assert` is for internal invariants only, never for what a user, a file or another process can
cause.
"""

from __future__ import annotations


class AtomLiteError(Exception):
    """Root of every error that this project raises on purpose."""


class ConfigError(AtomLiteError):
    """A flag, file or checkpoint cannot be used; the message names it and the limit."""


class RequestError(AtomLiteError):
    """A client's request cannot be served; becomes an HTTP 4xx (503 for overload).

    Args:
        message: what is wrong, with the value and the limit.
        param: the field at fault in dotted form, as in OpenAI's error body.
        code: machine-readable code such as `context_length_exceeded`.
        status: HTTP status code.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class EngineError(AtomLiteError):
    """The engine failed or is gone; becomes an HTTP 5xx."""

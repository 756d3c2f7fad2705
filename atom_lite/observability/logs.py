"""Log lines of frontend and engine: one format, one level, standard error.

Both processes call `configure_logging` first thing. uvicorn runs with `log_config=None`, so its
lines pass through the same handler. Message texts of requests are never logged here.
"""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(levelname)-7s %(asctime)s [%(process)d] %(name)s: %(message)s"
_DATE_FORMAT = "%m-%d %H:%M:%S"
# Libraries that report each request or file at INFO; their warnings still show.
_CHATTY_LOGGERS = ("httpx", "httpcore", "filelock", "urllib3", "huggingface_hub")


def configure_logging(level: str) -> None:
    """Send every logger of this process to standard error in one format.

    Calling it again replaces the handler, so a test or an embedding program may do so.

    Args:
        level: critical, error, warning, info or debug.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, _DATE_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))

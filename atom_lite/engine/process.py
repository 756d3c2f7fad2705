"""Entry point of the engine process: `python -m atom_lite.engine.process ADDRESS ADDRESS`.

The launcher writes the config as one line of JSON to standard input and then keeps that pipe open:
it is the lifeline by which the engine notices that its frontend died. Ctrl-C reaches the frontend
only, which ends the engine with a Shutdown message.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading

import msgspec

from atom_lite.config import Config
from atom_lite.engine.without_transformers import stand_in_for_transformers
from atom_lite.errors import ConfigError
from atom_lite.ipc.link import SocketLink
from atom_lite.messages import EngineFailed
from atom_lite.observability.logs import configure_logging

_LIFELINE_POLL_MILLISECONDS = 200

logger = logging.getLogger(__name__)


def main() -> int:
    """Load the model, say EngineReady, serve.

    Returns:
        0 after a Shutdown, 1 when loading or a step failed, 2 for the operator's mistake.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    requests_address, events_address = sys.argv[1:3]
    lifeline = sys.stdin.fileno()
    config = msgspec.json.decode(_read_line(lifeline), type=Config)
    configure_logging(config.observability.log_level)
    link = SocketLink(requests_address, events_address, lifeline)
    try:
        return _serve(config, link)
    except ConfigError as error:
        link.send(EngineFailed(message=str(error), config=True))
        return 2
    except Exception as error:
        logger.exception("the engine could not start")
        link.send(EngineFailed(message=f"{type(error).__name__}: {error}"))
        return 1
    finally:
        link.close()


def _serve(config: Config, link: SocketLink) -> int:
    # torch is imported here, after the checks above: a bad address or config fails in milliseconds
    stand_in_for_transformers()
    from atom_lite.engine.assembly import assemble

    # A start may wait minutes for other nodes; the head reads the lifeline only once it runs.
    started = threading.Event()
    lifeline = sys.stdin.fileno()
    threading.Thread(target=_leave_with_frontend, args=(lifeline, started), daemon=True).start()
    engine = assemble(config, link, pin=True)
    started.set()
    link.send(engine.ready)
    return 0 if engine.head.run() else 1


def _leave_with_frontend(lifeline: int, started: threading.Event) -> None:
    """End when the frontend does: nothing more is ever written, so readable means closed."""
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    while not started.is_set():
        if poller.poll(_LIFELINE_POLL_MILLISECONDS):
            os._exit(1)


def _read_line(descriptor: int) -> bytes:
    """One line, read byte by byte so that nothing of what follows is swallowed by a buffer."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"\n", b""):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    # A forward pass may still run on its thread; the interpreter's own teardown under it can crash.
    os._exit(exit_code)

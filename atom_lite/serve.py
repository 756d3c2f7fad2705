"""`python -m atom_lite.serve`: flags -> Config -> launch; turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys

from atom_lite.cli import parse_config
from atom_lite.errors import ConfigError
from atom_lite.parallel.spinning import bound_spinning


def main(argv: list[str] | None = None) -> int:
    """Run the server until it is stopped.

    Returns:
        0 after a clean stop, 1 when the engine died, 2 for a mistake in flags, files or checkpoint.
    """
    # Until the server has its own handlers, both signals mean: nothing runs yet, just leave.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    bound_spinning(os.environ)
    try:
        config = parse_config(sys.argv[1:] if argv is None else argv)
        from atom_lite.launch import serve  # HTTP and text libraries are not needed for --help

        return serve(config)
    except ConfigError as error:
        sys.stderr.write(f"atom_lite: error: {' '.join(str(error).splitlines())}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)


if __name__ == "__main__":
    sys.exit(main())

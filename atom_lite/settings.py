"""How a field of the config tree is declared: with its help, and the bounds that are checked."""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any

from atom_lite.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
    short: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A config field with what `--help` says about it.

    Args:
        default: value when neither the TOML file nor a flag sets it; None means "decided at start".
        help: one sentence; for a None default it says what is chosen.
        choices: accepted words.
        metavar: placeholder of the value in `--help`.
        short: an additional flag name, such as `-pp`.
        minimum: least accepted number.
        maximum: greatest accepted number.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "metavar": metavar,
        "short": short,
        "minimum": minimum,
        "maximum": maximum,
    }
    if isinstance(default, tuple | str | int | float | bool | None):
        return field(default=default, metadata=metadata)
    raise TypeError(f"a setting's default must be immutable, got {default!r}")


def json_object(flag: str, text: str) -> dict[str, Any]:
    """What a flag's JSON says.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} {text}: must be a JSON object")
    return value

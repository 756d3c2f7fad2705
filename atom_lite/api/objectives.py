"""Objectives that a request brings: its own fields, or headers in their place.

Headers are for gateways that set a class of service without reading bodies. A field of the body
goes before the header of the same meaning, and either before the server's flag. Runs in the
frontend process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from atom_lite.api.faults import shown
from atom_lite.config_scheduling import LEAST_SLO_MS, MOST_SLO_MS
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from atom_lite.api.schema import GenerationRequest

HEADERS = {"ttft_slo_ms": "X-TTFT-SLO-Ms", "tbt_slo_ms": "X-TBT-SLO-Ms"}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def take_headers(body: GenerationRequest, headers: Headers) -> None:
    """Fill in the objectives that the body leaves open.

    Raises:
        RequestError: 400 for a header that is no objective.
    """
    if body.ttft_slo_ms is None:
        body.ttft_slo_ms = _from_header(headers, "ttft_slo_ms")
    if body.tbt_slo_ms is None:
        body.tbt_slo_ms = _from_header(headers, "tbt_slo_ms")


def header_parameters() -> list[dict[str, Any]]:
    """The headers as parameters of an OpenAPI operation."""
    schema = {"type": "number", "minimum": LEAST_SLO_MS, "maximum": MOST_SLO_MS}
    return [
        {
            "name": header,
            "in": "header",
            "required": False,
            "schema": schema,
            "description": f"Stands for the field `{field}` where the body has none",
        }
        for field, header in HEADERS.items()
    ]


def _from_header(headers: Headers, field: str) -> float | None:
    text = headers.get(HEADERS[field])
    if text is None:
        return None
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not LEAST_SLO_MS <= value <= MOST_SLO_MS:
        raise RequestError(
            f"The header {HEADERS[field]} is {shown(text)}, must be a number of milliseconds from "
            f"{LEAST_SLO_MS:g} to {MOST_SLO_MS:.0f}",
            param=field,
        )
    return value

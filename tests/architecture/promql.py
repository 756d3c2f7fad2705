"""The PromQL of a Grafana dashboard: its queries, and the metrics that a query names."""

from __future__ import annotations

import re
from typing import Any

_STRING_OR_LABELS = re.compile(r'\{[^}]*\}|"[^"]*"|\[[^\]]*\]')
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAME = re.compile(r"(?<![\w:.])[a-zA-Z_:][a-zA-Z0-9_:]*")
_OPERATORS = frozenset({"and", "or", "unless", "offset", "bool"})


def dashboard_queries(dashboard: dict[str, Any]) -> list[str]:
    """All expressions of all panels."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def metric_names(query: str) -> set[str]:
    """Series that a query reads: every name that is no function, label or keyword."""
    bare = _GROUPING.sub(" ", _STRING_OR_LABELS.sub(" ", query))
    names = set()
    for match in _NAME.finditer(bare):
        rest = bare[match.end() :].lstrip()
        if not rest.startswith("(") and match[0] not in _OPERATORS:
            names.add(match[0])
    return names

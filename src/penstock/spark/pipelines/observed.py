"""What a batch of a query has observed (`DataFrame.observe`), however Spark tells it."""

from __future__ import annotations

from typing import Any


def observed(event: Any) -> dict[str, dict[str, Any]]:
    """The fields of each observation in a progress event, by its name. One has no fields if nothing ran."""
    return {name: _fields(row) for name, row in (event["observedMetrics"] or {}).items()}


def _fields(row: Any) -> dict[str, Any]:
    if row is None or not len(row):
        return {}
    found: dict[str, Any] = row.asDict()
    if found.keys() == {"values", "schema"}:  # Spark Connect tells a row with the names of its fields beside it
        return dict(zip((field["name"] for field in found["schema"]["fields"]), found["values"], strict=True))
    return found

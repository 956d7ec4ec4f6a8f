"""The parts of an OpenAPI description."""

from __future__ import annotations

from typing import Any

from penstock.message import MAX_NUMBER
from penstock.server.http.request_response import JSON, REASONS

Spec = dict[str, Any]
ANY = "*/*"
ERROR: Spec = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def body(schema: Spec, content_type: str = JSON) -> Spec:
    return {"content": {content_type: {"schema": schema}}}


def response(status: int, text: str, schema: Spec | None = None, content_type: str = JSON, headers: Spec | None = None) -> Spec:
    found: Spec = {"description": text}
    if schema is not None:
        found |= body(schema, content_type)
    if headers:
        found["headers"] = {name: {"schema": header} for name, header in headers.items()}
    return {str(status): found}


def operation(tag: str, text: str, *responses: Spec, errors: str, **more: Any) -> Spec:
    """``errors`` are statuses whose body is an `ERROR`; some apply to every request."""
    answers: Spec = {}
    for each in responses:
        answers |= each
    for status in sorted({*errors.split(), "400", "401", "403", "408", "413", "417", "429", "431", "503", "505"}):
        answers |= response(int(status), REASONS[int(status)], ERROR)
    return {"tags": [tag], "summary": text, "responses": answers, **more}


def path(name: str) -> Spec:
    example = {"example": "orders"} if name == "queue" else {}
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}, **example}


def header(name: str, least: int, most: int) -> Spec:
    return {"name": name, "in": "header", "schema": {"type": "integer", "minimum": least, "maximum": most}}


def query(name: str) -> Spec:
    return {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}}

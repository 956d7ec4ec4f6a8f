"""The OpenAPI description of all dialects, and an HTML page of it. Tests compare it with the routes and their answers."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import Any

import penstock
from penstock.message import MAX_NUMBER
from penstock.policy import MAX_HOLDER
from penstock.server.dialects.native import BROKER_VERBS, VERBS
from penstock.server.dialects.native_jobs import FASTEST
from penstock.server.dialects.sqs.shapes import OPERATIONS
from penstock.server.http.request_response import JSON, REASONS
from penstock.server.jobs.filters import LONGEST_TEXT, MOST_IDS, STATES
from penstock.server.jobs.plan import CANCELLED, CANCELLING, COMPLETED, FAILED, RUNNING, Action
from penstock.server.page.assets import VIEWS
from penstock.server.page.messages import MOST_HEADS

Spec = dict[str, Any]
ANY = "*/*"
SECONDS = {"type": "number", "minimum": 0, "maximum": MAX_NUMBER}
SETTINGS: Spec = {
    "redrive_policy": {
        "type": ["object", "null"],
        "required": ["max_receives", "dead_letter_queue"],
        "properties": {
            "max_receives": {"type": "integer", "minimum": 1, "maximum": MAX_NUMBER},
            "dead_letter_queue": {"type": "string"},
        },
        "additionalProperties": False,
    },
    "retention_timeout": {**SECONDS, "minimum": 1},
    "visibility_timeout": SECONDS,
    "message_delay": SECONDS,
    "message_deduplication": {"type": "boolean"},
}
QUEUE: Spec = {"type": "object", "properties": {"name": {"type": "string"}, **SETTINGS}, "required": ["name", *SETTINGS]}
STATUS: Spec = {name: {"type": "integer"} for name in ("messages", "visible_messages", "oldest_message_age")}
ERROR: Spec = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
CALL: Spec = {"type": "object", "properties": {"arguments": {"type": "object"}}, "required": ["arguments"]}
MESSAGE_HEADERS = {
    "X-MQS-MESSAGE-ID": {"type": "string", "format": "uuid"},
    "X-MQS-MESSAGE-RECEIVES": {"type": "integer"},
    "X-MQS-MESSAGE-PUBLISHED-AT": {"type": "string", "format": "date-time"},
    "X-MQS-MESSAGE-VISIBLE-AT": {"type": "string", "format": "date-time"},
    "X-MQS-MESSAGE-HOLDER": {"type": "string"},
}
HOLDER: Spec = {
    "name": "X-MQS-HOLDER", "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": MAX_HOLDER},
    "description": "Who receives, as others see it while the message is held", "example": "worker 7",
}  # fmt: skip


def _body(schema: Spec, content_type: str = JSON) -> Spec:
    return {"content": {content_type: {"schema": schema}}}


def _response(
    status: int, text: str, schema: Spec | None = None, content_type: str = JSON, headers: Spec | None = None
) -> Spec:
    response: Spec = {"description": text}
    if schema is not None:
        response |= _body(schema, content_type)
    if headers:
        response["headers"] = {name: {"schema": header} for name, header in headers.items()}
    return {str(status): response}


def _operation(tag: str, text: str, *responses: Spec, errors: str, **more: Any) -> Spec:
    """``errors`` are statuses whose body is an `ERROR`; some apply to every request."""
    answers: Spec = {}
    for response in responses:
        answers |= response
    for status in sorted({*errors.split(), "400", "401", "403", "408", "413", "417", "429", "431", "503", "505"}):
        answers |= _response(int(status), REASONS[int(status)], ERROR)
    return {"tags": [tag], "summary": text, "responses": answers, **more}


def _path(name: str) -> Spec:
    example = {"example": "orders"} if name == "queue" else {}
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}, **example}


def _header(name: str, least: int, most: int) -> Spec:
    return {"name": name, "in": "header", "schema": {"type": "integer", "minimum": least, "maximum": most}}


def _query(name: str) -> Spec:
    return {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}}


def _mqs(max_wait: int) -> Spec:
    given: Spec = {"properties": SETTINGS, "required": ["retention_timeout", "visibility_timeout"]}
    settings = {"requestBody": {"required": True, **_body({"type": "object", "additionalProperties": False, **given})}}
    described = {**QUEUE, "properties": {**QUEUE["properties"], "status": {"type": "object", "properties": STATUS}}}
    queues = {"type": "object", "properties": {"total": {"type": "integer"}, "queues": {"type": "array", "items": QUEUE}}}
    many = '; several are listed in the body: {"messages": [{"id": …, "duplicate": …}]}'
    sent = {"X-MQS-MESSAGE-ID": {"type": "string"}, "X-MQS-TRUNCATED": {"type": "integer"}}
    return {
        "/queues": {
            "get": _operation(
                "mqs", "List the queues, at most 1,000 at a time", _response(200, "A part of them", queues), errors="500",
                parameters=[_query("offset"), _query("limit")],
            )
        },
        "/queues/{queue}": {
            "parameters": [_path("queue")],
            "put": _operation("mqs", "Create a queue", _response(201, "Created", QUEUE), errors="409 500", **settings),
            "post": _operation("mqs", "Change its settings", _response(200, "Changed", QUEUE), errors="404 500", **settings),
            "get": _operation("mqs", "A queue's settings and status", _response(200, "Found", described), errors="404 500"),
            "delete": _operation(
                "mqs", "Delete a queue and its messages", _response(200, "Its last settings", QUEUE), errors="404 500"
            ),
        },
        "/messages/{queue}": {
            "parameters": [_path("queue")],
            "post": _operation(
                "mqs", "Send a message, or several as multipart/mixed",
                _response(201, f"On stable storage{many}", headers=sent), _response(200, f"A duplicate{many}", headers=sent),
                errors="404 500", requestBody=_body({}, ANY),
            ),
            "get": _operation(
                "mqs", "Receive a message, or several as multipart/mixed",
                _response(200, "The message", {}, ANY, headers=MESSAGE_HEADERS), _response(204, "There is none"),
                errors="404 500",
                parameters=[_header("X-MQS-MAX-MESSAGES", 1, 999), _header("X-MQS-MAX-WAIT-TIME", 0, max_wait), HOLDER],
            ),
        },
        "/messages/{id}": {
            "parameters": [_path("id")],
            "delete": _operation("mqs", "Delete a message", _response(204, "Deleted"), errors="404 500"),
        },
    }  # fmt: skip


def _mqcore() -> Spec:
    id_header = {"X-Message-Id": {"type": "string"}}
    return {
        "/{queue}": {
            "parameters": [_path("queue")],
            "get": _operation("MQ-Core", "Is the queue there?", _response(200, "It is"), errors="404"),
            "put": _operation("MQ-Core", "Create it", _response(201, "Created"), _response(200, "It was there"), errors=""),
            "delete": _operation("MQ-Core", "Delete a queue and its messages", _response(204, "Deleted"), errors="404"),
        },
        "/{queue}/messages": {
            "parameters": [_path("queue")],
            "get": _operation(
                "MQ-Core", "Fetch a message",
                _response(200, "The message", {}, ANY, headers=id_header), _response(204, "There is none"), errors="404",
            ),
            "post": _operation(
                "MQ-Core", "Add a message", _response(201, "On stable storage", headers=id_header), errors="404",
                requestBody=_body({}, ANY),
            ),
        },
        "/{queue}/messages/{id}": {
            "parameters": [_path("queue"), _path("id")],
            "delete": _operation("MQ-Core", "Delete a message", _response(204, "Deleted"), errors="404"),
        },
    }  # fmt: skip


def _sqs() -> Spec:
    """The operations are AWS's, which describes them itself; here are the addresses and the forms of an answer."""
    types = ("text/xml", "application/x-amz-json-1.0", JSON)
    codes = (200, 400, 401, 403, 404, 408, 413, 417, 429, 431, 500, 503, 505)
    responses = {str(code): {"description": REASONS[code], "content": {kind: {} for kind in types}} for code in codes}
    target = {"name": "X-Amz-Target", "in": "header", "schema": {"enum": [f"AmazonSQS.{name}" for name in OPERATIONS]}}
    action = {"name": "Action", "in": "query", "schema": {"enum": list(OPERATIONS)}}
    account = {**_path("account"), "schema": {"type": "string", "pattern": "^[0-9]{12}$"}, "example": "000000000000"}
    queue = {**_path("queue"), "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,80}$"}}
    text = "An operation of Amazon SQS, in JSON 1.0 (X-Amz-Target) or as a form (Action)"
    bodies = {
        kind: {"schema": {"type": "object"}} for kind in ("application/x-amz-json-1.0", "application/x-www-form-urlencoded")
    }
    post = {
        "tags": ["sqs"],
        "summary": text,
        "responses": responses,
        "parameters": [target],
        "requestBody": {"content": bodies},
    }
    get = {"tags": ["sqs"], "summary": "The same, in the address", "responses": responses, "parameters": [action]}
    return {"/": {"post": post}, "/{account}/{queue}": {"parameters": [account, queue], "get": get, "post": post}}


AGE: Spec = {"type": ["number", "null"], "minimum": 0, "maximum": MAX_NUMBER}
TEXT: Spec = {"type": ["string", "null"], "minLength": 1, "maxLength": LONGEST_TEXT}
FILTER: Spec = {
    "type": "object",
    "description": "Which messages are meant: those that fit everything that is given",
    "properties": {
        "state": {"enum": [*STATES, None]},
        "ids": {"type": ["array", "null"], "items": {"type": "string"}, "maxItems": MOST_IDS},
        **dict.fromkeys(("reason", "source", "group", "text", "field"), TEXT),
        **dict.fromkeys(("older_than", "younger_than"), AGE),
        "equals": {"description": "What the value at `field` is"},
    },
    "additionalProperties": False,
}
JOB: Spec = {
    "type": "object",
    "required": [
        *("id", "queue", "action", "filter", "to", "rate", "status", "done", "stayed", "scanned", "messages", "total"),
        *("reason", "started_at", "by"),
    ],
    "properties": {
        "status": {"enum": [RUNNING, COMPLETED, CANCELLING, CANCELLED, FAILED]},
        "done": {"type": "integer"},
        "total": {"type": ["integer", "null"]},
    },
}
PLAN: Spec = {
    "type": "object",
    "required": ["queue", "action"],
    "properties": {
        "queue": {"type": "string"},
        "action": {"enum": list(Action)},
        "filter": FILTER,
        "to": {"type": ["string", "null"]},
        "rate": {"type": ["integer", "null"], "minimum": 1, "maximum": FASTEST},
        "expect": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_NUMBER},
    },
    "additionalProperties": False,
}
SELECTION: Spec = {
    "type": "object",
    "properties": {
        "filter": FILTER,
        "limit": {"type": "integer", "minimum": 0, "maximum": MOST_HEADS, "description": "List so many; 0: count all"},
        "after": {"type": ["string", "null"], "description": "`more` of the answer before"},
        "by": {"type": ["string", "null"], "description": "Count by reason, source, age or field:a.b.0"},
    },
    "additionalProperties": False,
}
SELECTED: Spec = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "scanned": {"type": "integer"},
        "complete": {"type": "boolean"},
        "sample": {"type": "array", "items": {"type": "string"}},
        "more": {"type": ["string", "null"]},
        "messages": {"type": "array", "items": {"type": "object", "required": ["id", "state", "sent_at", "size"]}},
        "groups": {"type": "array", "items": {"type": "object", "required": ["value", "filter", "count"]}},
        "other": {"type": "integer"},
    },
    "required": ["count", "scanned", "complete", "sample", "more"],
}


def _native() -> Spec:
    call = {"requestBody": {"required": True, **_body(CALL)}}
    answer = _response(200, "What the verb answers", {"type": "object", "required": ["answer"]})
    text = "Call a verb of the library; the client penstock.open speaks this"
    verb = {**_path("verb"), "schema": {"enum": list(VERBS)}}
    broker = {**_path("verb"), "schema": {"enum": list(BROKER_VERBS)}}
    return {
        "/penstock/queues/{queue}/select": {
            "parameters": [_path("queue")],
            "post": _operation(
                "penstock",
                "Messages that fit a filter: listed, or counted, without claiming one",
                _response(200, "Those, or a part", SELECTED),
                errors="404",
                requestBody={"required": True, **_body(SELECTION)},
            ),
        },
        "/penstock/queues/{queue}/messages/{id}": {
            "parameters": [_path("queue"), _path("id")],
            "get": _operation(
                "penstock",
                "One message in full, also from the history",
                _response(200, "Found", {"type": "object", "required": ["message"]}),
                errors="404",
            ),
        },
        "/penstock/queues/{queue}/{verb}": {
            "parameters": [_path("queue"), verb],
            "post": _operation("penstock", text, answer, errors="404 409", **call),
        },
        "/penstock/jobs": {
            "post": _operation(
                "penstock",
                "Change all messages that fit a filter, in the background",
                _response(200, "The job, which has begun", JOB),
                errors="404",
                requestBody={"required": True, **_body(PLAN)},
            ),
            "get": _operation(
                "penstock",
                "The jobs of the last days, or the last of one queue",
                _response(200, "The newest first", {"type": "object", "required": ["jobs"]}),
                errors="404",
                parameters=[{"name": "queue", "in": "query", "schema": {"type": "string", "minLength": 1}}],
            ),
        },
        "/penstock/jobs/{id}": {
            "parameters": [_path("id")],
            "delete": _operation(
                "penstock", "Have a job end before its next part", _response(200, "The job", JOB), errors="404"
            ),
        },
        "/penstock/broker/{verb}": {
            "parameters": [broker],
            "post": _operation("penstock", text, answer, errors="404 409", **call),
        },
        "/penstock/staged/{writer}/{batch}/{name}": {
            "parameters": [_path("writer"), _path("batch"), _path("name")],
            "post": _operation(
                "penstock", "Stage a segment of messages for a batch", answer, errors="409", requestBody=_body({}, ANY)
            ),
        },
    }


def _operators() -> Spec:
    return {
        "/": {"get": _operation("operators", "This page", _response(200, "HTML", {}, "text/html"), errors="")},
        "/health": {
            "get": _operation("operators", "Can the store be written?", _response(200, "Yes", {"type": "object"}), errors="")
        },
        "/metrics": {"get": _operation("operators", "For Prometheus", _response(200, "Text", {}, "text/plain"), errors="")},
        "/openapi.json": {
            "get": _operation("operators", "This description", _response(200, "JSON", {"type": "object"}), errors="")
        },
    }


def _page() -> Spec:
    html = _response(200, "The page", {}, "text/html")
    views: Spec = {}
    for path in VIEWS[1:]:
        names = re.findall(r"{(\w+)}", path)
        views[path] = {"parameters": [_path(name) for name in names]} if names else {}
        views[path]["get"] = _operation("page", "A view of the page", html, errors="")
    token = {
        "type": "object",
        "properties": {"token": {"type": "string"}},
        "required": ["token"],
        "additionalProperties": False,
    }
    session = {"type": "object", "properties": {"signed_in": {"type": "boolean"}, "tokens": {"type": "boolean"}}}
    signed_in = _response(200, "Who is signed in; a cookie keeps it", {**session, "required": ["signed_in", "tokens"]})
    return {
        **views,
        "/dashboard/assets/{name}": {
            "parameters": [_path("name")],
            "get": _operation("page", "A file of the page", _response(200, "The file", {}, ANY), errors="404"),
        },
        "/dashboard/api": {"get": _operation("page", "All paths", _response(200, "HTML", {}, "text/html"), errors="")},
        "/dashboard/session": {
            "get": _operation("page", "Who is signed in on the page?", signed_in, errors=""),
            "post": _operation(
                "page", "Sign in with a token", signed_in, errors="", requestBody={"required": True, **_body(token)}
            ),
            "delete": _operation("page", "Sign out", _response(204, "Signed out"), errors=""),
        },
    }


def _with(some: Spec, others: Spec) -> Spec:
    """The paths of both; one of them, /, has methods in both."""
    return {path: {**others.get(path, {}), **some.get(path, {})} for path in {**some, **others}}


@cache
def document(max_wait: int) -> Spec:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": penstock.__version__, "description": "A durable message queue, in dialects."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
        "paths": {**_mqs(max_wait), **_mqcore(), **_native(), **_with(_sqs(), _operators()), **_page()},
    }


@cache
def page(max_wait: int) -> str:
    """The description as HTML, without scripts or external style sheets."""
    rows = []
    for path, operations in document(max_wait)["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                statuses = " ".join(status for status in operation["responses"] if status < "400")
                cells = (operation["tags"][0], f"{method.upper()} {path}", operation["summary"], statuses)
                rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    style = "body{font:16px sans-serif;margin:2em}td{padding:.2em 1em .2em 0}td:nth-child(2){font-family:monospace}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Penstock</title><style>{style}</style>"
        f"<h1>Penstock {escape(penstock.__version__)}</h1><p>The whole truth is in <a href=/openapi.json>/openapi.json</a>; "
        f"see also <a href=/health>/health</a> and <a href=/metrics>/metrics</a>.</p><table>{''.join(rows)}</table></html>\n"
    )

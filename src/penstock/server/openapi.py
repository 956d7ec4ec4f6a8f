"""The OpenAPI description of all dialects, and an HTML page of it. Tests compare it with the routes and their answers."""

from __future__ import annotations

import re
from functools import cache
from html import escape

import penstock
from penstock.message import MAX_NUMBER
from penstock.policy import MAX_HOLDER
from penstock.server.dialects.sqs.shapes import OPERATIONS
from penstock.server.http.request_response import JSON, REASONS
from penstock.server.openapi_native import native
from penstock.server.openapi_parts import ANY, Spec, body, header, operation, path, query, response
from penstock.server.page.assets import VIEWS

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


def _mqs(max_wait: int) -> Spec:
    given: Spec = {"properties": SETTINGS, "required": ["retention_timeout", "visibility_timeout"]}
    settings = {"requestBody": {"required": True, **body({"type": "object", "additionalProperties": False, **given})}}
    described = {**QUEUE, "properties": {**QUEUE["properties"], "status": {"type": "object", "properties": STATUS}}}
    queues = {"type": "object", "properties": {"total": {"type": "integer"}, "queues": {"type": "array", "items": QUEUE}}}
    many = '; several are listed in the body: {"messages": [{"id": …, "duplicate": …}]}'
    sent = {"X-MQS-MESSAGE-ID": {"type": "string"}, "X-MQS-TRUNCATED": {"type": "integer"}}
    return {
        "/queues": {
            "get": operation(
                "mqs", "List the queues, at most 1,000 at a time", response(200, "A part of them", queues), errors="500",
                parameters=[query("offset"), query("limit")],
            )
        },
        "/queues/{queue}": {
            "parameters": [path("queue")],
            "put": operation("mqs", "Create a queue", response(201, "Created", QUEUE), errors="409 500", **settings),
            "post": operation("mqs", "Change its settings", response(200, "Changed", QUEUE), errors="404 500", **settings),
            "get": operation("mqs", "A queue's settings and status", response(200, "Found", described), errors="404 500"),
            "delete": operation(
                "mqs", "Delete a queue and its messages", response(200, "Its last settings", QUEUE), errors="404 500"
            ),
        },
        "/messages/{queue}": {
            "parameters": [path("queue")],
            "post": operation(
                "mqs", "Send a message, or several as multipart/mixed",
                response(201, f"On stable storage{many}", headers=sent), response(200, f"A duplicate{many}", headers=sent),
                errors="404 500", requestBody=body({}, ANY),
            ),
            "get": operation(
                "mqs", "Receive a message, or several as multipart/mixed",
                response(200, "The message", {}, ANY, headers=MESSAGE_HEADERS), response(204, "There is none"),
                errors="404 500",
                parameters=[header("X-MQS-MAX-MESSAGES", 1, 999), header("X-MQS-MAX-WAIT-TIME", 0, max_wait), HOLDER],
            ),
        },
        "/messages/{id}": {
            "parameters": [path("id")],
            "delete": operation("mqs", "Delete a message", response(204, "Deleted"), errors="404 500"),
        },
    }  # fmt: skip


def _mqcore() -> Spec:
    id_header = {"X-Message-Id": {"type": "string"}}
    return {
        "/{queue}": {
            "parameters": [path("queue")],
            "get": operation("MQ-Core", "Is the queue there?", response(200, "It is"), errors="404"),
            "put": operation("MQ-Core", "Create it", response(201, "Created"), response(200, "It was there"), errors=""),
            "delete": operation("MQ-Core", "Delete a queue and its messages", response(204, "Deleted"), errors="404"),
        },
        "/{queue}/messages": {
            "parameters": [path("queue")],
            "get": operation(
                "MQ-Core", "Fetch a message",
                response(200, "The message", {}, ANY, headers=id_header), response(204, "There is none"), errors="404",
            ),
            "post": operation(
                "MQ-Core", "Add a message", response(201, "On stable storage", headers=id_header), errors="404",
                requestBody=body({}, ANY),
            ),
        },
        "/{queue}/messages/{id}": {
            "parameters": [path("queue"), path("id")],
            "delete": operation("MQ-Core", "Delete a message", response(204, "Deleted"), errors="404"),
        },
    }  # fmt: skip


def _sqs() -> Spec:
    """The operations are AWS's, which describes them itself; here are the addresses and the forms of an answer."""
    types = ("text/xml", "application/x-amz-json-1.0", JSON)
    codes = (200, 400, 401, 403, 404, 408, 413, 417, 429, 431, 500, 503, 505)
    responses = {str(code): {"description": REASONS[code], "content": {kind: {} for kind in types}} for code in codes}
    target = {"name": "X-Amz-Target", "in": "header", "schema": {"enum": [f"AmazonSQS.{name}" for name in OPERATIONS]}}
    action = {"name": "Action", "in": "query", "schema": {"enum": list(OPERATIONS)}}
    account = {**path("account"), "schema": {"type": "string", "pattern": "^[0-9]{12}$"}, "example": "000000000000"}
    queue = {**path("queue"), "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,80}$"}}
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


def _operators() -> Spec:
    return {
        "/": {"get": operation("operators", "This page", response(200, "HTML", {}, "text/html"), errors="")},
        "/health": {
            "get": operation("operators", "Can the store be written?", response(200, "Yes", {"type": "object"}), errors="")
        },
        "/metrics": {"get": operation("operators", "For Prometheus", response(200, "Text", {}, "text/plain"), errors="")},
        "/openapi.json": {
            "get": operation("operators", "This description", response(200, "JSON", {"type": "object"}), errors="")
        },
    }


def _page() -> Spec:
    html = response(200, "The page", {}, "text/html")
    views: Spec = {}
    for view in VIEWS[1:]:
        names = re.findall(r"{(\w+)}", view)
        views[view] = {"parameters": [path(name) for name in names]} if names else {}
        views[view]["get"] = operation("page", "A view of the page", html, errors="")
    token = {
        "type": "object",
        "properties": {"token": {"type": "string"}},
        "required": ["token"],
        "additionalProperties": False,
    }
    session = {"type": "object", "properties": {"signed_in": {"type": "boolean"}, "tokens": {"type": "boolean"}}}
    signed_in = response(200, "Who is signed in; a cookie keeps it", {**session, "required": ["signed_in", "tokens"]})
    return {
        **views,
        "/dashboard/assets/{name}": {
            "parameters": [path("name")],
            "get": operation("page", "A file of the page", response(200, "The file", {}, ANY), errors="404"),
        },
        "/dashboard/api": {"get": operation("page", "All paths", response(200, "HTML", {}, "text/html"), errors="")},
        "/dashboard/session": {
            "get": operation("page", "Who is signed in on the page?", signed_in, errors=""),
            "post": operation(
                "page", "Sign in with a token", signed_in, errors="", requestBody={"required": True, **body(token)}
            ),
            "delete": operation("page", "Sign out", response(204, "Signed out"), errors=""),
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
        "paths": {**_mqs(max_wait), **_mqcore(), **native(), **_with(_sqs(), _operators()), **_page()},
    }


@cache
def page(max_wait: int) -> str:
    """The description as HTML, without scripts or external style sheets."""
    rows = []
    for where, operations in document(max_wait)["paths"].items():
        for method, described in operations.items():
            if method != "parameters":
                statuses = " ".join(status for status in described["responses"] if status < "400")
                cells = (described["tags"][0], f"{method.upper()} {where}", described["summary"], statuses)
                rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    style = "body{font:16px sans-serif;margin:2em}td{padding:.2em 1em .2em 0}td:nth-child(2){font-family:monospace}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Penstock</title><style>{style}</style>"
        f"<h1>Penstock {escape(penstock.__version__)}</h1><p>The whole truth is in <a href=/openapi.json>/openapi.json</a>; "
        f"see also <a href=/health>/health</a> and <a href=/metrics>/metrics</a>.</p><table>{''.join(rows)}</table></html>\n"
    )

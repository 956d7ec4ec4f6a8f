"""The OpenAPI description of Penstock's own dialect: the verbs of the library, jobs, and what the page shows."""

from __future__ import annotations

from penstock.message import MAX_NUMBER
from penstock.server.dialects.native import BROKER_VERBS, VERBS
from penstock.server.dialects.native_jobs import FASTEST
from penstock.server.jobs.filters import LONGEST_TEXT, MOST_IDS, STATES
from penstock.server.jobs.plan import CANCELLED, CANCELLING, COMPLETED, FAILED, RUNNING, Action
from penstock.server.openapi_parts import ANY, Spec, body, operation, path, response
from penstock.server.page.curves import SPANS
from penstock.server.page.data import MOST_ROWS, SORTS
from penstock.server.page.messages import MOST_HEADS

CALL: Spec = {"type": "object", "properties": {"arguments": {"type": "object"}}, "required": ["arguments"]}
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
WHOLE: Spec = {"type": "integer"}
COUNT: Spec = {"type": ["integer", "null"]}
COUNTS: Spec = {"type": "array", "items": COUNT}
NUMBER: Spec = {"type": ["number", "null"]}
NUMBERS: Spec = {"type": "array", "items": NUMBER}
ROW: Spec = {
    "type": "object",
    "description": "A queue: counts, the age of its oldest message, messages a second in and out, dead letters, who takes part",
    "properties": {
        "name": {"type": "string"},
        **dict.fromkeys(("messages", "visible", "in_flight", "delayed", "blocked", "damaged", "consumers"), WHOLE),
        **dict.fromkeys(("oldest_at", "dead_letters"), COUNT),
        **dict.fromkeys(("oldest_age", "rate_in", "rate_out"), NUMBER),
        "dead_letter_queue": {"type": ["string", "null"]},
        "dead_letter_of": {"type": "array", "items": {"type": "string"}},
        "paused": {"type": "boolean"},
        "curve": {**COUNTS, "description": "The numbers of messages in the last minutes"},
    },
    "required": ["name", "messages", "visible", "in_flight", "delayed", "damaged", "oldest_at", "rate_in", "rate_out", "curve"],
}
OVERVIEW: Spec = {
    "type": "object",
    "properties": {
        "at": {"type": "integer"},
        "queues": {"type": "array", "items": ROW},
        "more": {"type": ["string", "null"], "description": "Give it as `after` to get the next ones"},
        "total": {"type": "integer"},
    },
    "required": ["at", "queues", "more", "total"],
}
SUMMARY: Spec = {**ROW, "required": [*ROW["required"], "settings", "waiting", "handling", "holders", "readers", "may"]}
CURVES: Spec = {
    "type": "object",
    "properties": {
        "step": {"type": "integer", "description": "Seconds"},
        "from_at": {"type": "integer"},
        **dict.fromkeys(("depth", "in_flight"), COUNTS),
        **dict.fromkeys(("rate_in", "rate_out"), NUMBERS),
    },
    "required": ["step", "from_at", "depth", "in_flight", "rate_in", "rate_out"],
}
SERVER: Spec = {
    "type": "object",
    "required": ["version", "store", "started_at", "connections", "memory", "commit_sizes", "latencies", "nodes", "audit"],
}


def _asked(name: str, schema: Spec) -> Spec:
    return {"name": name, "in": "query", "schema": schema}


def _shown() -> Spec:
    """What the page shows."""
    internal = _asked("internal", {"enum": ["true", "false"]})
    sorts = [sort for name in SORTS for sort in (name, f"-{name}")]
    asked = [
        _asked("filter", {"type": "string"}),
        _asked("sort", {"enum": sorts}),
        _asked("limit", {"type": "integer", "minimum": 1, "maximum": MOST_ROWS}),
        _asked("after", {"type": "string", "pattern": r"^\[0, \"[a-z]+\"\]$"}),
        internal,
    ]
    span = _asked("span", {"enum": list(SPANS)})
    return {
        "/penstock/overview": {
            "get": operation(
                *("penstock", "All queues that a token may count"),
                response(200, "A part of them", OVERVIEW),
                errors="",
                parameters=asked,
            )
        },
        "/penstock/changes": {
            "get": operation(
                *("penstock", "The same as a stream: what there is, then what changes, at most twice a second"),
                response(200, "Server-sent events: rows, jobs", {}, "text/event-stream"),
                errors="404",
                parameters=[_asked("queue", {"type": "string", "minLength": 1}), internal],
            )
        },
        "/penstock/queues/{queue}/summary": {
            "parameters": [path("queue")],
            "get": operation(
                "penstock", "One queue, and who holds its messages", response(200, "Found", SUMMARY), errors="404"
            ),
        },
        "/penstock/queues/{queue}/curve": {
            "parameters": [path("queue")],
            "get": operation(
                *("penstock", "How a queue has changed in the last minute, hour or day"),
                response(200, "Null where nothing is known", CURVES),
                errors="404",
                parameters=[span],
            ),
        },
        "/penstock/server": {
            "get": operation("penstock", "The server itself", response(200, "As it is now", SERVER), errors="")
        },
        "/penstock/pipelines": {
            "get": operation(
                *("penstock", "Pipelines that have reported here"),
                response(200, "The last report of each", {"type": "object", "required": ["pipelines"]}),
                errors="",
            )
        },
        "/penstock/schedules": {
            "get": operation(
                *("penstock", "The schedules of queues that a token may count, without what they send"),
                response(200, "By name", {"type": "object", "required": ["at", "schedules"]}),
                errors="",
            )
        },
        "/penstock/pipelines/{pipeline}": {
            "parameters": [path("pipeline")],
            "post": operation(
                *("penstock", "Tell how a pipeline gets on"),
                response(200, "It is kept", {"type": "object", "required": ["answer"]}),
                errors="",
                requestBody={"required": True, **body(CALL)},
            ),
        },
    }


def native() -> Spec:
    call = {"requestBody": {"required": True, **body(CALL)}}
    answered = response(200, "What the verb answers", {"type": "object", "required": ["answer"]})
    text = "Call a verb of the library; the client penstock.open speaks this"
    verb = {**path("verb"), "schema": {"enum": list(VERBS)}}
    broker = {**path("verb"), "schema": {"enum": list(BROKER_VERBS)}}
    return {
        **_shown(),
        "/penstock/queues/{queue}/select": {
            "parameters": [path("queue")],
            "post": operation(
                "penstock",
                "Messages that fit a filter: listed, or counted, without claiming one",
                response(200, "Those, or a part", SELECTED),
                errors="404",
                requestBody={"required": True, **body(SELECTION)},
            ),
        },
        "/penstock/queues/{queue}/messages/{id}": {
            "parameters": [path("queue"), path("id")],
            "get": operation(
                "penstock",
                "One message in full, also from the history",
                response(200, "Found", {"type": "object", "required": ["message"]}),
                errors="404",
            ),
        },
        "/penstock/queues/{queue}/{verb}": {
            "parameters": [path("queue"), verb],
            "post": operation("penstock", text, answered, errors="404 409", **call),
        },
        "/penstock/jobs": {
            "post": operation(
                "penstock",
                "Change all messages that fit a filter, in the background",
                response(200, "The job, which has begun", JOB),
                errors="404",
                requestBody={"required": True, **body(PLAN)},
            ),
            "get": operation(
                "penstock",
                "The jobs of the last days, or the last of one queue",
                response(200, "The newest first", {"type": "object", "required": ["jobs"]}),
                errors="404",
                parameters=[{"name": "queue", "in": "query", "schema": {"type": "string", "minLength": 1}}],
            ),
        },
        "/penstock/jobs/{id}": {
            "parameters": [path("id")],
            "delete": operation("penstock", "Have a job end before its next part", response(200, "The job", JOB), errors="404"),
        },
        "/penstock/broker/{verb}": {
            "parameters": [broker],
            "post": operation("penstock", text, answered, errors="404 409", **call),
        },
        "/penstock/staged/{writer}/{batch}/{name}": {
            "parameters": [path("writer"), path("batch"), path("name")],
            "post": operation(
                "penstock", "Stage a segment of messages for a batch", answered, errors="409", requestBody=body({}, ANY)
            ),
        },
    }

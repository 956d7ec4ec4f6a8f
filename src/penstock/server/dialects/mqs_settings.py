"""A queue's settings as mqs writes them: JSON with names of its own."""

from __future__ import annotations

from typing import Any

from penstock.errors import BadSetting, QueueNotFound
from penstock.message import Redrive, Settings
from penstock.server.http.request_response import read_json

FIELDS = {
    "redrive_policy": "redrive",
    "retention_timeout": "retention",
    "visibility_timeout": "visibility",
    "message_delay": "delay",
    "message_deduplication": "deduplicate",
}
NEEDED = ("retention_timeout", "visibility_timeout")


class dead_letters:  # noqa: N801
    """A missing dead letter queue is an error in the settings, not a 404."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, QueueNotFound):
            raise BadSetting(f"redrive_policy.dead_letter_queue: {error}") from None


def show(queue: str, settings: Settings) -> dict[str, Any]:
    redrive = settings.redrive
    return {
        "name": queue,
        "redrive_policy": redrive and {"max_receives": redrive.max_receives, "dead_letter_queue": redrive.dead_letter_queue},
        "retention_timeout": settings.retention,
        "visibility_timeout": settings.visibility,
        "message_delay": settings.delay,
        "message_deduplication": settings.deduplicate is not False,
    }


def read_changes(body: bytes, queue: str, now: Settings | None) -> dict[str, Any]:
    """The settings in a request's body, in the form that `Broker.create` takes."""
    given = read_json(body)
    if not isinstance(given, dict):
        raise BadSetting("the body must be a JSON object")
    for name in given:
        if name not in FIELDS and name not in ("name", "status"):
            raise BadSetting(f"there is no field {name!r:.80}; there are {', '.join(FIELDS)}")
    if given.get("name", queue) != queue:
        raise BadSetting(f"name {given['name']!r:.80} differs from the path")
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise BadSetting(f"{missing[0]} is missing")
    changes = {FIELDS[name]: value for name, value in given.items() if name in FIELDS}
    changes["redrive"] = _read_redrive(given.get("redrive_policy"))
    if changes.get("delay", 0) is None:
        changes["delay"] = 0
    flag = changes.setdefault("deduplicate", False)
    if not isinstance(flag, bool):
        raise BadSetting(f"message_deduplication must be true or false, not {flag!r:.80}")
    if flag and now is not None and now.deduplicate is not False:
        changes["deduplicate"] = now.deduplicate  # keep a deduplication window, which this dialect cannot express
    return {"delay": 0, **changes}


def _read_redrive(value: object) -> Redrive | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"max_receives", "dead_letter_queue"}:
        raise BadSetting("redrive_policy must be null or have max_receives and dead_letter_queue")
    return Redrive(value["dead_letter_queue"], value["max_receives"])

"""What pipelines tell of themselves, kept in a queue of their store: one message for each pipeline, its last report.

A server takes reports over HTTP, and shows them; a process that has the store itself can write them too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from penstock.broker import LocalBroker
from penstock.errors import BadInput
from penstock.message import Draft, Message
from penstock.policy import check_name
from penstock.queue.queue import LocalQueue

PIPELINES = "penstock.pipelines"
RETENTION = 7 * 86400
MOST = 200
"""Pipelines that are kept; the one that was silent longest makes room for another."""
PART = 4
"""Messages that are read at once."""
MOST_QUEUES = 20
MOST_CHECKS = 20
LONGEST_CHECK = 210
ACTIONS = ("reject", "drop", "count", "stop")
"""What becomes of a row that fails a check: a dead letter, nothing, a row like the others, or the end of the pipeline."""
LONGEST_ERROR = 2000
LONGEST_LINK = 500
LARGEST = 2.0**53
LINK = re.compile(r"https?://[\x21-\x7e]+")
WHOLE = ("rows", "batches", "lag", "started_at")


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """``reads``, ``writes``: queues. ``rate``: rows a second; ``lag``: messages that wait. ``report``: a link.

    ``checks``: for each data check its action, and how many rows it has judged and how many failed."""

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    rows: int = 0
    batches: int = 0
    rate: float | None = None
    lag: int | None = None
    batch_seconds: float | None = None
    started_at: int | None = None
    finished: bool = False
    last_error: str | None = None
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    report: str | None = None
    seen_at: int = 0
    """By the store's clock."""

    @property
    def key(self) -> tuple[object, ...]:
        """Another report with the same takes its place."""
        return self.name, self.reads, self.writes


def read_report(name: str, given: Mapping[str, Any]) -> PipelineReport:
    """A report as a client gives it, or `BadInput` that names the value."""
    known = {each.name for each in fields(PipelineReport)} - {"name", "seen_at"}
    for each in given:
        if each not in known:
            raise BadInput(f"a report has no {each!r:.80}; it has {', '.join(sorted(known))}")
    values: dict[str, Any] = {"name": check_name(name, "pipeline name")}
    for each in ("reads", "writes"):
        queues = given.get(each, [])
        if not isinstance(queues, list | tuple) or len(queues) > MOST_QUEUES:
            raise BadInput(f"{each} is {queues!r:.80}; it must be a list of at most {MOST_QUEUES} queues")
        values[each] = tuple(check_name(queue) for queue in queues)
    for each in ("rows", "batches", "lag", "started_at", "rate", "batch_seconds"):
        if given.get(each) is not None:
            values[each] = _check_number(each, given[each], whole=each in WHOLE)
    values["checks"] = _read_checks(given.get("checks", {}))
    values["finished"] = given.get("finished") is True
    if given.get("last_error") is not None:
        values["last_error"] = str(given["last_error"])[:LONGEST_ERROR]
    link = given.get("report")
    if link is not None and not (isinstance(link, str) and len(link) <= LONGEST_LINK and LINK.fullmatch(link)):
        raise BadInput(f"report is {link!r:.80}; it must be an address that begins with http:// or https://")
    return PipelineReport(**values, report=link)


def _read_checks(given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, dict) or len(given) > MOST_CHECKS:
        raise BadInput(f"checks is {given!r:.80}; it must have at most {MOST_CHECKS} checks by name")
    found = {}
    for name, check in given.items():
        if len(name) > LONGEST_CHECK or not name.isprintable():
            raise BadInput(f"checks has a name {name!r:.80}; it must be printable and have at most {LONGEST_CHECK} characters")
        if not isinstance(check, dict) or check.keys() != {"action", "rows", "failed"} or check["action"] not in ACTIONS:
            raise BadInput(f"checks has {check!r:.80}; it must have rows, failed and an action, one of {', '.join(ACTIONS)}")
        found[name] = {"action": check["action"]} | {of: _check_number(of, check[of], whole=True) for of in ("rows", "failed")}
    return found


def _check_number(name: str, value: Any, *, whole: bool) -> float:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= LARGEST:
        raise BadInput(f"{name} is {value!r:.80}; it must be a {'whole ' if whole else ''}number from 0 to 2**53")
    return value


class PipelineBook:
    """Reads and writes the reports of a store. Its methods are called where the store may be used."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def put(self, report: PipelineReport) -> None:
        broker = self._broker
        if broker.store.load(PIPELINES) is None:
            broker.create(PIPELINES, exist_ok=True, retention=RETENTION)
        queue = broker.queue(PIPELINES)
        report = replace(report, seen_at=broker.clock())
        with broker.waiting.told(), broker.store.batch():
            old = [(message.id, _read(message)) for message in _messages(queue)]
            others = sorted((found.seen_at, id) for id, found in old if found is not None and found.key != report.key)
            gone = [id for id, found in old if found is None or found.key == report.key]
            gone += [id for _, id in others[: max(0, len(others) - MOST + 1)]]
            # First the new one: where a batch is no transaction, a process that is killed leaves both, and the later counts.
            queue.send_many([Draft(json.dumps(asdict(report)).encode(), "application/json")])
            if gone:
                queue.delete_many(gone)

    def all(self) -> list[PipelineReport]:
        """The last report of each, the latest first."""
        if self._broker.store.load(PIPELINES) is None:
            return []
        queue = self._broker.queue(PIPELINES)
        found = [report for message in _messages(queue) if (report := _read(message)) is not None]
        latest = {report.key: report for report in sorted(found, key=lambda report: report.seen_at)}
        return sorted(latest.values(), key=lambda report: -report.seen_at)


def _messages(queue: LocalQueue) -> Iterator[Message]:
    """A few at a time, because other programs may send large ones to the queue."""
    after: tuple[int, int] | None = None
    for _ in range(2 * MOST // PART):
        part = queue.peek(PART, after=after)
        yield from part
        if len(part) < PART:
            return
        after = part[-1].place


def _read(message: Message) -> PipelineReport | None:
    """None if another program has written it."""
    try:
        given = json.loads(message.body)
        seen_at, name = given.pop("seen_at"), given.pop("name")
        if not isinstance(seen_at, int):
            return None
        return replace(read_report(name, given), seen_at=seen_at)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadInput):
        return None

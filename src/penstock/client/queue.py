"""A queue behind HTTP. See `penstock.client.broker` for what happens when an answer is lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock import policy
from penstock.client.connections import Line
from penstock.clock import system_clock
from penstock.errors import Unsupported
from penstock.message import (
    OCTETS,
    Attributes,
    Claim,
    Draft,
    Message,
    Mode,
    Pulse,
    Receipt,
    Redriven,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.policy import check_seconds
from penstock.queue.arguments import check_each, check_flag, check_held, check_many, check_taking
from penstock.queue.protocol import Queue

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING = (None,) * 6
PLAIN = Settings()
LONGEST_WAIT = 20
"""Seconds of one long poll; a longer wait is several polls."""
MOST_DELIVERY = 2**126
"""A server with tokens adds a proof to the number of a delivery."""
LOOKS = frozenset(
    {"settings", "stats", "peek", "settled", "sismember", "scard", "readers", "settled_epoch", "read", "describe", "names"}
    | {"pulse", "span", "scan"}
)
"""Verbs that change nothing."""
ASKED_TWICE = LOOKS | {"send_many", "publish", "unstage"} | {"claim", "confirm", "settle"}
"""Verbs that change something, but have a token or a name by which a repetition is recognised."""


class RemoteQueue(Queue):
    """One queue of a server. Each verb is a request, except those that are made of others."""

    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self._line = line
        self._path = f"/penstock/queues/{quote(name, safe='')}/"

    def _call(self, verb: str, **arguments: Any) -> Any:
        return self._line.call(self._path + verb, arguments, again=verb in ASKED_TWICE, changes=verb not in LOOKS)

    def _own(self, messages: list[Message]) -> list[Message]:
        for message in messages:
            message.home = self
        return messages

    @property
    def settings(self) -> Settings:
        settings: Settings = self._call("settings")
        return settings

    def send(
        self,
        body: bytes,
        *,
        content_type: str = OCTETS,
        attributes: Attributes | None = None,
        delay: float | None = None,
        visibility: float | None = None,
        deadline: float | datetime | None = None,
        key: str | bytes | None = None,
        group: str | None = None,
        connection: object = None,
    ) -> Sent:
        draft: Draft | bytes = body
        special = (attributes, delay, visibility, deadline, key, group) != NOTHING
        if special or content_type is not OCTETS or type(body) is not bytes:
            draft = Draft(body, content_type, {} if attributes is None else attributes, delay, visibility, deadline, key, group)
        return self.send_many([draft], connection=connection)[0]

    def send_many(self, drafts: Iterable[Draft | bytes], *, token: str | None = None, connection: object = None) -> list[Sent]:
        _refuse(connection)
        batch = list(check_many(drafts, "send_many", "send"))
        policy.admit_all(batch, PLAIN, system_clock())  # refuse bad input here, with the server's own error text
        return list(self._call("send_many", drafts=batch, token=token or self._line.new_token())) if batch else []

    def send_once(self, drafts: Sequence[Draft | bytes], token: str) -> None:
        self.send_many(drafts, token=token)

    def receive(
        self,
        limit: int = 1,
        *,
        wait: float = 0,
        visibility: float | None = None,
        mode: Mode | str | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
        unfinished: bool = False,
        together: bool = False,
    ) -> list[Message]:
        check_taking(limit, visibility, share, holder)  # the share is a hint, which the protocol does not carry
        check_seconds(wait, "wait")
        give_up_at = time.monotonic() + wait
        while True:
            left = max(0.0, min(give_up_at - time.monotonic(), LONGEST_WAIT))
            arguments = {"limit": limit, "wait": left, "visibility": visibility, "mode": mode, "holder": holder}
            arguments |= {"unfinished": unfinished or None, "together": check_flag(together, "together") or None}
            given = {name: value for name, value in arguments.items() if value is not None}
            messages = self._own(self._line.call(f"{self._path}receive", given, again=False, changes=True, wait=left))
            if messages or time.monotonic() >= give_up_at:
                return messages

    def delete(self, message: Message | Receipt | str, *, connection: object = None) -> bool:
        return self.delete_many([message], connection=connection)[0]

    def delete_many(self, messages: Sequence[Message | Receipt | str], *, connection: object = None) -> list[bool]:
        _refuse(connection)
        held = _receipts(self.name, check_many(messages, "delete_many", "delete"))
        return list(self._call("delete_many", messages=held)) if held else []

    def exchange(
        self,
        messages: Sequence[Message | Receipt | str],
        limit: int = 1,
        *,
        visibility: float | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
    ) -> tuple[list[bool], list[Message]]:
        check_taking(limit, visibility, share, holder)
        held = _receipts(self.name, check_many(messages, "exchange", "delete"))
        given = {"messages": held, "limit": limit, "visibility": visibility, "holder": holder}
        settled, taken = self._call("exchange", **{name: value for name, value in given.items() if value is not None})
        return settled, self._own(taken)

    def fail(self, message: Message | Receipt | str, reason: str | None = None) -> bool:
        return bool(self._call("fail", message=self._one(message), reason=policy.check_reason(reason)))

    def finish(self, messages: Sequence[Message | Receipt | str], failed: str | None = None) -> list[bool]:
        held = _receipts(self.name, check_many(messages, "finish", "finish([…])"))
        return list(self._call("finish", messages=held, failed=policy.check_reason(failed))) if held else []

    def extend(self, message: Message | Receipt | str, visibility: float) -> bool:
        check_seconds(visibility, "visibility")
        return bool(self._call("extend", message=self._one(message), visibility=visibility))

    def extend_many(self, messages: Sequence[Message | Receipt | str], visibility: float | Sequence[float]) -> list[bool]:
        held = _receipts(self.name, check_many(messages, "extend_many", "extend"))
        each = check_each(visibility, len(held))
        return list(self._call("extend_many", messages=held, visibility=list(each))) if held else []

    def release(self, message: Message | Receipt | str, delay: float = 0) -> bool:
        check_seconds(delay, "delay")
        return bool(self._call("release", message=self._one(message), delay=delay))

    def _one(self, message: Message | Receipt | str) -> Receipt:
        return _receipts(self.name, [message])[0]

    def _look(self, verb: str, **arguments: Any) -> list[Message]:
        """Messages in as many answers as they take, each of them once."""
        found: dict[tuple[int, str], Message] = {}
        for part in self._parts(verb, arguments, None):
            found |= {(message.number, message.id): message for message in part if (message.number, message.id) not in found}
        return list(found.values())

    def _parts(self, verb: str, arguments: dict[str, Any], accept: str | None) -> Iterator[Any]:
        more: dict[str, Any] | None = {}
        while more is not None:
            arguments = {**arguments, **more}
            part, more = self._line.look(self._path + verb, arguments, accept=accept)
            yield part

    def peek(self, limit: int = 1, *, state: State | str | None = None, after: tuple[int, int] | None = None) -> list[Message]:
        return self._look("peek", limit=limit, state=state, after=after)

    def settled(self, limit: int = 100, *, after: tuple[int, int] | None = None) -> list[Message]:
        return self._look("settled", limit=limit, after=after)

    def span(self, *, settled: bool = False) -> tuple[int, int, int]:
        count, first, last = self._call("span", settled=settled)
        return count, first, last

    def scan(self, start: int = 0, stop: int = 2**62, limit: int = policy.MAX_BATCH, *, settled: bool = False) -> list[Message]:
        return self._look("scan", start=start, stop=stop, limit=limit, settled=settled)

    def arrow(self, verb: str, schema: pa.Schema, **arguments: Any) -> pa.RecordBatch:
        """The answer of `read` or `scan` as one Arrow batch with the columns of ``schema``."""
        from penstock import arrow

        given = {**arguments, "columns": schema.names}
        return arrow.unpack(list(self._parts(verb, given, arrow.CONTENT_TYPE)), schema)

    def stats(self) -> Stats:
        stats: Stats = self._call("stats")
        return stats

    def update(self, **changes: Any) -> Settings:
        settings: Settings = self._call("update", **changes)
        return settings

    def purge(self) -> int:
        return int(self._call("purge"))

    def redrive(
        self,
        limit: int | None = None,
        *,
        to: str | None = None,
        ids: Iterable[str] | None = None,
        since_at: int | None = None,
    ) -> Redriven:
        chosen: dict[str, Any] = {"limit": limit, "to": to, "since_at": since_at}
        if ids is not None:
            chosen["ids"] = [held.id for held in check_held(self.name, check_many(ids, "redrive", "redrive(ids=[…])"))]
        redriven: Redriven = self._call("redrive", **chosen)
        return redriven

    def sadd(self, member: str | bytes) -> bool:
        policy.member_mark(member)
        return bool(self._call("sadd", member=member))

    def spop(self) -> str | bytes | None:
        member: str | bytes | None = self._call("spop")
        return member

    def sismember(self, member: str | bytes) -> bool:
        policy.member_mark(member)
        return bool(self._call("sismember", member=member))

    def scard(self) -> int:
        return int(self._call("scard"))

    def pulse(self) -> Pulse:
        pulse: Pulse = self._call("pulse")
        return pulse

    def claim(
        self,
        reader: str,
        epoch: int,
        limit: int,
        *,
        ttl: float = 60,
        max_bytes: int | None = None,
        visible_by: int | None = None,
    ) -> Claim:
        limits = {name: value for name, value in (("max_bytes", max_bytes), ("visible_by", visible_by)) if value is not None}
        claim: Claim = self._call("claim", reader=reader, epoch=epoch, limit=limit, ttl=ttl, **limits)
        return claim

    def confirm(self, reader: str, epoch: int) -> Claim:
        claim: Claim = self._call("confirm", reader=reader, epoch=epoch)
        return claim

    def read(self, reader: str, epoch: int, start: int = 0, stop: int | None = None, *, damaged: bool = False) -> list[Message]:
        only = {"damaged": True} if damaged else {}
        return self._look("read", reader=reader, epoch=epoch, start=start, stop=stop, **only)

    def settle(self, reader: str, epoch: int) -> int:
        return int(self._call("settle", reader=reader, epoch=epoch))

    def give_up(self, reader: str) -> int:
        return int(self._call("give_up", reader=reader))

    def readers(self) -> dict[str, list[Claim]]:
        return dict(self._call("readers"))

    def settled_epoch(self, reader: str) -> int | None:
        epoch: int | None = self._call("settled_epoch", reader=reader)
        return epoch


def _receipts(queue: str, messages: Sequence[Message | Receipt | str]) -> list[Receipt]:
    return [Receipt(queue, each.id, each.delivery) for each in check_held(queue, messages, MOST_DELIVERY)]


def _refuse(connection: object) -> None:
    if connection is not None:
        raise Unsupported("a server cannot join a transaction of yours; SQLite, PostgreSQL and MariaDB can")

"""The client: the same Broker and Queue, over HTTP, so that consumer code does not change.

A call is one request on a connection that is kept and used again. What may be asked twice is asked again when an answer is lost
(looking, and sending, which carries a token by which the server knows it again); for all else a lost answer is a `StoreError`.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import select
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import quote, urlsplit

from penstock import policy
from penstock.broker import Broker, Listing
from penstock.clock import Clock, system_clock
from penstock.errors import BadInput, BadURL, PenstockError, QueueNotFound, StoreBusy, StoreClosed, StoreError
from penstock.message import Claim, Draft, Message, Mode, Receipt, Sent, Settings, State, Stats
from penstock.policy import check_count, check_seconds
from penstock.queue import Queue, check_many
from penstock.wire import pack, unpack, unpack_error

LONGEST_WAIT = 20
"""Seconds of one long poll; a longer wait is several."""
TRIES = 5
MOST_IDLE = 16
STALE = 30.0
"""Seconds after which a resting connection is not trusted any more."""
ASKED_TWICE = frozenset(
    {"send_many", "settings", "stats", "peek", "settled", "sismember", "scard", "readers", "settled_epoch", "read", "describe"}
    | {"names"}
)


def connect(url: str, *, clock: Clock = system_clock, **options: Any) -> Broker:  # noqa: ARG001
    """``token``: the bearer token, else $PENSTOCK_TOKEN; ``timeout``: seconds for an answer; ``cafile``: whom to trust over TLS.
    The clock is the server's own."""
    known = {"token": os.environ.get("PENSTOCK_TOKEN"), "timeout": 30.0, "cafile": None}
    for name in options:
        if name not in known:
            raise BadURL(f"URL {url!r:.200}: there is no option {name!r}; there are {', '.join(sorted(known))}")
    return RemoteBroker(Line(url, **{**known, **options}))


class Lost(Exception):
    """No answer came; the request may or may not have been carried out."""


class Line:
    """The connections to one server. Safe to share between threads: each call has a connection to itself."""

    def __init__(self, url: str, *, token: str | None, timeout: float, cafile: str | None) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise BadURL(f"URL {url!r:.200} cannot be read: {error}") from None
        if not self._host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise BadURL(f"URL {parts.scheme}://{self._host}…: write {parts.scheme}://host:port, and the token as an option")
        if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise BadURL("token must be printable ASCII text")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout = check_seconds(timeout, "timeout", 0.01, BadURL)
        self._tls = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._lock = Lock()
        self._closed = False

    def call(self, path: str, arguments: dict[str, Any], *, again: bool, wait: float = 0) -> Any:
        body = json.dumps({"arguments": {name: pack(value) for name, value in arguments.items()}}).encode()
        for attempt in range(TRIES):
            try:
                status, answer = self._ask(path, body, self._timeout + wait)
            except ConnectionRefusedError as error:  # nobody has heard us, so nothing can have been done
                problem: PenstockError = StoreError(f"there is no server at {self.url}: {error.strerror}")
            except Lost as error:
                problem = StoreError(f"{self.url} gave no answer ({error}); whether it was done is not known")
                if not again:
                    raise problem from error
            else:
                if status == 200:
                    return unpack(answer["answer"])
                problem = unpack_error(answer) or _foreign(self.url, status, answer)
                if not (isinstance(problem, StoreBusy) and again):
                    raise problem
            if attempt < TRIES - 1:
                time.sleep(0.05 * 2**attempt * (1 + secrets.randbelow(100) / 100))
        raise problem

    def _ask(self, path: str, body: bytes, timeout: float) -> tuple[int, Any]:
        connection = self._take(timeout)
        try:
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Lost(f"{type(error).__name__}: {error}") from error
        if response.will_close:
            connection.close()
        else:
            self._give(connection)
        try:
            return response.status, json.loads(content)
        except ValueError:
            return response.status, None

    def _take(self, timeout: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreClosed(f"the connection to {self.url} was closed")
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            connection, since = idle
            # What can be read from a resting connection is its end.
            if time.monotonic() - since < STALE and not select.select([connection.sock], [], [], 0)[0]:
                connection.sock.settimeout(timeout)
                return connection
            connection.close()
        if self._tls is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except ConnectionRefusedError:
            raise
        except OSError as error:
            raise Lost(f"{type(error).__name__}: {error}") from error
        return connection

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MOST_IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            with suppress(OSError):
                connection.close()


def _foreign(url: str, status: int, answer: Any) -> PenstockError:
    text = answer.get("error") if isinstance(answer, dict) else None
    if status in (401, 403):
        return BadInput(f"{url} refuses: {text}")
    if status == 503:
        return StoreBusy(f"{url} is busy: {text}")
    return StoreError(f"{url} answered {status}: {text or 'this is no Penstock server'}")


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """What can be known of the store behind the server."""

    durable: bool
    ordered: bool
    groups: bool


class RemoteBroker(Broker):
    def __init__(self, line: Line) -> None:
        self._line = line
        self._remote: dict[str, RemoteQueue] = {}

    @property
    def store(self) -> Any:  # type: ignore[override]
        return RemoteStore(**self._call("describe"))

    def close(self) -> None:
        self._line.close()

    def create(self, name: str, *, exist_ok: bool = False, **settings: Any) -> Queue:
        redrive = settings.get("redrive")
        if isinstance(redrive, tuple):
            settings["redrive"] = list(redrive)
        policy.check_settings(settings)
        self._call("create", name=policy.check_name(name), exist_ok=exist_ok, **settings)
        return self._queue(name)

    def queue(self, name: str) -> Queue:
        queue = self._queue(policy.check_name(name))
        _ = queue.settings
        return queue

    __getitem__ = queue

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self._queue(name).settings)
        except (QueueNotFound, BadInput):
            return False

    def __iter__(self) -> Iterator[Queue]:
        return (self._queue(name) for name in self._names())

    def queues(self, offset: int = 0, limit: int | None = None) -> Listing:
        check_count(offset, "offset", 0, policy.MAX_NUMBER, BadInput)
        if limit is not None:
            check_count(limit, "limit", 0, policy.MAX_NUMBER, BadInput)
        names = self._names()
        return Listing(len(names), names[offset : None if limit is None else offset + limit])

    def delete(self, name: str) -> Settings:
        settings: Settings = self._call("delete", name=policy.check_name(name))
        self._remote.pop(name, None)
        return settings

    def _names(self) -> list[str]:
        return list(self._call("names"))

    def _call(self, verb: str, **arguments: Any) -> Any:
        return self._line.call(f"/penstock/broker/{verb}", arguments, again=verb in ASKED_TWICE)

    def _queue(self, name: str) -> Queue:
        return self._remote.setdefault(name, RemoteQueue(name, self._line))


class RemoteQueue(Queue):
    """A queue behind HTTP: every public verb of `Queue`, asked of the server."""

    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self._line = line

    def _call(self, verb: str, *, wait: float = 0, **arguments: Any) -> Any:
        path = f"/penstock/queues/{quote(self.name, safe='')}/{verb}"
        return self._line.call(path, arguments, again=verb in ASKED_TWICE, wait=wait)

    @property
    def settings(self) -> Settings:
        settings: Settings = self._call("settings")
        return settings

    def send_many(self, drafts: Iterable[Draft | bytes], *, token: str | None = None) -> list[Sent]:
        batch = [Draft(draft) if isinstance(draft, bytes) else draft for draft in check_many(drafts, "send_many", "send")]
        now = system_clock()
        for draft in batch:
            policy.admit(draft, Settings(), now)  # what is refused is refused here, and by the same words
        return list(self._call("send_many", drafts=batch, token=token or secrets.token_hex(16))) if batch else []

    def receive(
        self, limit: int = 1, *, wait: float = 0, visibility: float | None = None, mode: Mode | str | None = None
    ) -> list[Message]:
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        check_seconds(wait, "wait")
        give_up_at = time.monotonic() + wait
        while True:
            left = max(0.0, min(give_up_at - time.monotonic(), LONGEST_WAIT))
            arguments = {"limit": limit, "wait": left, "visibility": visibility, "mode": mode}
            given = {name: value for name, value in arguments.items() if value is not None}
            messages: list[Message] = self._line.call(
                f"/penstock/queues/{quote(self.name, safe='')}/receive", given, again=False, wait=left
            )
            for message in messages:
                message.home = self
            if messages or time.monotonic() >= give_up_at:
                return messages

    def delete_many(self, messages: Sequence[Message | Receipt | str]) -> list[bool]:
        held = _receipts(self._held(check_many(messages, "delete_many", "delete")))
        return list(self._call("delete_many", messages=held)) if held else []

    def fail(self, message: Message | Receipt | str, reason: str | None = None) -> bool:
        return bool(self._call("fail", message=self._one(message), reason=policy.check_reason(reason)))

    def extend(self, message: Message | Receipt | str, visibility: float) -> bool:
        check_seconds(visibility, "visibility")
        return bool(self._call("extend", message=self._one(message), visibility=visibility))

    def release(self, message: Message | Receipt | str, delay: float = 0) -> bool:
        check_seconds(delay, "delay")
        return bool(self._call("release", message=self._one(message), delay=delay))

    def _one(self, message: Message | Receipt | str) -> Receipt:
        return _receipts(self._held([message]))[0]

    def peek(self, limit: int = 1, *, state: State | str | None = None) -> list[Message]:
        return list(self._call("peek", limit=limit, state=state))

    def settled(self, limit: int = 100) -> list[Message]:
        return list(self._call("settled", limit=limit))

    def stats(self) -> Stats:
        stats: Stats = self._call("stats")
        return stats

    def update(self, **changes: Any) -> Settings:
        settings: Settings = self._call("update", **changes)
        return settings

    def purge(self) -> int:
        return int(self._call("purge"))

    def redrive(self, limit: int | None = None, *, to: str | None = None) -> int:
        return int(self._call("redrive", limit=limit, to=to))

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

    def claim(self, reader: str, epoch: int, limit: int, *, ttl: float = 60) -> Claim:
        claim: Claim = self._call("claim", reader=reader, epoch=epoch, limit=limit, ttl=ttl)
        return claim

    def confirm(self, reader: str, epoch: int) -> Claim:
        claim: Claim = self._call("confirm", reader=reader, epoch=epoch)
        return claim

    def read(self, reader: str, epoch: int, start: int = 0, stop: int | None = None) -> list[Message]:
        return list(self._call("read", reader=reader, epoch=epoch, start=start, stop=stop))

    def settle(self, reader: str, epoch: int) -> int:
        return int(self._call("settle", reader=reader, epoch=epoch))

    def give_up(self, reader: str) -> int:
        return int(self._call("give_up", reader=reader))

    def readers(self) -> dict[str, list[Claim]]:
        return dict(self._call("readers"))

    def settled_epoch(self, reader: str) -> int | None:
        epoch: int | None = self._call("settled_epoch", reader=reader)
        return epoch


def _receipts(held: Iterable[Any]) -> list[Receipt]:
    return [Receipt(each.queue, each.id, each.delivery) for each in held]

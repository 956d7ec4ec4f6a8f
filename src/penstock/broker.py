"""The named queues of one store, and `open`, which finds the store by its URL."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from penstock import policy
from penstock.clock import Clock, machine_clock
from penstock.errors import BadInput, BadURL, QueueExists, QueueNotFound, Unsupported
from penstock.message import MAX_NUMBER, Draft, RetryPolicy, Settings
from penstock.patience import TIMEOUT, Patience
from penstock.publishing.publishing import Desk, Publishing
from penstock.queue.dead_letters import check_dead_letter_queue
from penstock.queue.protocol import Queue
from penstock.queue.queue import LocalQueue
from penstock.queue.retention import Tender, purge
from penstock.queue.waiting import Waiting
from penstock.stores.ports import Roster, Store
from penstock.urls import shown, unreadable
from penstock.workers.consumer import Consumer
from penstock.workers.producer import Producer

if TYPE_CHECKING:
    from penstock.schedules.book import ScheduleBook
    from penstock.schedules.schedule import Schedule
    from penstock.schedules.scheduler import Scheduler
    from penstock.tasks.call import Serializer
    from penstock.tasks.registry import Tasks
    from penstock.tasks.task import Task
    from penstock.tasks.worker import TaskWorker

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger("penstock")

Opener = Callable[[str, dict[str, Any]], Store]
"""Opens the store at a URL, with these options."""
MOST_QUEUES = 10_000
"""Queues that a broker remembers, at 2 kB each."""
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Listing(NamedTuple):
    """Part of the queues, by name, and how many there are in all."""

    total: int
    names: list[str]


class StoreTraits(Protocol):
    """What a broker can tell of its store, wherever it is."""

    @property
    def durable(self) -> bool: ...

    @property
    def ordered(self) -> bool: ...

    @property
    def groups(self) -> bool: ...


class Broker(ABC):
    """All queues of one store, in this process (`LocalBroker`) or behind a server (`penstock.client.broker.RemoteBroker`).

    Made by `open`. Close it, or use it in a ``with`` statement."""

    clock: Clock
    _roster: Roster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @property
    @abstractmethod
    def store(self) -> StoreTraits: ...

    @abstractmethod
    def create(self, name: str, *, exist_ok: bool = False, **settings: Any) -> Queue:
        """Create a queue; the settings are those of `Settings`. With ``exist_ok``, an existing queue is left as it is."""

    @abstractmethod
    def queue(self, name: str) -> Queue:
        """An existing queue."""

    def __getitem__(self, name: str) -> Queue:
        return self.queue(name)

    @abstractmethod
    def __contains__(self, name: object) -> bool: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Queue]: ...

    @abstractmethod
    def queues(self, offset: int = 0, limit: int | None = None) -> Listing:
        """Part of the names of the queues, in order, and how many there are in all."""

    @abstractmethod
    def delete(self, name: str) -> Settings:
        """Delete a queue with its messages, and return its last settings.

        Queues that had it as their dead letter queue have none afterwards."""

    def producer(self, name: str, *, batch_size: int = 1, max_delay: float = 0.05) -> Producer:
        """Send messages to a queue in batches: as soon as there are ``batch_size``, or the first is ``max_delay`` s old."""
        return Producer(self.queue(name), self.clock, batch_size=batch_size, max_delay=max_delay)

    def consumer(self, name: str, *, schedules: bool = True, **options: Any) -> Consumer:
        """Process a queue with a callback; the options are those of `penstock.workers.consumer.Consumer`. While it runs, it
        also runs the ``schedules`` of the store."""
        beside = self._beside() if schedules else nullcontext()
        try:
            return Consumer(self.queue(name), self._roster, self.clock, beside=beside, **options)
        except TypeError as error:
            raise BadInput(f"these are not options of a consumer: {error}") from None

    # tasks

    def task(
        self,
        *,
        queue: str,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        results: float | None = None,
        serializer: Serializer | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """``@broker.task(queue="mail")`` makes a function a task: ``function.send(…)`` has a worker call it, and calling it
        stays a plain call. Its arguments travel as JSON, checked by its annotations, or by a ``serializer``, such as `pickle`.

        ``results``: for so many seconds keep what it returns; ``retry``: see `Queue.send`. ``name``: else that of the function
        with its module."""
        return self.tasks.define(queue=queue, name=name, retry=retry, results=results, serializer=serializer)

    @cached_property
    def tasks(self) -> Tasks:
        """Those that `task` has made."""
        from penstock.tasks.registry import Tasks

        return Tasks(self)

    def task_worker(self, queues: Sequence[str] | None = None, **options: Any) -> TaskWorker:
        """Runs tasks, of these queues or of all; the options are those of `penstock.workers.consumer.Consumer`. Its `run` works
        until it is stopped."""
        from penstock.tasks.worker import TaskWorker

        return TaskWorker(self, queues, **options)

    # schedules

    def _beside(self) -> AbstractContextManager[object]:
        """What runs while a consumer does."""
        return nullcontext()

    @abstractmethod
    def schedule(
        self,
        name: str,
        *,
        queue: str,
        body: bytes | Draft,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "UTC",
        missed: str = "once",
    ) -> Schedule:
        """Send a message to a queue as a cron expression says, by the clock of a time zone, or every so many seconds.

        If there is a schedule of this name, it becomes this one. If it is this one already, nothing changes, so that a program
        can declare its schedules whenever it starts. ``missed``: what happens when nobody could send the message at its time:
        skip it, send it once for all times that were missed, or all of them (the last 1000)."""

    @abstractmethod
    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""

    @abstractmethod
    def change_schedule(self, name: str, **changes: Any) -> Schedule:
        """Change what is given of a schedule: ``paused``, or an argument of `schedule`."""

    @abstractmethod
    def remove_schedule(self, name: str) -> Schedule: ...

    @abstractmethod
    def scheduler(self) -> Scheduler:
        """What runs the schedules. Consumers and servers do so by themselves."""

    # publishing exactly once

    @property
    @abstractmethod
    def max_segment(self) -> int:
        """How many bytes a segment may have."""

    @abstractmethod
    def stage(self, writer: str, batch: int, name: str, segment: bytes) -> None:
        """Keep messages (see `penstock.publishing.segments`) for a writer's batch, under a name that no other attempt uses."""

    @abstractmethod
    def unstage(self, writer: str, batch: int, names: Sequence[str]) -> None:
        """Remove segments of an attempt that failed."""

    @abstractmethod
    def publish(
        self,
        writer: str,
        batch: int,
        segments: Mapping[str, int],
        *,
        bad_rows: str | None = None,
        once: bool = False,
        digest: str | None = None,
        **how: Any,
    ) -> int | None:
        """Put the messages of these segments, given with their counts, into their queues: all, or none if one is refused.

        Returns how many; None if the writer has already published this batch or a later one: then nothing changes. Rows
        that cannot be messages go to the queue ``bad_rows``, with the reason. ``once``: the writer has no other batch, and is
        forgotten after a week. Everything else it had staged up to this batch is removed.

        ``digest``: any text that is the same for the same messages. A writer that gives one repeats only its last batch, with
        the same messages. If it publishes others, or an earlier batch, it was set back: `WriterSetBack`, and nothing
        changes."""


class LocalBroker(Broker):
    """All queues of a store that this process has open."""

    def __init__(self, store: Store, *, clock: Clock | None = None, kind: str = "") -> None:
        self._store = store
        self.kind = kind or type(store).__name__
        """Of the store: the scheme of its URL."""
        store.on_damage = _log_damage
        self.clock = clock or store.clock()
        self.waiting = Waiting(store, self.clock)
        self._queues: dict[str, LocalQueue] = {}
        self._tender = Tender(beside=clock is None)
        self._roster = store.roster
        self._desk = Desk(store.outbox.staging, self.clock)
        self._publishing = Publishing(store, self.waiting, self.clock)

    @property
    def store(self) -> Store:
        return self._store

    def __getitem__(self, name: str) -> LocalQueue:
        return self.queue(name)

    def close(self) -> None:
        self._tender.stop()
        self.store.close()
        self.waiting.close()

    def create(self, name: str, *, exist_ok: bool = False, **settings: Any) -> LocalQueue:
        policy.check_name(name)
        checked = policy.check_settings(settings)
        if checked.groups and not self.store.groups:
            raise Unsupported(f"queue {name!r}: this store cannot keep ordered groups; use a memory or an SQL store")
        with self.store.batch():
            check_dead_letter_queue(self.store, name, checked)
            created = self.store.save(name, checked, create=True)
            if not created and not exist_ok:
                raise QueueExists(name)
        return self._queue(name, checked if created else None)

    def queue(self, name: str) -> LocalQueue:
        settings = self.store.load(policy.check_name(name))
        if settings is None:
            raise QueueNotFound(name)
        return self._queue(name, settings)

    def __contains__(self, name: object) -> bool:
        return policy.is_name(name) and self.store.load(name) is not None

    def __iter__(self) -> Iterator[LocalQueue]:
        return (self._queue(name) for name in self._names())

    def queues(self, offset: int = 0, limit: int | None = None) -> Listing:
        policy.check_count(offset, "offset", 0, MAX_NUMBER, BadInput)
        if limit is not None:
            policy.check_count(limit, "limit", 0, MAX_NUMBER, BadInput)
        names = self._names()
        return Listing(len(names), names[offset : None if limit is None else offset + limit])

    def _names(self) -> list[str]:
        """Without what another program keeps in the same folder under a name that no queue can have."""
        return [name for name in self.store.names() if policy.is_name(name)]

    def delete(self, name: str) -> Settings:
        policy.check_name(name)
        if self.store.load(name) is not None:
            purge(self.store.queue(name))  # beforehand and in parts; what is left, or comes in now, goes with the queue
        with self.store.batch():
            self.store.reserve(name)
            settings = self.store.load(name)
            if settings is None:
                raise QueueNotFound(name)
            for other in self.store.names():
                pointing = self.store.load(other)
                if pointing and pointing.redrive and pointing.redrive.dead_letter_queue == name:
                    self.store.reserve(other)
                    current = self.store.load(other)
                    if current is not None:
                        self.store.save(other, policy.check_settings({"redrive": None}, current), create=False)
            self.store.drop(name)
        self._queues.pop(name, None)
        self.waiting.notify(name)
        return settings

    def schedule(
        self,
        name: str,
        *,
        queue: str,
        body: bytes | Draft,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "UTC",
        missed: str = "once",
    ) -> Schedule:
        from penstock.schedules.schedule import Schedule, as_draft

        return self.schedule_book.put(Schedule(name, queue, as_draft(body), cron, every, zone, missed))

    def schedules(self) -> list[Schedule]:
        return self.schedule_book.schedules()

    def change_schedule(self, name: str, **changes: Any) -> Schedule:
        return self.schedule_book.change(name, changes)

    def remove_schedule(self, name: str) -> Schedule:
        return self.schedule_book.remove(name)

    def scheduler(self) -> Scheduler:
        from penstock.schedules.scheduler import Scheduler

        return Scheduler(self.schedule_book, self.waiting, self.clock)

    _beside = scheduler

    @cached_property
    def schedule_book(self) -> ScheduleBook:
        """The server uses it."""
        from penstock.schedules.book import ScheduleBook

        return ScheduleBook(self._store, self.waiting, self.clock, self.queue)

    max_segment = Desk.max_segment

    def stage(self, writer: str, batch: int, name: str, segment: bytes) -> None:
        self._desk.stage(writer, batch, name, segment)

    def unstage(self, writer: str, batch: int, names: Sequence[str]) -> None:
        self._desk.unstage(writer, batch, names)

    def publish(
        self,
        writer: str,
        batch: int,
        segments: Mapping[str, int],
        *,
        bad_rows: str | None = None,
        once: bool = False,
        digest: str | None = None,
        **how: Any,
    ) -> int | None:
        return self._publishing.publish(writer, batch, segments, bad_rows=bad_rows, once=once, digest=digest, **how)

    def _queue(self, name: str, known: Settings | None = None) -> LocalQueue:
        """``known``: its settings, if they were just read."""
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= MOST_QUEUES:  # another process may have deleted many of them
                self._queues.clear()
            found = self._queues[name] = LocalQueue(name, self.store, self.waiting, self.clock, self._tender, known)
        elif known is not None and found.known != known:
            found.known = known
        return found


def open(url: str, *, clock: Clock | None = None, **options: Any) -> Broker:
    """The broker of the store at ``url``: ``memory:``, ``sqlite:///relative/file``, ``sqlite:////absolute/file``; or of the
    server at ``http://host:port``, with its ``token``.

    Options of the store are keywords or the URL's query: ``sqlite:///jobs.db?timeout=5``."""
    if isinstance(url, str) and url.partition(":")[0] in REMOTE and ":" in url:
        return import_module("penstock.client.broker").connect(url, clock=clock, **options)  # type: ignore[no-any-return]
    return open_local(url, clock=clock, **options)


def open_local(url: str, *, clock: Clock | None = None, **options: Any) -> LocalBroker:
    """`open`, for a caller that needs the store itself and not a server in front of it."""
    if not isinstance(url, str):
        raise BadURL(f"a store's URL is text, not {type(url).__name__}: {url!r:.200}")
    scheme, colon, _ = url.partition(":")
    if colon and scheme in REMOTE:
        raise BadURL(f"URL {shown(url)} is the URL of a server; a store is needed here")
    opener = STORES.get(scheme) or _find_opener(scheme) if colon else None
    if opener is None:
        known = ", ".join(f"{name}:" for name in sorted((*STORES, *REMOTE)))
        raise BadURL(f"URL {shown(url)} does not begin with one of {known}")
    return LocalBroker(opener(url, options), clock=clock, kind=scheme)


def _find_opener(scheme: str) -> Opener | None:
    """Other packages may offer stores: by an entry point in the group ``penstock.stores`` with the scheme as its name."""
    for found in import_module("importlib.metadata").entry_points(group="penstock.stores", name=scheme):
        try:
            return found.load()  # type: ignore[no-any-return]
        except (ImportError, AttributeError) as error:
            raise BadURL(f"the store of {scheme!r:.80} URLs, {found.value}, cannot be imported: {error}") from error
    return None


@contextmanager
def open_desk(url: str, **options: Any) -> Iterator[Broker | Desk]:
    """A place for staging only. A SQLite database need not be opened for this."""
    if url.startswith("sqlite:"):
        path, _ = _path_and_options(url, options, {"timeout": _timeout})
        staging, clock_files = import_module("penstock.stores.staging"), import_module("penstock.stores.clock_files")
        clock = machine_clock(clock_files.ClockFiles(clock_files.clock_folder(path), f"the queue file {path}", path))
        yield Desk(staging.StagedFiles(staging.staging_folder(path), durable=False, beside=path), clock)
    else:
        with open(url, **options) as broker:
            yield broker


def _open_memory(url: str, options: dict[str, Any]) -> Store:
    if url not in ("memory:", "memory://") or options:
        raise BadURL(f"URL {shown(url)}: a memory store has no path and no options; write 'memory:'")
    return import_module("penstock.stores.memory").MemoryStore()  # type: ignore[no-any-return]


def _open_sqlite(url: str, options: dict[str, Any]) -> Store:
    path, options = _path_and_options(url, options, {"timeout": _timeout})
    return import_module("penstock.stores.sqlite.store").open_store(path, _patience(options))  # type: ignore[no-any-return]


def location(url: str) -> tuple[str, str]:
    """The kind of a store, and where its files or its database are: a path, or a URL without our own options, for a driver."""
    kind = url.partition(":")[0].lower()
    if kind in ("sqlite", "vsqs"):
        return kind, _path_and_options(url, {}, {"timeout": _timeout})[0]
    if kind == "spool":
        return kind, _path_and_options(url, {}, {"peers": _peers, "timeout": _timeout})[0]
    return kind, _url_and_options(url, {})[0] if kind == "postgresql" else url


def _open_vsqs(url: str, options: dict[str, Any]) -> Store:
    path, options = _path_and_options(url, options, {"timeout": _timeout})
    return import_module("penstock.stores.files.vsqs").open_vsqs(path, _patience(options))  # type: ignore[no-any-return]


def _open_spool(url: str, options: dict[str, Any]) -> Store:
    path, options = _path_and_options(url, options, {"peers": _peers, "timeout": _timeout})
    return import_module("penstock.stores.files.spool").open_spool(path, _patience(options), **options)  # type: ignore[no-any-return]


def _open_memcached(url: str, options: dict[str, Any]) -> Store:
    prefix, found, options = _memcached_parts(url, options)
    return import_module("penstock.stores.memcached.store").MemcachedStore(found, prefix, _patience(options, 3))  # type: ignore[no-any-return]


def memcached_servers(url: str) -> list[tuple[str, int]]:
    return _memcached_parts(url, {})[1]


def _memcached_parts(url: str, options: dict[str, Any]) -> tuple[str, list[tuple[str, int]], dict[str, Any]]:
    """The prefix of the keys, the servers and the options."""
    # The servers stand where other URLs have one host, so that they are taken off before the rest is read like any other.
    servers, slash, rest = url.removeprefix("memcached://").partition("/")
    found = [_server(url, server) for server in servers.split(",")]
    prefix, options = _path_and_options(f"memcached:///{rest}", options, {"timeout": _timeout})
    if not url.startswith("memcached://") or not slash or not _PREFIX.fullmatch(prefix):
        raise BadURL(f"URL {shown(url)}: write memcached://host:port/prefix, the prefix 1 to 100 letters, digits or any of -_.")
    return prefix, found, options


def _server(url: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "11211")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise unreadable(url, f"{text!r:.80} is not host:port")
    return host, int(port)


def _peers(value: Any) -> int:
    peers = int(value)
    if not 0 <= peers <= 1000:
        raise ValueError("it must be between 0 and 1000")
    return peers


def _open_postgresql(url: str, options: dict[str, Any]) -> Store:
    url, options = _url_and_options(url, options)
    return import_module("penstock.stores.postgresql.store").open_store(url, _patience(options), **options)  # type: ignore[no-any-return]


def _open_mysql(url: str, options: dict[str, Any]) -> Store:
    url, options = _url_and_options(url, options)
    return import_module("penstock.stores.mysql.store").open_store(url, _patience(options), **options)  # type: ignore[no-any-return]


def _url_and_options(url: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A server's URL without our own options in its query, and these options; the rest is for the driver."""
    known: dict[str, Callable[[Any], Any]] = {"timeout": _timeout, "statement_timeout": _timeout, "pool": _pool}
    base, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    left = urlencode([(name, value) for name, value in pairs if name not in known], quote_via=quote)
    options = {name: value for name, value in pairs if name in known} | given
    for name, value in options.items():
        if name not in known:
            raise BadURL(f"there is no option {name!r}; there are {', '.join(sorted(known))}")
        try:
            options[name] = known[name](value)
        except (TypeError, ValueError) as error:
            raise BadURL(f"option {name} is {value!r:.80}: {error}") from None
    return f"{base}?{left}" if left else base, options


def _pool(value: Any) -> int:
    size = int(value)
    if not 1 <= size <= 1000:
        raise ValueError("it must be between 1 and 1000 connections")
    return size


def _patience(options: dict[str, Any], timeout: float = TIMEOUT) -> Patience:
    return Patience(options.pop("timeout", timeout))


def _timeout(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds <= 86400:
        raise ValueError("it must be between 0 and 86400 seconds")
    return seconds


def _path_and_options(url: str, given: dict[str, Any], known: dict[str, Callable[[Any], Any]]) -> tuple[str, dict[str, Any]]:
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict").removeprefix("/")
        path.encode()
    except ValueError as error:
        raise unreadable(url, error) from None
    if parts.netloc or not parts.path.startswith("/") or not path or "\0" in path or parts.fragment:
        raise BadURL(f"URL {shown(url)}: write {parts.scheme}:///relative/path or {parts.scheme}:////absolute/path")
    options = dict(parse_qsl(parts.query, keep_blank_values=True)) | given
    for name, value in options.items():
        if name not in known:
            raise BadURL(f"URL {shown(url)}: there is no option {name!r}; there are {', '.join(sorted(known))}")
        try:
            options[name] = known[name](value)
        except (TypeError, ValueError) as error:
            raise BadURL(f"URL {shown(url)}: option {name} is {value!r:.80}: {error}") from None
    return path, options


REMOTE = ("http", "https")
"""The URL schemes of a Penstock server."""
STORES: dict[str, Opener] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "postgresql": _open_postgresql,
    "mysql": _open_mysql,
    "vsqs": _open_vsqs,
    "spool": _open_spool,
    "memcached": _open_memcached,
}
"""How to open the store of each URL scheme."""


def _log_damage(damage: str) -> None:
    logger.error("%s", damage)

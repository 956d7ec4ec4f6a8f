"""A database server as a `Database`, where batches of many threads, processes and machines run concurrently.

At the isolation level READ COMMITTED, row locks keep them apart:

    claim     takes rows that nobody has locked (SKIP LOCKED)
    settle    locks its messages in the order of their numbers, then looks at their deliveries
    insert    keeps the queue from being dropped; with groups or marks, it locks the queue's row; so does a redrive
    groups    every batch that changes a queue with groups locks the queue's row first: a message that is sent or moved there
              must see all others of its group, or it would not wait for its turn
    reserve   locks the queue's row: for changes of settings, for named claims and to wake them, for drop

Every batch takes these locks in the same order, so that two batches never deadlock: the messages of queues without groups by
their numbers, then the queues with groups by their names, then the messages of those.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import RLock
from typing import Any

from penstock.clock import Clock
from penstock.errors import BadInput, QueueNotFound, StoreUnreachable
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.server_clock import ServerClock
from penstock.stores.dbserver.announcer import Announcer
from penstock.stores.dbserver.driver import Driver, Session
from penstock.stores.dbserver.pool import Pool
from penstock.stores.dbserver.side import Connector, SideConnection
from penstock.stores.dbserver.transactions import ServerTransactions, ThisThread, Transaction
from penstock.stores.encoding import unpack_settings
from penstock.stores.sql.database import Answer, Database, Found, Params, migrate, read_meta
from penstock.stores.sql.deleting import find
from penstock.stores.sql.rows import Row

NO_BLOCK = (1, 0)
BLOCK, BATCHES = 1000, 20
"""How many message numbers a process reserves at a time, and for how many batches like this one. Each costs a sync."""
SESSION_DAYS = 7 * 86_400_000_000
NEWS = frozenset({"insert", "extend", "extend_held", "move", "unblock", "change_queue", "drop_queue"})
"""Statements after which a waiting receiver may find a message."""
CHANGE_QUEUES = frozenset({"add_queue", "change_queue", "drop_queue"})
"""Statements that change what `look_up` returns."""


class Listening(ABC):
    """How a process learns that others have changed something."""

    bell: Callable[[], None] | None = None
    """See `Store.listen`."""

    @abstractmethod
    def version(self) -> int:
        """See `Store.version`."""

    @abstractmethod
    def close(self) -> None:
        """Stop, until the next call of `version`."""


class ServerDatabase(Database):
    """Owns the connections of a process to one database, and the message numbers that it has reserved."""

    def __init__(self, driver: Driver, *, pool: int, listening: Callable[[ServerDatabase], Listening]) -> None:
        """``pool``: the maximum number of connections."""
        self.driver = driver
        self.writers = pool
        self.connector = Connector(driver)
        self.pool: Pool[Session] = Pool(
            str(driver), self.connector.connect, self.connector.close, size=pool, patience=driver.patience
        )
        self.side = SideConnection(driver, self.connector)
        self._clock = ServerClock(lambda: self.side.do(self._ask_time))
        self.transactions = ServerTransactions(driver, self.pool, self.side)
        self.announcer = Announcer(lambda: self.side.do(driver.announce), driver.patience.pause)
        self._block_lock = RLock()  # not the side connection's: a sender need not wait for background announcements
        self._block = NO_BLOCK
        self._listening = listening(self)
        try:
            self.ids = migrate(self, driver.steps)
        except BaseException:
            self.close()
            raise
        watch(self)

    def __str__(self) -> str:
        return str(self.driver)

    @property
    def durable(self) -> bool:  # type: ignore[override]
        return self.driver.durable

    @property
    def uncounted(self) -> dict[tuple[int, int], int]:  # type: ignore[override]
        current = self.transactions.here.current
        return {} if current is None else current.uncounted

    # transactions

    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        return self.transactions.batch(durable=durable, announce=self.announcer.announce)

    def joined(self, *, durable: bool = True) -> AbstractContextManager[None]:
        if not self.in_batch():
            return self.batch(durable=durable)
        self.transactions.refuse_handlers()
        return nullcontext()

    def reading(self) -> AbstractContextManager[None]:
        return self.transactions.reading()

    def in_batch(self) -> bool:
        return self.transactions.here.current is not None

    @guarded
    def joining(self, connection: object) -> Generator[Database]:
        self.driver.check_joinable(connection)
        with self.transactions.joining(connection, self.ids) as joined:
            yield self
            if joined.news:
                self.driver.announce(joined.session, in_transaction=True)

    def retry(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        try:
            return verb(*arguments)
        except StoreUnreachable:  # nothing was done, or we would know
            if self.in_batch():
                raise
            return verb(*arguments)

    # statements

    def rows(self, name: str, params: Params) -> list[Row]:
        current = self.transactions.here.current
        if current is not None:
            self.transactions.refuse_handlers()
            self.transactions.ready(current, name)
        return self._look(self.driver.statements[name], self._named(name, params))

    def _look(self, text: Any, params: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a statement. Outside of a batch it only reads, and is retried if its connection was lost."""
        current = self.transactions.here.current
        if current is not None and (current.begun or current.wrote):
            return self.driver.ask(current.session, text, params)[0]
        session = self.pool.take() if current is None else current.session
        try:
            rows = self.driver.ask(session, text, params)[0]
        except StoreUnreachable:
            self.pool.drop(session)
            session = self.pool.take()
            if current is not None:
                current.session = session
            rows = self.driver.ask(session, text, params)[0]
        finally:
            if current is None:
                self.transactions.give(session)
        return rows

    def run(self, name: str, params: Params) -> int:
        current = self.writing(name)
        return self.driver.ask(current.session, self.driver.statements[name], self._named(name, params))[1]

    def many(self, name: str, rows: Iterable[Row]) -> None:
        self.driver.ask_many(self.writing(name).session, name, list(rows))

    def writing(self, name: str) -> Transaction:
        """The current batch, which is about to run this statement."""
        current = self.transactions.here.current
        assert current is not None
        self.transactions.ready(current, name)
        current.wrote = True
        current.news |= name in NEWS
        if name in CHANGE_QUEUES:
            current.seen.clear()
        return current

    def _named(self, name: str, params: Params) -> Mapping[str, Any]:
        return params if isinstance(params, Mapping) else dict(zip(self.driver.parameters[name], params, strict=True))

    def list_of(self, numbers: list[int]) -> Any:
        return self.driver.list_of(numbers)

    # queues and locks

    def look_up(self, name: str) -> Found | None:
        current = self.transactions.here.current
        found = None if current is None else current.seen.get(name)
        if found is None:
            rows = self.rows("queue", (name,))
            if not rows:
                return None
            found = _found(rows[0])
            if current is not None:
                current.seen[name] = found
        return found

    def find(self, name: str) -> Found:
        found = self.look_up(name)
        if found is None:
            raise QueueNotFound(name)
        current = self.transactions.here.current
        if current is None or current.reading or not found.settings.groups or name in current.locked:
            return found
        return self.enter(name, alone=True)

    def enter(self, name: str, *, alone: bool) -> Found:
        current = self.transactions.here.current
        assert current is not None
        if name not in current.locked and (alone or name not in current.kept):
            if alone and current.session.server_id is None:
                self._check_isolation(name, current.session)
            rows = self.rows("lock_queue" if alone else "keep_queue", (name,))
            if not rows:
                raise QueueNotFound(name)
            current.seen[name] = _found(rows[0])
            (current.locked if alone else current.kept).add(name)
            if not alone and current.seen[name].settings.groups:  # it was recreated since the caller looked
                return self.enter(name, alone=True)
        found = self.look_up(name)
        if found is None:
            raise QueueNotFound(name)
        return found

    def _check_isolation(self, name: str, session: Session) -> None:
        """In a joined transaction: once we have the lock, we must see what others inserted before we got it."""
        level = self.driver.isolation(session)
        if level.upper().replace("-", " ") != "READ COMMITTED":
            raise BadInput(
                f"queue {name!r} has groups or marks, and a transaction at the isolation level {level} does not see "
                "what others commit meanwhile: begin it as READ COMMITTED"
            )

    def enter_to_claim(self, name: str, settings: Settings | None) -> Found:
        if settings is None or not settings.groups:
            return self.find(name)
        if settings.redrive is not None and settings.redrive.dead_letter_queue < name:
            dead = self.look_up(settings.redrive.dead_letter_queue)
            if dead is not None and dead.settings.groups:
                self.reserve(settings.redrive.dead_letter_queue)
        return self.enter(name, alone=True)

    def reserve(self, name: str) -> None:
        current = self.transactions.here.current
        assert current is not None
        current.seen.pop(name, None)
        if self.rows("lock_queue", (name,)):
            current.locked.add(name)

    # messages

    def admit(self, size: int) -> None:
        pass  # the server tells when its disk is full

    def take_numbers(self, found: Found | None, count: int) -> int:  # noqa: ARG002
        """Take numbers from the block that this process has reserved. In a queue with groups the order of numbers is the order
        of turns: there the block is valid only until another process reserves one."""
        current = self.transactions.here.current
        with self._block_lock:
            while True:
                known = first, last = self._block
                stale = current is not None and bool(current.locked) and last > 0 and read_meta(self, "number") != last
                if first + count - 1 > last or stale:
                    reserved = count if last == 0 else count * BATCHES + BLOCK  # a process that sends once leaves no gap
                    last = self.side.do(partial(self.driver.reserve_numbers, count=reserved))
                    first = last - reserved + 1
                block = first + count, last
                if self._block is known:  # otherwise a signal handler has sent something meanwhile
                    self._block = block
                    return first

    def remove(self, queue: int, keys: Sequence[Row]) -> list[Row]:
        found = find(self, queue, keys)
        if found:
            self.run("delete_all", {"numbers": self.list_of([row[0] for row in found])})
        return found

    # the whole database

    def maintain(self) -> bool:
        with self.joined():
            self.run("sweep_sessions", {"age": SESSION_DAYS})
        return False

    def version(self) -> int:
        return self._listening.version()

    def listen(self, bell: Callable[[], None]) -> None:
        self._listening.bell = bell

    def clock(self) -> Clock:
        return self._clock

    def _ask_time(self, side: Session) -> int:
        return int(self.driver.ask(side, self.driver.statements["now"])[0][0][0])

    def close(self) -> None:
        self._listening.close()
        self.connector.closed = True
        self.announcer.close()
        self.pool.close()
        self.side.close()

    @guarded
    def migrating(self) -> Generator[None]:
        done = False
        with self.batch(durable=False):
            session = self._begun()
            self.driver.lock_schema(session)
            try:
                yield
                done = True
            finally:
                self.driver.unlock_schema(session, done=done)

    def has_schema(self) -> bool:
        current = self.transactions.here.current
        if current is not None:
            return self.driver.has_schema(self._begun())
        session = self.pool.take()
        try:
            return self.driver.has_schema(session)
        finally:
            self.transactions.give(session)

    def create_meta(self) -> None:
        self.driver.create_meta(self._begun())

    def script(self, text: str) -> None:
        self.driver.script(self._begun(), text)

    def _begun(self) -> Session:
        current = self.transactions.here.current
        assert current is not None
        self.transactions.ready(current)
        return current.session

    def before_fork(self) -> None:
        self._clock.before_fork()  # first, since a thread that measures the time takes them in this order
        self._block_lock.acquire()
        self._block = NO_BLOCK
        self.side.lock.acquire()
        self.side.close()
        self.pool.before_fork()
        self._listening.close()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self.transactions.here = ThisThread()
            self.announcer.forked()
        self.pool.after_fork(child=child)
        self.side.lock.release()
        self._block_lock.release()
        self._clock.after_fork(child=child)


def _found(row: Row) -> Found:
    """Of a statement that does not tell when the first sleeping claim lapses: perhaps at once."""
    return Found(row[0], unpack_settings(row[1]), wakes_at=row[2] if len(row) > 2 else 0)

"""Sessions of a database server: connections, transactions, and recovery from a commit whose answer was lost.

Every connection has a row in penstock_session, and every durable commit writes its token there. If the connection is lost
before the answer arrives, we make sure that the old connection is dead; then that row shows whether the commit was made.

A connection that was interrupted between a query and its answer would return that answer to the next query, so it is closed.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import BadInput, OutcomeUnknown, StoreBusy, StoreError, StoreUnreachable
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.dbserver.announcer import Announcer
from penstock.stores.dbserver.clock import DatabaseClock
from penstock.stores.dbserver.pool import Pool
from penstock.stores.ports import Ids, Segment
from penstock.stores.sql.session import Params, Row, SqlSession

Answer = TypeVar("Answer")
NO_BLOCK = (1, 0)
CONNECT_PAUSE = 0.1
NEWS = frozenset({"insert", "extend", "extend_all", "move", "unblock", "change_queue", "drop_queue"})
"""Statements after which a waiting receiver may find a message."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A connection: the driver's, the server's id for it, its row in penstock_session (0: none yet) and its last token."""

    connection: Any
    server_id: Any
    number: int = 0
    token: int = 0
    copy: Any = None
    """A COPY in progress on it; the next statement ends that first."""
    prepared: dict[bytes, Any] = field(default_factory=dict)
    """The statements prepared on it, in stores that prepare their own."""
    asking: bool = False
    """A statement was begun and has not ended, as far as we know."""

    def __del__(self) -> None:
        with suppress(Exception):
            if self.server_id is not None:  # otherwise it is the caller's
                self.connection.close()


@dataclass(slots=True)
class Work:
    """The state of one thread's batch or read."""

    session: Session
    depth: int = 0
    wrote: bool = False
    news: bool = False
    locked: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    seen: dict[str, tuple[int, Settings]] = field(default_factory=dict)
    uncounted: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: bool = True
    lost: bool = False
    reading: bool = False
    """Nothing is being changed, so that no queue is locked."""
    undone: bool = False
    """The server has rolled everything back, or will: nothing more can join it."""
    over: bool = False
    """Another thread may be using the session by now."""


class Here(threading.local):
    last: Work | None = None
    opener: FrameType | None = None
    """The frame that opened the batch or the read, until it is over."""

    @property
    def work(self) -> Work | None:
        """This thread's current batch or read."""
        return None if self.last is None or self.last.over else self.last


class ServerSession(SqlSession):
    def __init__(self, name: str, *, timeout: float = 10, pool: int = 10) -> None:
        """``timeout``: seconds to wait for locks, for a free connection, and for an unreachable server; ``pool``: the maximum
        number of connections."""
        self._here = Here()
        super().__init__()
        self._name = name
        self._timeout = timeout
        self._parameters = {known: _parameters(text) for known, text in self._statements.items()}
        self._statements = {known: self._prepared(text) for known, text in self._statements.items()}
        self._pool: Pool[Session] = Pool(name, self._connect, self._close, size=pool, timeout=timeout)
        self._side_lock = threading.RLock()
        self._side: Session | None = None
        self._block_lock = threading.RLock()  # not the one above: a sender need not wait for background announcements
        self._block = NO_BLOCK
        self._closed = False
        self._announcer = Announcer(lambda: self._beside(self._announce))
        self._clock = DatabaseClock(lambda: self._beside(self._ask_time))
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise
        watch(self)

    def __str__(self) -> str:
        return self._name

    def clock(self) -> Clock:
        return self._clock

    # connections

    def _connect(self) -> Session:
        """Open a connection; while the server is unreachable, retry for a while."""
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                return self._open()
            except StoreUnreachable:
                if time.monotonic() + CONNECT_PAUSE > give_up_at or self._closed:
                    raise
                time.sleep(CONNECT_PAUSE)

    def _beside(self, act: Callable[[Session], Answer]) -> Answer:
        """Do something outside of every batch, on a connection kept for this. Retry if that connection had been lost."""
        with self._side_lock:
            if self._side is not None and self._side.asking:  # a signal handler runs during a query on it, and needs one too
                session = self._connect()
                try:
                    return act(session)
                finally:
                    self._shut(session)
            fresh = self._side is None
            if self._side is None:
                self._pool.check_open()
                self._side = self._connect()
            try:
                return act(self._side)
            except BaseException as error:
                self._close(self._side)
                self._side = None
                if fresh or not isinstance(error, StoreUnreachable):
                    raise
            return self._beside(act)

    # transactions

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:
        self._refuse_handlers()
        work = self._here.work
        if work is not None:
            with self._savepoint(work):
                yield
            return
        try:
            self._here.opener = find_caller()  # from here on, signal handlers are refused
            with self._working(self._begin("BEGIN") if durable else Work(self._pool.take(), begun=False)) as work:
                yield
                self._commit(work, durable)
        finally:
            self._here.opener = None
        if work.news:
            self._announcer.announce()

    def _refuse_handlers(self) -> None:
        refuse_handlers(self, self._here.opener)

    @guarded
    def _working(self, work: Work) -> Generator[Work]:
        """Set this thread's current work until it is over. An error rolls it back."""
        done = False
        try:
            self._here.last = work
            yield work
            done = not work.reading
        finally:
            work.over = True
            if self._here.last is work:  # not so in a thread that only cleans up
                self._here.last = None
            if work.lost:
                self._pool.drop(work.session)
            elif done:
                self._give(work.session)
            else:
                self._undo(work.session)

    def _undo(self, session: Session) -> None:
        """Roll back and give the session back. Close it if that is interrupted, or was interrupted before."""
        done = lost = False
        try:
            if not session.asking:
                self._command(session, "ROLLBACK")
                done = True
        except StoreError:
            lost = True
        finally:
            if done:
                self._give(session)
            else:
                self._pool.drop(session, alone=not lost)

    def _give(self, session: Session) -> None:
        """Return the session to the pool, unless it was interrupted in the middle of a statement."""
        if session.asking:
            self._pool.drop(session, alone=True)
        else:
            self._pool.give(session)

    def _begin(self, text: str) -> Work:
        """Open a transaction. A connection lost while idle is replaced silently."""
        session = self._pool.take()
        try:
            self._command(session, text)
        except StoreUnreachable:
            self._pool.drop(session)
            session = self._pool.take()
            try:
                self._command(session, text)
            except BaseException:
                self._pool.drop(session)
                raise
        except BaseException:
            self._pool.drop(session, alone=True)
            raise
        return Work(session)

    def _ready(self, work: Work, name: str = "") -> None:
        """A batch of claims begins its transaction only when it does something else: claims are no promise and need none."""
        self._check(work)
        if work.begun or name in self._at_once:
            return
        try:
            self._command(work.session, "BEGIN")
        except StoreUnreachable:
            self._pool.drop(work.session)
            work.session = self._begin("BEGIN").session
        work.begun = True

    def _check(self, work: Work) -> None:
        """After a rollback, further statements would be committed by themselves, as if they were the whole batch."""
        if work.undone:
            raise StoreBusy(f"{self}: all of the batch is rolled back, because of others or of an interrupt")

    @guarded
    def _savepoint(self, work: Work) -> Generator[None]:
        self._ready(work)
        depth, name = work.depth, f"verb{work.depth}"
        locked, kept, uncounted = set(work.locked), set(work.kept), dict(work.uncounted)
        try:
            work.depth = depth + 1
            self._command(work.session, f"SAVEPOINT {name}")
            yield
            self._command(work.session, f"RELEASE SAVEPOINT {name}")
        except BaseException as error:
            undone, work.undone = work.undone, True
            # GeneratorExit means that an interrupt kept us from finishing: another thread may have the session by now.
            if not (undone or work.over or work.session.asking or isinstance(error, GeneratorExit)):
                work.locked, work.kept, work.uncounted = locked, kept, uncounted
                work.seen.clear()
                with suppress(StoreError):
                    self._command(work.session, f"ROLLBACK TO SAVEPOINT {name}")
                    work.undone = False
            raise
        finally:
            work.depth = depth

    @guarded
    def _joining(self, connection: object) -> Generator[Work]:
        """A transaction that the caller has open, on a connection to this database."""
        if self._in_batch():
            raise BadInput(f"this thread is in a batch of {self}, which cannot become part of another transaction")
        work = Work(Session(connection, None))
        with self._savepoint(work):
            if not self._is_ours(work.session):
                raise BadInput(f"{connection!r:.200} is no connection to {self}")
            try:
                self._here.opener = find_caller()
                self._here.last = work
                yield work
            finally:
                self._here.opener = None
                if self._here.last is work:
                    self._here.last = None

    def _is_ours(self, session: Session) -> bool:
        there = "SELECT value FROM penstock_meta WHERE name = 'salt'"
        try:
            rows = self._ask(session, there)[0]
            return bool(rows) and self._ids == Ids(rows[0][0])
        except StoreError as error:
            if self._is_no_table(error.__cause__):
                return False
            raise

    def _commit(self, work: Work, durable: bool) -> None:
        self._check(work)
        if not work.begun:
            return
        session = work.session
        told = durable and work.wrote
        if told:
            self._tell(session)
        try:
            self._command(session, "COMMIT")
        except StoreUnreachable:
            if not told or not self._was_committed(session):
                raise  # a claim is no promise: its messages become visible again by themselves
            work.lost = True

    def _tell(self, session: Session) -> None:
        session.token += 1
        params = {"session": session.number, "token": session.token}
        if session.number and self._ask(session, self._statements["tell"], params)[1]:
            return
        session.number = secrets.randbits(62) + 1
        fields = {"session": session.number, "token": session.token, "now": self._clock()}
        self._ask(session, self._statements["open_session"], fields)

    def _was_committed(self, session: Session) -> bool:
        """Whether the last token of a lost session was committed. Asked once that can no longer change."""

        def look(side: Session) -> bool:
            self._end(side, session)
            rows = self._ask(side, self._statements["told"], {"session": session.number})[0]
            if rows and rows[0][0] == -session.token:
                raise OutcomeUnknown(f"{self}: of a commit whose answer was lost, a part was done, and which part is unknown")
            return bool(rows) and rows[0][0] == session.token

        try:
            return self._beside(look)
        except OutcomeUnknown:
            raise
        except StoreError as error:
            raise OutcomeUnknown(
                f"{self}: the connection was lost at a commit, and whether it was made is unknown: {error}"
            ) from error

    @guarded
    def _reading(self) -> Generator[None]:
        self._refuse_handlers()
        work = self._here.work
        if work is not None:
            was, work.reading = work.reading, True
            try:
                yield
            finally:
                work.reading = was
            return
        try:
            self._here.opener = find_caller()
            work = self._begin(self._begin_reading)
            work.reading = True
            with self._working(work):
                yield
        finally:
            self._here.opener = None

    def _in_batch(self) -> bool:
        return self._here.work is not None

    @property
    def _seen(self) -> dict[str, tuple[int, Settings]]:
        return self._here.work.seen if self._here.work else {}

    @_seen.setter
    def _seen(self, _: dict[str, tuple[int, Settings]]) -> None: ...

    @property
    def _uncounted(self) -> dict[tuple[int, int], int]:
        return self._here.work.uncounted if self._here.work else {}

    @_uncounted.setter
    def _uncounted(self, _: dict[tuple[int, int], int]) -> None: ...

    # statements

    def _rows(self, name: str, params: Params) -> list[Row]:
        if self._here.work is not None:
            self._refuse_handlers()
            self._ready(self._here.work, name)
        return self._look(self._statements[name], self._named(name, params))

    def _look(self, text: Any, params: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a statement. Outside of a batch it only reads, and is retried if its connection was lost."""
        work = self._here.work
        if work is not None and (work.begun or work.wrote):
            return self._ask(work.session, text, params)[0]
        session = self._pool.take() if work is None else work.session
        try:
            rows = self._ask(session, text, params)[0]
        except StoreUnreachable:
            self._pool.drop(session)
            session = self._pool.take()
            if work is not None:
                work.session = session
            rows = self._ask(session, text, params)[0]
        finally:
            if work is None:
                self._give(session)
        return rows

    def _run(self, name: str, params: Params) -> int:
        return self._ask(self._writing(name).session, self._statements[name], self._named(name, params))[1]

    def _many(self, name: str, rows: Iterable[Row]) -> list[Row]:
        work = self._writing(name)
        self._ask_many(work.session, name, [self._named(name, row) for row in rows])
        return []

    def _writing(self, name: str) -> Work:
        work = self._here.work
        assert work is not None
        self._ready(work, name)
        work.wrote = True
        work.news |= name in NEWS
        return work

    def _script(self, text: str) -> None:
        work = self._here.work
        assert work is not None
        self._ready(work)
        self._command(work.session, text)

    def _named(self, name: str, params: Params) -> Mapping[str, Any]:
        return params if isinstance(params, Mapping) else dict(zip(self._parameters[name], params, strict=True))

    # life

    def close(self) -> None:
        self._closed = True
        self._announcer.close()
        self._pool.close()
        with self._side_lock:
            if self._side is not None:
                self._close(self._side)
                self._side = None

    def _close(self, session: Session) -> None:
        """Close a connection, and if it still works, delete its row."""
        if session.number and not session.asking:
            with suppress(StoreError):
                self._ask(session, self._statements["close_session"], {"session": session.number})
        self._shut(session)

    def before_fork(self) -> None:
        self._clock.before_fork()  # first, since a thread that measures the time takes them in this order
        self._block_lock.acquire()
        self._block = NO_BLOCK
        self._side_lock.acquire()
        if self._side is not None:
            self._close(self._side)
            self._side = None
        self._pool.before_fork()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._here = Here()
            self._announcer.forked()
        self._pool.after_fork(child=child)
        self._side_lock.release()
        self._block_lock.release()
        self._clock.after_fork(child=child)

    # what each database does its own way

    _at_once: frozenset[str] = frozenset()
    """The statements that a batch of claims can run without a transaction."""
    _begin_reading: str
    """Begins a transaction in which several reads see the same state."""

    @abstractmethod
    def _open(self) -> Session:
        """Open a connection in autocommit mode. Raises `StoreUnreachable` if there is no server."""

    @abstractmethod
    def _shut(self, session: Session) -> None: ...

    @abstractmethod
    def _prepared(self, text: str) -> Any:
        """A statement with the driver's placeholders."""

    @abstractmethod
    def _ask(self, session: Session, text: Any, params: Mapping[str, Any] | None = None) -> tuple[list[Row], int]:
        """Run a statement. Returns its rows, and how many there were or were changed. Raises only Penstock errors."""

    def _command(self, session: Session, text: str) -> None:
        """Run a statement that has neither parameters nor rows."""
        self._ask(session, text)

    @abstractmethod
    def _ask_many(self, session: Session, name: str, rows: list[Mapping[str, Any]]) -> None:
        """Run a named statement for each row of parameters."""

    def _fetch(self, session: Session, fields: dict[str, Any]) -> Segment | None:
        """A staged segment."""
        rows, _ = self._ask(session, self._statements["fetch"], fields)
        return rows[0][0] if rows else None

    @abstractmethod
    def _end(self, side: Session, lost: Session) -> None:
        """Make sure that a lost connection is dead on the server too."""

    @abstractmethod
    def _ask_time(self, side: Session) -> int:
        """The database's time, in microseconds."""

    @abstractmethod
    def _isolation(self, session: Session) -> str:
        """The isolation level of a transaction, in the database's own spelling."""

    @abstractmethod
    def _is_no_table(self, error: BaseException | None) -> bool:
        """Whether this driver error says that a table does not exist."""

    @abstractmethod
    def _announce(self, side: Session) -> None:
        """Wake waiting processes."""


def _parameters(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"(?<!:):(\w+)", text)))

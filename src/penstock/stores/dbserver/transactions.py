"""The transactions of a process on a database server, and recovery from a commit whose answer was lost.

Every connection has a row in penstock_session, and every durable commit writes its token there. If the connection is lost
before the answer arrives, we make sure that the old connection is dead; then that row shows whether the commit was made.

A connection that was interrupted between a query and its answer would return that answer to the next query, so it is closed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from penstock.errors import BadInput, OutcomeUnknown, StoreBusy, StoreError, StoreUnreachable
from penstock.guarded import guarded
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.dbserver.driver import Driver, Session
from penstock.stores.dbserver.pool import Pool
from penstock.stores.dbserver.side import SideConnection
from penstock.stores.ids import Ids
from penstock.stores.sql.database import Answer, Found


@dataclass(slots=True)
class Transaction:
    """One thread's batch or read."""

    session: Session
    depth: int = 0
    wrote: bool = False
    news: bool = False
    """A waiting receiver may find a message after it."""
    locked: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    seen: dict[str, Found] = field(default_factory=dict)
    uncounted: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: bool = True
    lost: bool = False
    reading: bool = False
    """Nothing is being changed, so that no queue is locked."""
    undone: bool = False
    """Everything is rolled back, or will be: nothing more can join it."""
    over: bool = False
    """Another thread may be using the session by now."""


class ThisThread(threading.local):
    last: Transaction | None = None
    opener: FrameType | None = None
    """The frame that opened the batch or the read, until it is over."""

    @property
    def current(self) -> Transaction | None:
        """This thread's batch or read."""
        return None if self.last is None or self.last.over else self.last


class ServerTransactions:
    """Owns each thread's transaction, and gives it a connection of the pool."""

    def __init__(self, driver: Driver, pool: Pool[Session], side: SideConnection) -> None:
        self.here = ThisThread()
        self._driver = driver
        self._pool = pool
        self._side = side

    def refuse_handlers(self) -> None:
        """In a batch: raises `StoreBusy` if a signal handler called us, as it is not part of the batch."""
        refuse_handlers(self._driver, self.here.opener)

    @guarded
    def batch(self, *, durable: bool, announce: Callable[[], None]) -> Generator[None]:
        self.refuse_handlers()
        current = self.here.current
        if current is not None:
            with self._savepoint(current):
                yield
            return
        try:
            self.here.opener = find_caller()  # from here on, signal handlers are refused
            with self._during(self._begin("BEGIN") if durable else Transaction(self._pool.take(), begun=False)) as current:
                yield
                self._commit(current, durable)
        finally:
            self.here.opener = None
        if current.news:
            announce()

    @guarded
    def reading(self) -> Generator[None]:
        self.refuse_handlers()
        current = self.here.current
        if current is not None:
            was, current.reading = current.reading, True
            try:
                yield
            finally:
                current.reading = was
            return
        try:
            self.here.opener = find_caller()
            current = self._begin(*self._driver.begin_reading)
            current.reading = True
            with self._during(current):
                yield
        finally:
            self.here.opener = None

    @guarded
    def joining(self, connection: object, ids: Ids) -> Generator[Transaction]:
        """A transaction that the caller has open, on a connection to this database."""
        if self.here.current is not None:
            raise BadInput(f"this thread is in a batch of {self._driver}, which cannot become part of another transaction")
        joined = Transaction(Session(connection, None))
        with self._savepoint(joined):
            if not self._is_ours(joined.session, ids):
                raise BadInput(f"{connection!r:.200} is no connection to {self._driver}")
            try:
                self.here.opener = find_caller()
                self.here.last = joined
                yield joined
            finally:
                self.here.opener = None
                if self.here.last is joined:
                    self.here.last = None

    def _is_ours(self, session: Session, ids: Ids) -> bool:
        there = "SELECT value FROM penstock_meta WHERE name = 'salt'"
        try:
            rows = self._driver.ask(session, there)[0]
            return bool(rows) and ids == Ids(rows[0][0])
        except StoreError as error:
            if self._driver.is_no_table(error.__cause__):
                return False
            raise

    @guarded
    def _during(self, current: Transaction) -> Generator[Transaction]:
        """Set this thread's transaction until it is over. An error rolls it back."""
        done = False
        try:
            self.here.last = current
            yield current
            done = not current.reading
        finally:
            current.over = True
            if self.here.last is current:  # not so in a thread that only cleans up
                self.here.last = None
            if current.lost:
                self._pool.drop(current.session)
            elif done:
                self.give(current.session)
            else:
                self._undo(current.session)

    def _undo(self, session: Session) -> None:
        """Roll back and give the session back. Close it if that is interrupted, or was interrupted before."""
        done = lost = False
        try:
            if not session.asking:
                self._driver.command(session, "ROLLBACK")
                done = True
        except StoreError:
            lost = True
        finally:
            if done:
                self.give(session)
            else:
                self._pool.drop(session, alone=not lost)

    def give(self, session: Session) -> None:
        """Return the session to the pool, unless it was interrupted in the middle of a statement."""
        if session.asking:
            self._pool.drop(session, alone=True)
        else:
            session.deadlocked = False
            self._pool.give(session)

    def _begin(self, *texts: str) -> Transaction:
        """Open a transaction. A connection lost while idle is replaced silently."""
        session = self._pool.take()
        try:
            self._command_all(session, texts)
        except StoreUnreachable:
            self._pool.drop(session)
            session = self._pool.take()
            try:
                self._command_all(session, texts)
            except BaseException:
                self._pool.drop(session)
                raise
        except BaseException:
            self._pool.drop(session, alone=True)
            raise
        return Transaction(session)

    def _command_all(self, session: Session, texts: Sequence[str]) -> None:
        for text in texts:
            self._driver.command(session, text)

    def ready(self, current: Transaction, name: str = "") -> None:
        """A batch of claims begins its transaction only when it does something else: claims are no promise and need none."""
        self._check(current)
        if current.begun or name in self._driver.at_once:
            return
        try:
            self._driver.command(current.session, "BEGIN")
        except StoreUnreachable:
            self._pool.drop(current.session)
            current.session = self._begin("BEGIN").session
        current.begun = True

    def _check(self, current: Transaction) -> None:
        """After a rollback, further statements would be committed by themselves, as if they were the whole batch."""
        if current.undone or current.session.deadlocked:
            raise StoreBusy(f"{self._driver}: all of the batch is rolled back, because of others or of an interrupt")

    @guarded
    def _savepoint(self, current: Transaction) -> Generator[None]:
        self.ready(current)
        depth, name = current.depth, f"verb{current.depth}"
        locked, kept, uncounted = set(current.locked), set(current.kept), dict(current.uncounted)
        try:
            current.depth = depth + 1
            self._driver.command(current.session, f"SAVEPOINT {name}")
            yield
            self._driver.command(current.session, f"RELEASE SAVEPOINT {name}")
        except BaseException as error:
            undone, current.undone = current.undone or current.session.deadlocked, True
            # GeneratorExit means that an interrupt kept us from finishing: another thread may have the session by now.
            if not (undone or current.over or current.session.asking or isinstance(error, GeneratorExit)):
                current.locked, current.kept, current.uncounted = locked, kept, uncounted
                current.seen.clear()
                with suppress(StoreError):
                    self._driver.command(current.session, f"ROLLBACK TO SAVEPOINT {name}")
                    current.undone = False
            raise
        finally:
            current.depth = depth

    # commits whose answer may be lost

    def _commit(self, current: Transaction, durable: bool) -> None:
        self._check(current)
        if not current.begun:
            return
        session = current.session
        promised = durable and current.wrote
        if promised:
            self.write_token(session)
        try:
            self._driver.command(session, "COMMIT")
        except StoreUnreachable:
            if not promised or not self._was_committed(session):
                raise  # a claim is no promise: its messages become visible again by themselves
            current.lost = True

    def write_token(self, session: Session) -> None:
        session.token += 1
        texts, params = self._driver.statements, {"session": session.number, "token": session.token}
        if session.number and self._driver.ask(session, texts["write_token"], params)[1]:
            return
        session.number = secrets.randbits(62) + 1
        self._driver.ask(session, texts["open_session"], {"session": session.number, "token": session.token})

    def _was_committed(self, session: Session) -> bool:
        """Whether the last token of a lost session was committed. RowsAndCount once that can no longer change."""

        def look(side: Session) -> bool:
            self._driver.end(side, session)
            rows = self._driver.ask(side, self._driver.statements["read_token"], {"session": session.number})[0]
            if rows and rows[0][0] == -session.token:
                raise OutcomeUnknown(
                    f"{self._driver}: of a commit whose answer was lost, a part was done, and which part is unknown"
                )
            return bool(rows) and rows[0][0] == session.token

        try:
            return self._side.do(look)
        except OutcomeUnknown:
            raise
        except StoreError as error:
            raise OutcomeUnknown(
                f"{self._driver}: the connection was lost at a commit, and whether it was made is unknown: {error}"
            ) from error

    def with_token(self, ask: Callable[[Session], Answer], done: Answer, nothing: Answer) -> Answer:
        """Outside of a batch: run a single statement that also writes its token. Returns its answer, ``done`` if the answer was
        lost but the statement committed, or ``nothing`` if the connection has no row yet; the first batch adds one."""
        session = self._pool.take()
        if not session.number:
            self._pool.give(session)
            return nothing
        session.token += 1
        try:
            answer = ask(session)
        except StoreUnreachable:
            try:
                committed = self._was_committed(session)
            finally:
                self._pool.drop(session)
            if not committed:
                raise
            return done
        finally:
            self.give(session)
        return answer

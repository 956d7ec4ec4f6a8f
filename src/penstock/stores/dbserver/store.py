"""The verbs of a store on a database server, where batches of many threads, processes and machines run concurrently.

At the isolation level READ COMMITTED, row locks keep them apart:

    claim     takes rows that nobody has locked (SKIP LOCKED)
    settle    locks its messages in the order of their numbers, then looks at their deliveries
    insert    keeps the queue from being dropped; with groups or marks, it locks the queue's row; so does a redrive
    groups    every batch that changes a queue with groups locks the queue's row first: a message that is sent or moved there
              must see all others of its group, or it would not wait for its turn
    reserve   locks the queue's row: for changes of settings, for named claims, for drop

Every batch takes these locks in the same order, so that two batches never deadlock: the messages of queues without groups by
their numbers, then the queues with groups by their names, then the messages of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from penstock.errors import BadInput, QueueNotFound, StoreUnreachable
from penstock.message import FOREVER, Death, Entry, Held, Message, Moved, Sent, Settings, Settlement
from penstock.policy import same_settings
from penstock.stores.dbserver.session import Answer, ServerSession, Session
from penstock.stores.dbserver.staging import StagedRows
from penstock.stores.ports import Claiming, Outbox
from penstock.stores.sql.ledger import SqlLedger
from penstock.stores.sql.session import Row
from penstock.stores.sql.store import SqlStore

BLOCK, BATCHES = 1000, 20
"""How many message numbers a process reserves at a time, and for how many batches like this one. Each costs a sync."""
SESSION_DAYS = 7 * 86_400_000_000


class SqlServerStore(ServerSession, SqlStore):
    exchanges = True

    def __init__(self, name: str, *, timeout: float = 10, pool: int = 10) -> None:
        """See `ServerSession`."""
        super().__init__(name, timeout=timeout, pool=pool)
        self.outbox = Outbox(StagedRows(self), SqlLedger(self))

    # queues and locks

    def _queue(self, name: str) -> tuple[int, Settings]:
        found = super()._queue(name)
        work = self._here.work
        if work is None or work.reading or not found[1].groups or name in work.locked:
            return found
        return self._enter(name, alone=True)

    def _enter(self, name: str, *, alone: bool) -> tuple[int, Settings]:
        work = self._here.work
        assert work is not None
        if name not in work.locked and (alone or name not in work.kept):
            if alone and work.session.server_id is None:
                self._check_isolation(name, work.session)
            rows = self._rows("lock_queue" if alone else "keep_queue", (name,))
            if not rows:
                raise QueueNotFound(name)
            work.seen[name] = self._found(rows[0])
            (work.locked if alone else work.kept).add(name)
            if not alone and work.seen[name][1].groups:  # it was recreated since the caller looked
                return self._enter(name, alone=True)
        return work.seen.get(name) or super()._queue(name)

    def _check_isolation(self, name: str, session: Session) -> None:
        """In a joined transaction: once we have the lock, we must see what others inserted before we got it."""
        level = self._isolation(session)
        if level.upper().replace("-", " ") != "READ COMMITTED":
            raise BadInput(
                f"queue {name!r} has groups or marks, which cannot be told by the isolation level {level} of the transaction: "
                "begin it as READ COMMITTED"
            )

    def _enter_to_claim(self, name: str, settings: Settings | None) -> tuple[int, Settings]:
        """The queue to claim from. Dead letters go to another queue, whose lock may have to be taken first."""
        if settings is None or not settings.groups:
            return self._queue(name)
        if settings.redrive is not None and settings.redrive.dead_letter_queue < name:
            dead = self._look_up(settings.redrive.dead_letter_queue)
            if dead is not None and dead[1].groups:
                self.reserve(settings.redrive.dead_letter_queue)
        return self._enter(name, alone=True)

    def reserve(self, name: str) -> None:
        work = self._here.work
        assert work is not None
        work.seen.pop(name, None)
        if self._rows("lock_queue", (name,)):
            work.locked.add(name)

    def due(self, queue: str) -> int | None:
        rows = self._rows("due_of", (FOREVER, queue))
        if not rows:
            raise QueueNotFound(queue)
        due: int | None = rows[0][1]
        return due

    # messages

    def claim(self, queue: str, claiming: Claiming) -> list[Message] | None:
        with self._joined(durable=False):
            home, current = self._enter_to_claim(queue, claiming.known)
            if claiming.known is not None and not same_settings(current, claiming.known):
                return None
            if claiming.until is None:
                rows = self._visible(home, claiming.limit, claiming.at, claiming.share)
            else:
                rows = self._hide(home, claiming)
            return self._claimed(queue, rows, claiming.at, claiming.until, claiming.holder)

    def _hide(self, home: int, claiming: Claiming) -> list[Row]:
        """Claim messages. Returns the rows as they were before."""
        rows = self._visible(home, claiming.limit, claiming.at, claiming.share)
        if rows:
            fields = {"until": claiming.until, "now": claiming.at, "holder": self._packed_holder(claiming.holder)}
            self._run("claim_all", {**fields, "numbers": [row[0] for row in rows]})
        return rows

    def _delete(self, home: int, settings: Settings, keys: list[Row], settlement: Settlement) -> dict[int, int]:
        return self._delete_all(home, settings, self._find(home, keys), settlement)

    def move(
        self,
        queue: str,
        receipts: Sequence[Held],
        target: str,
        now: int,
        expires_at: int,
        deaths: Sequence[Death | None],
    ) -> list[Moved]:
        with self._joined():
            home, settings = super()._queue(queue)
            if not settings.groups:
                self._find(home, [self._key(home, receipt) for receipt in receipts])
            marks = None in deaths and (settings.groups or self._will_mark(home, receipts, target))
            for name in sorted({queue, target}):
                if marks and name == target:
                    self._enter(name, alone=True)
                else:
                    self._queue(name)
            return super().move(queue, receipts, target, now, expires_at, deaths)

    def _take_numbers(self, count: int) -> int:
        """Take numbers from the block that this process has reserved. In a queue with groups the order of numbers is the order
        of turns: there the block is valid only until another process reserves one."""
        work = self._here.work
        with self._block_lock:
            while True:
                known = first, last = self._block
                stale = work is not None and bool(work.locked) and last > 0 and self._meta("number") != last
                if first + count - 1 > last or stale:
                    reserved = count if last == 0 else count * BATCHES + BLOCK  # a process that sends once leaves no gap
                    last = self._beside(partial(self._reserve_numbers, count=reserved))
                    first = last - reserved + 1
                block = first + count, last
                if self._block is known:  # otherwise a signal handler has sent something meanwhile
                    self._block = block
                    return first

    def _reserve_numbers(self, side: Session, count: int) -> int:
        self._command(side, "BEGIN")
        self._ask(side, self._statements["add_to_meta"], {"count": count, "name": "number"})
        last = int(self._ask(side, self._statements["meta"], {"name": "number"})[0][0][0])
        self._command(side, "COMMIT")
        return last

    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        return self._surely(lambda: super(SqlServerStore, self).insert(queue, entries, now, settings))

    def insert_bodies(self, queue: str, bodies: Sequence[bytes], like: Entry, settings: Settings) -> bool:
        return self._surely(lambda: super(SqlServerStore, self).insert_bodies(queue, bodies, like, settings))

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        return self._surely(lambda: super(SqlServerStore, self).delete(queue, receipts, settlement, settings))

    def exchange(
        self,
        queue: str,
        receipts: Sequence[Held],
        settlement: Settlement,
        settings: Settings,
        claiming: Claiming,
    ) -> tuple[list[bool], list[Message]] | None:
        def exchange() -> tuple[list[bool], list[Message]] | None:
            with self.batch():
                gone = self.delete(queue, receipts, settlement, settings)
                return None if gone is None else (gone, self.claim(queue, claiming) or [])

        return self._surely(exchange)

    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        return self._surely(lambda: super(SqlServerStore, self).extend(queue, receipts, until, release=release))

    def _surely(self, verb: Callable[[], Answer]) -> Answer:
        """Retry a verb that has its own batch if its connection was lost: nothing was done, or we would know."""
        try:
            return verb()
        except StoreUnreachable:
            if self._here.work is not None:
                raise
            return verb()

    def sweep(self, queue: str, now: int) -> bool:
        more = super().sweep(queue, now)
        with self._joined():
            self._run("sweep_sessions", {"before": self._clock() - SESSION_DAYS})
        return more

"""What an SQL database does for the queues in it. SQLite, and the servers PostgreSQL and MySQL, implement this port."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from penstock.clock import Clock
from penstock.errors import QueueNotFound, StoreVersion
from penstock.message import Settings
from penstock.stores.ids import Ids
from penstock.stores.ports import START
from penstock.stores.sql.rows import Row
from penstock.stores.sql.statements import Steps

Params = Mapping[str, Any] | Sequence[Any]
Answer = TypeVar("Answer")


class Found(NamedTuple):
    """A queue's row."""

    number: int
    settings: Settings
    floor: tuple[int, int] = START
    """On SQLite: where the last of its runs ends."""
    wakes_at: int | None = None
    """When the first of its sleeping claims lapses, or earlier."""
    last_number: int = 0
    """On SQLite: the last message number that was reserved, for any queue."""


class Database(ABC):
    """Runs statements by name, and keeps them together in transactions."""

    ids: Ids
    durable: bool
    writers: int = 1
    uncounted: dict[tuple[int, int], int]
    """The messages, by number and delivery, that this batch has claimed without recording it, with the delivery in the row."""

    # transactions

    @abstractmethod
    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """See `Store.batch`."""

    @abstractmethod
    def joined(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """The current batch, or else a new one."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """A context in which several reads see the same state."""

    @abstractmethod
    def in_batch(self) -> bool:
        """Whether the calling thread is in a batch."""

    @abstractmethod
    def joining(self, connection: object) -> AbstractContextManager[Database]:
        """See `Store.joining`."""

    @abstractmethod
    def retry(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        """Run a verb that has its own batch, and run it once more if its connection was lost and nothing was done."""

    # statements

    @abstractmethod
    def rows(self, name: str, params: Params) -> list[Row]:
        """Run a named statement. Returns its rows."""

    @abstractmethod
    def run(self, name: str, params: Params) -> int:
        """Run a named statement. Returns how many rows it changed."""

    @abstractmethod
    def many(self, name: str, rows: Iterable[Row]) -> None:
        """Run a named statement for each row of parameters, given in the order of their first use."""

    @abstractmethod
    def list_of(self, numbers: list[int]) -> Any:
        """Numbers in the form that statements with {among} take."""

    # queues

    @abstractmethod
    def look_up(self, name: str) -> Found | None:
        """A queue's row. A batch reads it once."""

    @abstractmethod
    def find(self, name: str) -> Found:
        """The same, in order to use it, or `QueueNotFound`. If the queue has groups, no other batch changes it meanwhile."""

    @abstractmethod
    def enter(self, name: str, *, alone: bool) -> Found:
        """The same, in order to insert: the queue cannot be dropped before the batch ends. With ``alone``, nobody else inserts
        or settles messages by its groups and marks meanwhile."""

    @abstractmethod
    def enter_to_claim(self, name: str, settings: Settings | None) -> Found:
        """The same, in order to claim. Dead letters go to another queue, whose lock may have to be taken first."""

    @abstractmethod
    def reserve(self, name: str) -> None:
        """See `Store.reserve`."""

    # messages

    @abstractmethod
    def admit(self, size: int) -> None:
        """Before a send of this many bytes: raises `StoreFull` if there is no room."""

    @abstractmethod
    def take_numbers(self, found: Found, count: int) -> int:
        """In a batch: take ``count`` message numbers that were never given out before. Returns the first."""

    @abstractmethod
    def remove(self, queue: int, keys: Sequence[Row]) -> list[Row]:
        """Delete messages by (number, queue, delivery). Returns number, delivery, visible_at, state, group and mark of those
        that were there."""

    # the whole database

    @abstractmethod
    def maintain(self) -> bool:
        """Clear a part of what is no longer needed. Returns whether there is more."""

    @abstractmethod
    def version(self) -> int:
        """See `Store.version`."""

    def traces(self) -> list[str]:
        """See `Store.traces`."""
        return []

    def listen(self, bell: Callable[[], None]) -> None:  # noqa: B027
        """See `Store.listen`."""

    @abstractmethod
    def clock(self) -> Clock: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def migrating(self) -> AbstractContextManager[None]:
        """A batch in which nobody else changes the schema."""

    @abstractmethod
    def has_schema(self) -> bool: ...

    @abstractmethod
    def create_meta(self) -> None: ...

    @abstractmethod
    def script(self, text: str) -> None:
        """Run a statement of the schema."""


def read_meta(database: Database, name: str) -> int:
    return int(database.rows("meta", {"name": name})[0][0])


def known(found: Found | None, name: str) -> Found:
    if found is None:
        raise QueueNotFound(name)
    return found


def migrate(database: Database, steps: Steps) -> Ids:
    """Bring the schema to the newest step, in one transaction. Nodes that start together wait for each other. Returns how this
    store makes ids."""
    newest = max(steps)
    if (read_meta(database, "version") if database.has_schema() else 0) != newest:
        with database.migrating():
            version = read_meta(database, "version") if database.has_schema() else 0
            if version > newest:
                raise StoreVersion(
                    f"{database} has schema version {version}, this Penstock knows {newest}: use a newer Penstock"
                )
            if version == 0:
                database.create_meta()
                for name, value in (("version", 0), ("salt", Ids.salt()), ("number", 0)):
                    database.run("set_meta", {"name": name, "value": value})
            for step in range(version + 1, newest + 1):
                for statement in steps[step]:
                    database.script(statement)
            database.run("change_meta", {"name": "version", "value": newest})
    return Ids(read_meta(database, "salt"))

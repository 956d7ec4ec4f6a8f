"""What the driver of a database server does: PostgreSQL's and MySQL's implement this port."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.patience import Patience
from penstock.stores.ports import Segment
from penstock.stores.sql.rows import Row
from penstock.stores.sql.statements import Steps

RowsAndCount = tuple[list[Row], int]
"""The rows of an answer, and how many there were or were changed."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A connection: the driver's, the server's id for it, its row in penstock_session (0: none yet) and its last token."""

    connection: Any
    server_id: Any
    """None: the connection is a caller's."""
    number: int = 0
    token: int = 0
    copy: Any = None
    """A COPY in progress on it; the next statement ends that first."""
    prepared: dict[bytes, Any] = field(default_factory=dict)
    """The statements prepared on it, by a driver that prepares its own."""
    asking: bool = False
    """A statement was begun and has not ended, as far as we know."""
    deadlocked: bool = False
    """The server has rolled its transaction back."""

    def __del__(self) -> None:
        with suppress(Exception):
            if self.server_id is not None:
                self.connection.close()


class Driver(ABC):
    """Connections to one database, and the statements in its dialect. Raises only Penstock errors."""

    patience: Patience
    """How long to wait for locks, for a free connection, and for an unreachable server."""
    durable: bool = True
    steps: Steps
    statements: dict[str, Any]
    """The statements by name, with the driver's placeholders."""
    parameters: dict[str, list[str]]
    """The names of each statement's parameters, in the order of their first use."""
    begin_reading: tuple[str, ...]
    """The statements that begin a transaction in which several reads see the same state."""
    at_once: frozenset[str]
    """The statements that a batch of claims can run without a transaction."""

    @abstractmethod
    def open(self) -> Session:
        """Open a connection in autocommit mode. Raises `StoreUnreachable` if there is no server."""

    @abstractmethod
    def shut(self, session: Session) -> None: ...

    @abstractmethod
    def ask(self, session: Session, text: Any, params: Mapping[str, Any] | None = None) -> RowsAndCount:
        """Run a statement."""

    @abstractmethod
    def command(self, session: Session, text: str) -> None:
        """Run a statement that has neither parameters nor rows."""

    @abstractmethod
    def ask_many(self, session: Session, name: str, rows: list[Row]) -> None:
        """Run a named statement for each row of parameters."""

    @abstractmethod
    def list_of(self, numbers: list[int]) -> Any:
        """See `Database.list_of`."""

    @abstractmethod
    def fetch(self, session: Session, fields: dict[str, Any]) -> Segment | None:
        """A staged segment."""

    @abstractmethod
    def reserve_numbers(self, side: Session, count: int) -> int:
        """Reserve message numbers. Returns the last."""

    @abstractmethod
    def end(self, side: Session, lost: Session) -> None:
        """Make sure that a lost connection is dead on the server too."""

    @abstractmethod
    def announce(self, session: Session, *, in_transaction: bool = False) -> None:
        """Wake waiting processes; inside a caller's transaction, when and if that is committed."""

    # joining a transaction of the caller's

    @abstractmethod
    def check_joinable(self, connection: object) -> None:
        """Raises `BadInput` unless this is an open connection in a transaction."""

    @abstractmethod
    def isolation(self, session: Session) -> str:
        """The isolation level of a transaction, in the database's own spelling."""

    @abstractmethod
    def is_no_table(self, error: BaseException | None) -> bool:
        """Whether this driver error says that a table does not exist."""

    # the schema

    @abstractmethod
    def lock_schema(self, session: Session) -> None:
        """In a batch: wait until nobody else changes the schema."""

    @abstractmethod
    def unlock_schema(self, session: Session, *, done: bool) -> None:
        """Before the batch ends; ``done``: without an error."""

    @abstractmethod
    def has_schema(self, session: Session) -> bool: ...

    @abstractmethod
    def create_meta(self, session: Session) -> None: ...

    @abstractmethod
    def script(self, session: Session, text: str) -> None:
        """Run a statement of the schema."""

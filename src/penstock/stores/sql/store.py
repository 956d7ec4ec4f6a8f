"""A store over the statements of queue.sql: all that SQL databases have in common.

A database joins by a subclass that gives its `dialect` (the words in braces of queue.sql) and the primitives at the end of
`penstock.stores.sql.session`: run statements, open transactions, hand out numbers.
"""

from __future__ import annotations

from penstock.stores.ports import Readers
from penstock.stores.sql.messages import SqlMessages
from penstock.stores.sql.readers import SqlReaders
from penstock.stores.sql.roster import SqlRoster


class SqlStore(SqlMessages):
    durable = True
    ordered = True
    groups = True
    shares = True
    ranges = True

    def __init__(self) -> None:
        super().__init__()
        self.roster = SqlRoster(self)

    def readers(self, queue: str) -> Readers:
        return SqlReaders(self, queue)

"""A store over the statements of queue.sql: what all SQL databases have in common.

Each database has a subclass with its `dialect` (the words in braces in queue.sql) and the primitives at the end of
`penstock.stores.sql.session`, which run statements, open transactions and hand out numbers.
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

    def __init__(self) -> None:
        super().__init__()
        self.roster = SqlRoster(self)

    def readers(self, queue: str) -> Readers:
        return SqlReaders(self, queue)

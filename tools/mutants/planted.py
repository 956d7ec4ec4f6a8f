"""What a planted fault is, and the files in which several kinds of faults are planted."""

from __future__ import annotations

from dataclasses import dataclass

RUNS = "stores/sqlite/runs.py"
SQLITE_FILE = "stores/sqlite/file.py"
TRANSACTIONS = "stores/dbserver/transactions.py"
POSTGRES = "stores/postgresql/driver.py"
POSTGRES_SQL = "stores/postgresql/postgresql.sql"
SQL_QUEUE = "stores/sql/queue.py"
SQL_EXTENDING = "stores/sql/extending.py"
SQL_MOVING = "stores/sql/moving.py"
SQLITE_DATABASE = "stores/sqlite/database.py"
CLAIM_ROWS = "stores/sql/claims.py"
COMMON_SQL = "stores/sql/common.sql"
BATCHES = "stores/files/transactions.py"
FILE_TIMES = "file_times.py"
SPOOL = "stores/files/spool.py"
FILE_QUEUE = "stores/files/queue.py"
PUBLISHING = "publishing/publishing.py"
MESSAGE = "message.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    tests: str
    changes: tuple[tuple[str, str, str], ...]
    files: tuple[str, ...] = ("tests/test_sqlite.py", "tests/test_sqlite_file.py")

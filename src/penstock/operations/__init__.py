"""Looking after a store: backup and restore, check and vacuum, export and import of queues.

Everything here works on a whole store, given by its URL, while senders and consumers use it. docs/operations.md is the manual.
"""

from penstock.operations.backing_up import backup
from penstock.operations.backups import Backup, read_backup
from penstock.operations.checking import check
from penstock.operations.lines import Imported, export_lines, import_lines
from penstock.operations.problems import Problem
from penstock.operations.restoring import restore
from penstock.operations.vacuuming import Vacuumed, vacuum

__all__ = [
    "Backup",
    "Imported",
    "Problem",
    "Vacuumed",
    "backup",
    "check",
    "export_lines",
    "import_lines",
    "read_backup",
    "restore",
    "vacuum",
]

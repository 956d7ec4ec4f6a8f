"""Looking after a store: backup and restore, export and import of queues.

Everything here works on a whole store, given by its URL, while senders and consumers use it. docs/operations.md is the manual.
"""

from penstock.operations.backing_up import backup
from penstock.operations.backups import Backup, read_backup
from penstock.operations.lines import Imported, export_lines, import_lines
from penstock.operations.restoring import restore

__all__ = ["Backup", "Imported", "backup", "export_lines", "import_lines", "read_backup", "restore"]

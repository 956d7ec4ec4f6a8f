"""Faults in backup, restore and the other operations on whole stores."""

from __future__ import annotations

from planted import Mutant

BACKING_UP = "operations/backing_up.py"
RESTORING = "operations/restoring.py"
BACKUPS = "operations/backups.py"
FOLDERS = "operations/folders.py"
CHECKING = "operations/checking.py"
CHECKING_ROWS = "operations/checking_rows.py"
CHECKING_FILES = "operations/checking_files.py"
LINES = "operations/lines.py"
DOCUMENTS = "documents.py"
WHOLE = "stores/sql/whole.py"
WHOLE_SQL = "stores/sql/whole.sql"


def backup(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_backup.py",))


def imported(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_lines.py",))


def checked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_check.py",))


FAULTS = [
    checked(
        "a check passes over damaged messages",
        "wrong_with_rows and sqlite",
        (CHECKING, "        elif not message.intact:\n", "        elif False:\n"),
    ),
    checked(
        "a repair takes a message from its receiver",
        "stays_there",
        (CHECKING, "if message.state is not State.CONSUMED or message.visible_at <= now", ""),
    ),
    checked(
        "a repair deletes what is in no queue",
        "wrong_with_rows and sqlite",
        (
            CHECKING_ROWS,
            'database.many("load_queues", [(number, name, settings, -1, 0)])',
            "database.script(f'DELETE FROM penstock_message WHERE queue = {number}')",
        ),
    ),
    checked(
        "marks without messages are not found",
        "wrong_with_rows and sqlite",
        (CHECKING_ROWS, '("marks", "marks of messages that are gone"), ', ""),
    ),
    checked(
        "a repair removes the marks of messages that are there",
        "store_in_use and sqlite",
        (
            WHOLE_SQL,
            "SELECT COUNT(*) FROM penstock_mark WHERE expires_at = :forever AND NOT EXISTS",
            "SELECT COUNT(*) FROM penstock_mark WHERE expires_at = :forever AND EXISTS",
        ),
    ),
    checked(
        "a repair shows what named claims have",
        "store_in_use and sqlite",
        (
            WHOLE_SQL,
            " AND (number, delivery) NOT IN (SELECT message, delivery FROM penstock_held)\nORDER BY",
            "\nORDER BY",
        ),
    ),
    checked(
        "a group without a first stays blocked",
        "wrong_with_rows and sqlite",
        (CHECKING_ROWS, "                all_groups_have_a_first(database, found)\n", "                pass\n"),
    ),
    checked(
        "messages that are blocked without a group stay so",
        "wrong_with_rows and sqlite",
        (CHECKING_ROWS, 'database.run("show_blocked", {"now": now})', "pass"),
    ),
    checked(
        "SQLite is not asked whether its file is whole",
        "page_of_sqlite or index_of_sqlite",
        ("stores/sqlite/copies.py", 'return [] if told == ["ok"] else told', "return []"),
    ),
    checked(
        "a damaged file of SQLite is repaired",
        "page_of_sqlite",
        (
            CHECKING_ROWS,
            '        yield Problem(None, f"SQLite finds the file damaged: {few(others)}", RESTORE)\n        return\n',
            "        pass\n",
        ),
    ),
    checked("an index is not built again", "index_of_sqlite", (CHECKING_ROWS, 'database_of(broker).script("REINDEX")', "pass")),
    checked(
        "files that were set aside are forgotten",
        "somebody_has_looked",
        (CHECKING_FILES, "        if queue.sidecar.damaged():\n", "        if False:\n"),
    ),
    checked(
        "files that are hidden for ever stay so",
        "hidden_for_ever",
        (CHECKING_FILES, "            queue.holding.free_unclaimed(claimed, now)\n", "            pass\n"),
    ),
    checked(
        "a check takes claimed files for forgotten ones",
        "store_in_use and vsqs",
        (CHECKING_FILES, "(id, received.delivery) not in claimed)", "True)"),
    ),
    checked(
        "what is left of messages that are gone stays",
        "left_of_messages",
        (CHECKING_FILES, "        while queue.sweep(now).more:\n", "        while False:\n"),
    ),
    checked("what memcached has lost is not told", "thrown_away", (CHECKING, "    if counts.lost:\n", "    if False:\n")),
    checked(
        "a check ends well though something is wrong", "exit_code", ("cli/upkeep.py", "return 1 if left else 0", "return 0")
    ),
    checked(
        "a vacuum of SQLite takes its file at once",
        "backlog_took",
        ("operations/vacuuming.py", "database.give_back(SLICE)", "database.give_back(1000000)"),
    ),
    checked(
        "a vacuum gives nothing back",
        "backlog_took",
        (
            "stores/sqlite/database.py",
            'f"PRAGMA incremental_vacuum({pages})"',
            '"PRAGMA page_count"',
        ),
    ),
    checked(
        "a vacuum leaves old history",
        "old_history and vsqs",
        ("operations/vacuuming.py", "            while retention.slice():\n", "            while False:\n"),
    ),
    checked(
        "a vacuum leaves what was removed from a spool",
        "old_history and spool",
        ("operations/vacuuming.py", "        format.reap()\n", "        pass\n"),
    ),
    Mutant(
        "only what was received can be set aside",
        "set_aside_before",
        (("stores/files/holding.py", "if aside and before is None and hidden is not None:", "if False:"),),
        ("tests/test_vsqs.py",),
    ),
    imported(
        "an import that is made again doubles",
        "made_again",
        (LINES, "queue.send_once(drafts, token, remember=remember)", "queue.send_many(drafts)"),
    ),
    imported(
        "batches of an import are taken for each other",
        "another_token",
        (LINES, "[given, place, list(map(len, lines))]", "[given, list(map(len, lines))]"),
    ),
    imported("an import is remembered for ten minutes only", "another_token", (LINES, "token, remember=remember)", "token)")),
    imported(
        "half a batch with a bad line is sent",
        "nothing_of_its_batch",
        (LINES, "drafts = [_read(line, number, now)", "drafts = [queue.send_many([_read(line, number, now)]) and b''"),
    ),
    imported(
        "lines are counted from the batch",
        "named_by_its_number",
        (LINES, "enumerate(batch, before + 1)", "enumerate(batch, 1)"),
    ),
    imported(
        "a name that nobody knows is passed over", "named_by_its_number", (DOCUMENTS, "    if unknown:\n", "    if False:\n")
    ),
    imported(
        "an imported message is visible at once",
        "was_exported and memory",
        (DOCUMENTS, 'given["delay"] = left / SECOND', "pass"),
    ),
    imported(
        "an imported message has no deadline",
        "was_exported and memory",
        (DOCUMENTS, 'given["deadline"] = to_datetime(_instant(document, "deadline_at"))', "pass"),
    ),
    imported(
        "a message in hand stays hidden when it is imported",
        "every_state and memory",
        (DOCUMENTS, ' and document.get("state", "queued") == "queued"', ""),
    ),
    imported(
        "a line may be of any length", "fills_the_memory", (LINES, "stream.readline(MAX_LINE + 1)", "stream.readline(1 << 30)")
    ),
    imported(
        "a long queue is read at once",
        "fills_the_memory",
        (LINES, "queue.scan(start, limit=PAGE)", "queue.scan(start, limit=100000)"),
    ),
    imported(
        "a damaged message is exported",
        "damaged_messages",
        (LINES, "if message.intact and message.state is not State.DAMAGED:", "if True:"),
    ),
    imported(
        "half a file has the name of a whole one",
        "has_its_name",
        ("cli/lines.py", 'draft = f"{path}~"', "draft = path"),
        ("cli/lines.py", "        Path(draft).replace(path)\n", ""),
        ("cli/lines.py", "        with suppress(OSError):\n            Path(draft).unlink()\n", "        pass\n"),
    ),
    Mutant(
        "a delayed message of VSQS seems to be in flight",
        "microsecond",
        (("stores/files/folder.py", "self.layout.writable(extra.visible_at) == hidden", "extra.visible_at == hidden"),),
        ("tests/test_vsqs.py",),
    ),
    Mutant(
        "a token is remembered for ten minutes, whatever its sender asks",
        "remembered",
        (("policy.py", "    return now + micros(remember)", "    return now + micros(TOKEN_WINDOW)"),),
        ("tests/test_memory.py",),
    ),
    backup(
        "a backup of a busy folder takes no locks",
        "busy and vsqs",
        (FOLDERS, "        _lock_all(store, locks)\n", ""),
    ),
    backup(
        "a backup of a busy database is no snapshot",
        "busy and mariadb",
        (BACKING_UP, "with database.reading(), copy.batch():", "with copy.batch():"),
    ),
    backup(
        "a record that was changed in place is in a backup as it was",
        "changed_while",
        (FOLDERS, "return self[1:]", "return self.inode, self.size, 0, self.id"),
    ),
    backup(
        "segments that are staged are not backed up", "staged_segments", (BACKING_UP, "known = set(target.staged())", "return")
    ),
    backup(
        "a receipt from before a restore settles a message",
        "no_receipt and sqlite",
        (WHOLE, '"void_held", "void_messages", "void_runs"', '"void_runs"'),
    ),
    backup(
        "a receipt of a run from before a restore settles a message",
        "no_receipt and sqlite",
        (WHOLE, '"void_messages", "void_runs"', '"void_messages"'),
    ),
    backup(
        "a restore tears messages from their named claims",
        "what_the_store_had and sqlite",
        (WHOLE, '"void_held", "void_messages"', '"void_messages"'),
    ),
    backup(
        "what was in flight stays hidden after a restore",
        "no_receipt and sqlite",
        (WHOLE, '("void_visible", ', "("),
    ),
    backup(
        "a receipt from before a restore settles a file",
        "no_receipt and vsqs",
        (FOLDERS, "delivery=next_delivery(received.delivery, self._now)", "delivery=received.delivery"),
        (FOLDERS, "released=1, hidden_until=0", "hidden_until=0"),
    ),
    backup(
        "a restored spool does not know its own timers",
        "what_the_store_had and spool",
        (FOLDERS, "seal=layout.seal(id, hidden) if hidden else 0", "seal=received.seal"),
    ),
    backup(
        "numbers are given out again after a restore",
        "second_time and sqlite",
        (WHOLE, "JUMP * (1 + (now - taken_at) // HOUR)", "0"),
    ),
    backup(
        "numbers are given out again after a restore over a store",
        "second_time and sqlite",
        (WHOLE, "max(number, last_number)", "number"),
    ),
    backup(
        "numbers of VSQS are given out again after a restore",
        "second_time and vsqs",
        (FOLDERS, "LEFT_OUT = 10_000", "LEFT_OUT = 0"),
    ),
    backup(
        "only so many numbers are left out, however old the backup is",
        "each_hour",
        (WHOLE, "(1 + (now - taken_at) // HOUR)", "1"),
    ),
    backup(
        "rows that PostgreSQL numbers itself collide after a restore",
        "into_any_other",
        (RESTORING, 'place.kind == "postgresql"', 'place.kind == "none"'),
    ),
    backup(
        "claims that only SQLite can keep come to a server",
        "into_any_other",
        (RESTORING, "                without_runs(copy)\n", "                pass\n"),
    ),
    backup("a clock runs behind its backup", "run_behind", (RESTORING, "    clock_files.reach(backup.taken_at)\n", "")),
    backup(
        "a restore replaces queues unasked", "replaced_only_if", (RESTORING, "    if there and not over:\n", "    if False:\n")
    ),
    backup("a damaged file is restored", "damaged_backup", (BACKUPS, "if digest.hexdigest() != content.sha256:", "if False:")),
    backup(
        "a damaged list of files is believed",
        "damaged_backup",
        (BACKUPS, 'hashlib.file_digest(listing, "sha256").hexdigest() != backup.contents', "False"),
    ),
    backup(
        "a damaged record of a backup is believed",
        "damaged_backup",
        (BACKUPS, 'record.pop("checksum") != _checksum(record)', "not record.pop('checksum')"),
    ),
    backup("a backup leads to files outside of it", "leads_out", (BACKUPS, 'or ".." in path.parts', "")),
    backup(
        "a log that is left over becomes part of a restored file",
        "left_over",
        (RESTORING, "if Path(left).exists()", "if False"),
    ),
    backup(
        "a backup counts as whole before it is",
        "backup_killed",
        (
            BACKING_UP,
            "    place.check_exists()\n    folder = begin(target)\n",
            "    place.check_exists()\n    folder = begin(target)\n    (folder / 'backup.json').write_text('{}')\n",
        ),
    ),
    backup("what a failed backup has made stays", "full_disk and sqlite", (BACKING_UP, "        remove_folder(folder)\n", "")),
    backup(
        "what a failed restore has made stays",
        "full_disk and sqlite",
        (RESTORING, "        draft.unlink(missing_ok=True)\n\n\ndef _last", "        pass\n\n\ndef _last"),
    ),
    backup(
        "a restore writes into the place itself",
        "restore_killed and sqlite-False",
        (RESTORING, 'Path(f"{place.path}.restoring~")', "place.path"),
        (RESTORING, "            rename_new(str(draft), str(place.path))\n", ""),
        (RESTORING, "        draft.unlink(missing_ok=True)\n\n\ndef _last", "        pass\n\n\ndef _last"),
    ),
    backup(
        "a restore into a server is no transaction",
        "in_its_transaction",
        (
            RESTORING,
            "                empty(database)\n",
            "                empty(database)\n                database.script('COMMIT')\n",
        ),
    ),
    backup(
        "a backup is for everybody to read",
        "owner_alone",
        (BACKUPS, "folder.mkdir(mode=0o700, exist_ok=True)", "folder.mkdir(exist_ok=True)"),
    ),
    backup(
        "an empty queue of files is lost by a restore",
        "what_the_store_had and vsqs",
        (FOLDERS, "        (format.queues / name).mkdir(exist_ok=True)  # an empty queue\n", ""),
    ),
]

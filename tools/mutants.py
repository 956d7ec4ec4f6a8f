"""Plant known faults, one at a time, and show that the tests catch each: `make mutants`, or with names, only those.

A mutant is a piece of the source, its replacement, and the tests that should notice. Each runs on a copy of the tree, one per
core at a time. A fault that survives is an error, and so is one whose place is gone.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = "stores/sqlite/runs.py"
SQLITE_FILE, SQLITE_SQL, SQLITE_ALONE = "stores/sqlite/file.py", "stores/sqlite/sqlite.sql", "stores/sqlite/shortcuts.py"
TRANSACTIONS, SERVER_DATABASE = "stores/dbserver/transactions.py", "stores/dbserver/database.py"
POSTGRES, POSTGRES_SQL = "stores/postgresql/driver.py", "stores/postgresql/postgresql.sql"
POSTGRES_ALONE, MYSQL = "stores/postgresql/shortcuts.py", "stores/mysql/driver.py"
SQL_QUEUE, SQL_MOVING, DELETING, ROWS = (
    "stores/sql/queue.py",
    "stores/sql/moving.py",
    "stores/sql/deleting.py",
    "stores/sql/rows.py",
)
SQLITE_DATABASE, COMMON_SQL, SCHEMA = "stores/sqlite/database.py", "stores/sql/common.sql", "stores/sql/schema.sql"
LISTS, CLAIM_FILES = "stores/sql/readers.py", "stores/files/readers.py"
BATCHES, FILED_SENDS, HOLDING = "stores/files/transactions.py", "stores/files/sending.py", "stores/files/holding.py"
FOLDER, FILE_TIMES = "stores/files/folder.py", "file_times.py"
VSQS, SPOOL, SIDECAR, LOCKS = "stores/files/vsqs.py", "stores/files/spool.py", "stores/files/sidecar.py", "stores/locks.py"
MARKS, SWEEPING, RECORDS = "stores/files/marks.py", "stores/files/sweeping.py", "stores/files/records.py"
FILE_QUEUE, FILE_HISTORY = "stores/files/queue.py", "stores/files/history.py"
RESERVE = "stores/reserve.py"
SENDING, PAGES, CONTENTS = "stores/memcached/sending.py", "stores/memcached/pages.py", "stores/memcached/contents.py"
MOVING, MEMCACHED_QUEUE = "stores/memcached/moving.py", "stores/memcached/queue.py"
SLICES = "stores/memcached/sweeping.py"
MEMORY = "stores/memory/tables.py"
PUBLISHING, JOURNAL = "publishing/publishing.py", "stores/files/outbox.py"
MULTIPART, MQS = "server/http/multipart.py", "server/dialects/mqs.py"
LEDGER, STAGED_ROWS = "stores/sql/ledger.py", "stores/dbserver/staging.py"
POLICY, MESSAGE, QUEUE, CONSUMER = "policy.py", "message.py", "queue/queue.py", "workers/consumer.py"
SLOTS = "stores/memcached/formats.py"
COMMIT = 'f"RELEASE verb{depth}" if depth else "COMMIT"'
BEGIN = 'f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE"'


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    tests: str
    changes: tuple[tuple[str, str, str], ...]
    files: tuple[str, ...] = ("tests/test_sqlite.py", "tests/test_sqlite_file.py")


def mutant(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes)


def filed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the file stores."""
    files = ("vsqs", "spool", "files", "interop")
    return Mutant(name, tests, changes, tuple(f"tests/test_{file}.py" for file in files))


def ruled(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in what SQL computes and the rules say."""
    return Mutant(name, "rules", changes, ("tests/test_sql_rules.py",))


def locked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the locks between processes."""
    return Mutant(name, tests, changes, ("tests/test_file_locks.py",))


def named(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in handling file names of other programs."""
    return Mutant(name, tests, changes, ("tests/test_foreign_names.py",))


def passing(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in how messages pass through the spool's new/."""
    return Mutant(name, tests, changes, ("tests/test_spool_new.py",))


def hurt(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in how the file stores handle damage."""
    return Mutant(name, "damaged or settings or anew", changes, ("tests/test_file_damage.py",))


def reserved(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the reserve for a full disk."""
    return Mutant(name, tests, changes, ("tests/test_reserve.py",))


def spark(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_source.py", "tests/spark/test_browse.py"))


def spark_kill(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in Spark's processes: how they start, and what they leave when they die."""
    return Mutant(name, tests, changes, ("tests/spark/test_kills.py", "tests/spark/test_session.py"))


def spark_damage(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_damage.py",))


def cached(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the memcached store."""
    return Mutant(name, tests, changes, ("tests/test_memcached.py", "tests/test_memcached_faults.py"))


def late(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the memcached store that shows when a process is late."""
    return Mutant(name, tests, changes, ("tests/test_memcached_late.py",))


def relayed(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in an interrupted move between queues in memcached."""
    return Mutant(name, "move", changes, ("tests/test_memcached_moves.py",))


def shared(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in shared parts: the stores on database servers, consumers."""
    return Mutant(name, tests, changes, ("tests/test_sqlite.py", "tests/test_server_faults.py", "tests/test_joining.py"))


def handled(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in producers, or in where callbacks run."""
    return Mutant(name, tests, changes, ("tests/test_producers.py", "tests/test_runners.py"))


def planned(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A statement that PostgreSQL may run through the whole table."""
    return Mutant(name, "found_by_their_index", changes, ("tests/test_postgresql.py",))


def served(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the service."""
    files = ("dialects", "serve", "server_wire", "server_client", "server_settings", "server_limits", "server_commits")
    files += ("server_dialects", "server_kills", "client_http", "conversation", "server_leaving", "server_looking")
    files += ("server_memory",)
    return Mutant(name, tests, changes, tuple(f"tests/test_{file}.py" for file in files))


def waited(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in waiting and waking."""
    return Mutant(name, tests, changes, ("tests/test_waiting.py",))


def watched(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the access rights and limits of the service."""
    files = ("server_settings", "server_tokens", "server_quotas", "server_receipts")
    return Mutant(name, tests, changes, tuple(f"tests/test_{file}.py" for file in files))


def private(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """Somebody learns what is not for them."""
    return Mutant(name, tests, changes, ("tests/test_privacy.py",))


def exchanged(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in code specific to PostgreSQL."""
    return Mutant(name, tests, changes, ("tests/test_postgresql.py", "tests/test_joining.py"))


def ordered(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the locks on database servers."""
    return Mutant(name, tests, changes, ("tests/test_postgresql.py", "tests/test_mysql.py", "tests/test_locks.py"))


def clocked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the steady clock."""
    return Mutant(name, tests, changes, ("tests/test_clock.py",))


def refused(where: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in refusing a signal handler inside a batch."""
    return Mutant(f"{where}: a signal handler becomes part of a batch", "handler", changes, ("tests/test_handlers.py",))


def interrupted(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in handling an interrupt between a request to a server and its answer."""
    return Mutant(name, tests, changes, ("tests/test_interrupts.py",))


def benched(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """Faults of the comparison with brokers."""
    return Mutant(name, tests, changes, ("tests/test_bench_brokers.py",))


MUTANTS = [
    mutant(
        "what an older file had deleted comes back",
        "to_be_removed_later",
        ("stores/sqlite/words.py", "DELETE FROM penstock_message WHERE number IN (SELECT number FROM penstock_gone);", ""),
    ),
    mutant(
        "stale receipts delete, many at once",
        "stale_receipt_cannot_delete or many_stale",
        (
            SQLITE_SQL,
            "AND delivery = :delivery AND delivery > 0\n    AND grp",
            "AND COALESCE(:delivery, 0) >= 0 AND delivery > 0\n    AND grp",
        ),
    ),
    interrupted(
        "an interrupted connection is used again",
        "mariadb and unread",
        (
            TRANSACTIONS,
            "            if not session.asking:\n                self._driver.command",
            "            if True:\n                self._driver.command",
        ),
        (
            TRANSACTIONS,
            "        if session.asking:\n            self._pool.drop(session, alone=True)",
            "        if False:\n            pass",
        ),
        (TRANSACTIONS, "or current.session.asking or", "or"),
    ),
    interrupted(
        "what is prepared is forgotten",
        "postgresql and unread",
        (
            TRANSACTIONS,
            "        if session.asking:\n            self._pool.drop(session, alone=True)",
            "        if False:\n            pass",
        ),
        (
            TRANSACTIONS,
            "            if not session.asking:\n                self._driver.command",
            "            if True:\n                self._driver.command",
        ),
        (
            "stores/postgresql/prepared.py",
            "        _answer(connection)\n        known",
            "        connection.wait(execute(connection.pgconn))\n        known",
        ),
        (POSTGRES, " or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)", ""),
    ),
    interrupted(
        "half an answer of memcached's is left",
        "memcached and unread",
        ("stores/memcached/link.py", "            self._client.close()  # the rest", "            pass  # the rest"),
    ),
    interrupted(
        "a connection that nobody has is lent",
        "lent_to_the_next",
        ("stores/dbserver/pool.py", "ref(connection)]", "(lambda: connection)]"),
    ),
    interrupted(
        "a connection that was not made has a place",
        "could_not_be_made",
        ("stores/dbserver/pool.py", "ref(place)]", "(lambda kept=place: kept)]"),
    ),
    interrupted(
        "what could not be undone is given back",
        "second_interrupt",
        (
            TRANSACTIONS,
            "            if done:\n                self.give(session)",
            "            if True:\n                self.give(session)",
        ),
    ),
    shared(
        "a transaction that sees only the past is joined",
        "only_the_past",
        (SERVER_DATABASE, "                self._check_isolation(name, current.session)\n", "                pass\n"),
    ),
    shared(
        "who waits looks only when it is told",
        "woken_by",
        ("stores/mysql/store.py", "LOOK_ANYWAY = 1\n", "LOOK_ANYWAY = 10**9\n"),
    ),
    shared(
        "a caller's connection has our kind of cursor",
        "mariadb and committed",
        (MYSQL, "cursor(Cursor)", "cursor()"),
    ),
    shared(
        "MariaDB joins what is no transaction",
        "mariadb and in_no_transaction",
        (MYSQL, "if connection.get_autocommit() and not", "if False and not"),
    ),
    shared(
        "a connection to another database is joined",
        "to_elsewhere",
        (TRANSACTIONS, "return bool(rows) and ids == Ids(rows[0][0])", "return bool(rows)"),
    ),
    shared(
        "a batch becomes part of another transaction",
        "inside_a_batch and not sqlite",
        (
            TRANSACTIONS,
            "        if self.here.current is not None:\n            raise BadInput",
            "        if False:\n            raise BadInput",
        ),
    ),
    shared(
        "a panic is more answers than there should be",
        "panics",
        (
            "stores/postgresql/prepared.py",
            "    for result in results:\n        if result.status not in DONE:\n            raise error_from_result(result)\n"
            "    if len(results) != 1:\n        connection.close()  # the next",
            "    if len(results) != 1:\n        pass  # the next",
        ),
    ),
    shared(
        "what the server said before it went is believed",
        "panics",
        (POSTGRES, "        if lost:  # whatever", "        if False:  # whatever"),
    ),
    Mutant(
        "a connection that only psycopg knows to be lost is kept",
        "did_not_report",
        ((POSTGRES, " or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)", ""),),
        ("tests/test_postgresql.py",),
    ),
    shared(
        "psycopg's own surprise at a panic is passed on",
        "panics",
        (POSTGRES, "except (AssertionError, ValueError) as error:", "except ZeroDivisionError as error:"),
    ),
    ordered(
        "a message is moved into a group that nobody has locked",
        "enter_a_group or enters_a_group",
        (SQL_MOVING, "            else:\n                database.find(each)\n", ""),
        (SERVER_DATABASE, "not alone and current.seen[name].settings.groups", "False"),
        (SQL_MOVING, "marks = self._moving.death is None and", "marks = False and"),
    ),
    ordered(
        "moves lock the source first",
        "opposite_directions",
        (SQL_MOVING, "for each in sorted({name, target}):", "for each in (name, target):"),
    ),
    ordered(
        "a receive locks its own queue first",
        "buries_and_a_redrive",
        (SERVER_DATABASE, "dead_letter_queue < name:", 'dead_letter_queue < "":'),
    ),
    ordered(
        "to look at a queue in a batch locks it",
        "opposite_directions",
        (TRANSACTIONS, "was, current.reading = current.reading, True", "was = current.reading"),
    ),
    mutant(
        "given back twice",
        "gives_each_message_once",
        (RUNS, " or (len(own) > 1 and now <= max(run.end_at for run in own))", ""),
    ),
    exchanged(
        "who is swept has done nothing",
        "swept",
        (
            POSTGRES_SQL,
            "SELECT CASE (SELECT token FROM noted) WHEN :token THEN NULL ELSE ARRAY(SELECT number FROM gone) END\n",
            "SELECT CASE token WHEN :token THEN NULL ELSE ARRAY(SELECT number FROM gone) END FROM noted\n",
        ),
    ),
    exchanged("a lease that began long ago", "whole_leases", ("queue/receiving.py", "came_at - now > EXCHANGE_LATE", "False")),
    exchanged(
        "an exchange is undone by half",
        "taken_by_nobody",
        (SQL_QUEUE, "None if rows else settings, gone", "settings, gone"),
    ),
    mutant(
        "an undone claim counts in another transaction",
        "counts_in_no_later_batch",
        (SQLITE_DATABASE, "                    self.uncounted.clear()\n", ""),
        (SQLITE_DATABASE, "                self.uncounted = uncounted\n", ""),
    ),
    mutant(
        "who is buried at most once was not received",
        "before_a_burial",
        (SQL_MOVING, '            database.run("claim", (now, now, None, number))\n', ""),
    ),
    cached(
        "settled at once, it is hidden for a minute",
        "random_calls",
        (MEMCACHED_QUEUE, "                message.visible_at = FOREVER\n", "                pass\n"),
    ),
    mutant(
        "a claim is counted twice",
        "in_the_same_batch",
        (SQL_MOVING, "            del database.uncounted[number, receipt.delivery]\n", ""),
    ),
    planned(
        "by any index",
        ("stores/postgresql/words.py", '"ready": "AND queue >= 0"', '"ready": ""'),
        ("stores/postgresql/words.py", " WHERE queue >= 0\n", "\n"),
    ),
    planned("a claim's messages by a join", ("stores/postgresql/words.py", " OFFSET 0)", ")")),
    shared(
        "known by its number",
        "number_of_a_lost",
        (MYSQL, 'Session(connection, f"penstock-{secrets.token_hex(16)}")', "Session(connection, connection.thread_id())"),
        (
            MYSQL,
            "SELECT IS_USED_LOCK('{lost.server_id}')",
            "SELECT MIN(id) FROM information_schema.processlist WHERE id = {lost.server_id}",
        ),
    ),
    mutant(
        "no sync",
        "power_cut",
        (SQLITE_DATABASE, "{'FULL' if durable else 'NORMAL'}", "OFF"),
        (SQLITE_FILE, "= FULL;", "= OFF;"),
    ),
    mutant(
        "NORMAL instead of FULL",
        "power_cut",
        (SQLITE_DATABASE, "'FULL' if durable", "'NORMAL' if durable"),
        (SQLITE_FILE, "= FULL;", "= NORMAL;"),
    ),
    mutant(
        "answer before commit",
        "kill_9",
        (SQLITE_DATABASE, 'f"RELEASE verb{depth}" if depth else "COMMIT"', 'f"RELEASE verb{depth}" if depth else "SELECT 1"'),
        (
            SQLITE_DATABASE,
            'self._execute(connection, f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE")',
            'None if depth or connection.get_autocommit() else connection.execute("COMMIT")\n'
            f"                self._execute(connection, {BEGIN})",
        ),
    ),
    mutant(
        "select, then update, with nothing between to stop others",
        "processes_get or eight_threads",
        (SQLITE_DATABASE, 'f"RELEASE verb{depth}" if depth else "COMMIT"', '"SELECT 1"'),
        (SQLITE_DATABASE, 'f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE"', '"SELECT 1"'),
    ),
    mutant(
        "a stale receipt deletes",
        "stale_receipt_cannot_delete",
        (SQLITE_SQL, "delivery = COALESCE(:delivery, delivery)\nRETURNING", "COALESCE(:delivery, 0) >= 0\nRETURNING"),
    ),
    mutant(
        "a stale receipt deletes, alone",
        "stale_receipt_cannot_delete",
        (
            SQLITE_SQL,
            ":number AND delivery = :delivery AND delivery > 0",
            ":number AND COALESCE(:delivery, 0) >= 0 AND delivery > 0",
        ),
    ),
    mutant(
        "an old number is used again",
        "never_used_again",
        (SQLITE_ALONE, "database.spare = (first + done, last)", "database.spare = (first, last)"),
    ),
    mutant(
        "changed settings are not noticed",
        "changed_by_another",
        (SQLITE_SQL, "AND settings = :settings", "AND :settings <> ''"),
    ),
    mutant(
        "a stale receipt extends",
        "stale_receipt_cannot_extend",
        (SQL_QUEUE, "number, found.number, receipt.delivery))", "number, found.number, None))"),
    ),
    mutant(
        "a stale receipt releases",
        "stale_receipt_cannot_release",
        (
            SQL_QUEUE,
            "number, found.number, receipt.delivery))",
            "number, found.number, None if state is State.QUEUED else receipt.delivery))",
        ),
    ),
    mutant(
        "extend does nothing",
        "an_extension_hides",
        (COMMON_SQL, "SET visible_at = :until, state = :state", "SET state = :state + 0 * :until"),
    ),
    mutant(
        "the receive count is lost",
        "visibility_ends or too_often",
        (COMMON_SQL, "receives = receives + 1", "receives = receives"),
    ),
    mutant("redrive one too early", "too_often", ("policy.py", "message.receives > settings", "message.receives >= settings")),
    mutant(
        "redrive one too late", "too_often", ("policy.py", "message.receives > settings", "message.receives - 1 > settings")
    ),
    mutant(
        "claim and burial in two transactions",
        "killed_at",
        ("queue/receiving.py", "with queue.store.batch(durable=chosen is Mode.AT_MOST_ONCE):", "if True:"),
    ),
    mutant(
        "mark and message in two transactions",
        "killed_at",
        (SQL_QUEUE, "        with database.joined():\n            alone =", "        if True:\n            alone ="),
    ),
    mutant(
        "a window forgotten once the first is deleted",
        "within_the_window",
        (COMMON_SQL, " AND number = :number AND expires_at = :forever", " AND number = :number AND :forever > 0"),
    ),
    mutant("duplicates forgotten", "equal_message_in_the_queue", (SQL_QUEUE, "if first is not None:", "if first is False:")),
    mutant(
        "at most once, twice",
        "claim_settles_the_message",
        ("queue/receiving.py", "if chosen is Mode.AT_MOST_ONCE:", "if chosen is None:"),
    ),
    mutant(
        "the delay is ignored",
        "a_delay_hides",
        ("policy.py", "        visible_at,\n        expires_at,\n", "        now,\n        expires_at,\n"),
    ),
    mutant(
        "the deadline is ignored",
        "past_its_deadline",
        ("policy.py", "if overdue(message, mode, now):", "if False:"),
    ),
    mutant(
        "last in, first out",
        "order_sent",
        (
            COMMON_SQL,
            "ORDER BY visible_at, number LIMIT :limit {skip_locked}",
            "ORDER BY visible_at DESC, number LIMIT :limit {skip_locked}",
        ),
    ),
    mutant("the body is changed", "any_bytes", (ROWS, "head, check, body\n", 'head, check, body.replace(b"\\r\\n", b"\\n")\n')),
    mutant(
        "claims are lost at restart",
        "survive_a_restart",
        (SCHEMA, "CREATE TABLE penstock_held", "CREATE TEMP TABLE penstock_held"),
    ),
    mutant("a confirmed claim lapses", "never_lapses", (LISTS, "claim, FOREVER, State.CONSUMED", "claim, 0, State.CONSUMED")),
    mutant("a confirmed claim wakes", "never_lapses", (COMMON_SQL, ":forever, asleep = 0 WHERE", "lapses_at WHERE")),
    mutant(
        "what lapsed sleeps on, for who looks",
        "redriven_once",
        (SQL_QUEUE, "        if now is not None:\n            self._runs.wake(self._name, now)\n", ""),
    ),
    mutant(
        "what lapsed sleeps on, for who receives",
        "lapsed",
        (SQL_QUEUE, "floor = self._runs.floor(found, now)", "floor = found.floor"),
    ),
    mutant(
        "what lapses is not waited for",
        "whoever_looks",
        (
            SQLITE_SQL,
            "SELECT MIN(lapses_at) AS at FROM penstock_claim WHERE queue = penstock_queue.number AND asleep = 1\n",
            "SELECT NULL AS at\n",
        ),
    ),
    mutant(
        "what is sent comes to lie below the floor",
        "clock_is_set_back",
        (RUNS, "        if earliest >= floor_at:\n", "        if True:\n"),
        (SQLITE_SQL, "AND floor_at <= :earliest", "AND floor_at <= :earliest + 2000000000"),
    ),
    mutant(
        "what is released comes to lie below the floor",
        "comes_back_beside",
        (SQL_QUEUE, "self._runs.touch(found, receipts, until)", "self._runs.touch(found, receipts)"),
    ),
    mutant(
        "what is moved comes to lie below the floor",
        "moved_beside",
        (SQL_MOVING, "        self._runs.touch(there, until=self._moving.now)\n", ""),
    ),
    mutant(
        "the whole table is emptied too soon",
        "nothing_else",
        (RUNS, 'delete_each", {}) if everything', 'delete_each", {}) if True'),
    ),
    mutant(
        "a clock set back shows more than it gives",
        "set_back_a_little",
        (SQL_QUEUE, '{"queue": found.number, "now": now}', '{"queue": found.number, "now": max(now, found.floor[0])}'),
        (RUNS, "if now < floor_at:  #", "if False:  #"),
    ),
    mutant(
        "settled unconfirmed, it was hidden for good",
        "settled_unconfirmed",
        (RUNS, "if sleeper == claim:  # the", "if False:  # the"),
    ),
    mutant(
        "whoever lapses ends all runs",
        "no_other_run_s",
        (RUNS, "<= floor_of(runs, over):", "<= FOREVER:"),
    ),
    mutant(
        "what is given back comes to lie below the floor",
        "with_another_claim",
        (RUNS, "now <= floor_of(runs, own) or", "now < 0 or"),
    ),
    mutant(
        "a purge takes what is in a run",
        "retention_does_not_touch",
        (SQL_QUEUE, 'name = "purgeable" if found.floor == START', 'name = "purgeable" if True'),
    ),
    mutant("a clock set back takes of the floor", "set_back_does", (SQLITE_SQL, " AND :floor_at <= :now", "")),
    mutant(
        "what is extended alone sleeps on",
        "its_own_way",
        (RUNS, "            self._rouse(found, numbers)\n", "            pass\n"),
    ),
    mutant("a late sender ends a run", "late_ends_no_run", (RUNS, "LATE = SECOND", "LATE = 0")),
    mutant(
        "a look shows what is settled",
        "looking_ends",
        ("stores/sqlite/words.py", "IN_RUN.format(reader=\"= ''\")", "IN_RUN.format(reader=\"= '?'\")"),
    ),
    mutant("a run in parts is settled whole", "some_at_a_time", (RUNS, "if gone == limit:", "if False:")),
    mutant(
        "what is settled is still counted", "gone_for_all or some_at_a_time", (RUNS, "messages=counts.messages - gone, ", "")
    ),
    mutant("a claim goes on over what was received", "as_long_as", (RUNS, "if not found or fresh < found:", "if not found:")),
    mutant(
        "a run's message is touched",
        "deleted_of_a_claim or by_its_receipt",
        (SQL_QUEUE, "            self._runs.touch(found, receipts)\n            keys =", "            keys ="),
    ),
    mutant(
        "a receive finds a run",
        "after_it or do_not_get",
        (SQL_QUEUE, "if floor == START:\n            return self._database", "if True:\n            return self._database"),
    ),
    mutant(
        "a run is made of what was received",
        "from_before_a_claim",
        (SQLITE_SQL, "CASE WHEN delivery = 0 AND grp", "CASE WHEN grp"),
    ),
    mutant(
        "settled without its history",
        "changed_beside",
        (RUNS, "if run.claim == claim and settlement.keep_until is None:", "if run.claim == claim:"),
    ),
    mutant(
        "a claim takes what is too old",
        "retention",
        (
            SQLITE_SQL,
            "AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE",
            "AND COALESCE(:came_after, 0) > 0 AND COALESCE",
        ),
    ),
    mutant(
        "a claim takes what is past its deadline",
        "without_asking_the_rules",
        (SQLITE_SQL, "COALESCE(deadline_at, :forever) > :now", "COALESCE(deadline_at, :forever) > 0"),
    ),
    mutant(
        "a claim takes what was received too often",
        "too_often",
        (
            SQLITE_SQL,
            "AND receives < :max_receives AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE",
            "AND :max_receives > 0 AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE",
        ),
    ),
    refused(
        "a statement that waits",
        (SQLITE_DATABASE, "elif self.file.pausing is not None:", "elif False:"),
    ),
    Mutant(
        "a send waits until the queue is cleared",
        "while_the_queue_is_being_cleared",
        (("broker.py", "Tender(beside=clock is None)", "Tender(beside=False)"),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "clearing goes on after a broker is closed",
        "closing_finishes",
        (("broker.py", "        self._tender.stop()\n", ""),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "what a reader settled stays until the queue is due",
        "though_the_queue_is_not_due",
        (("queue/named_claims.py", "        self._queue.tend_after_settling()\n", ""),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "old history goes all at once",
        "a_part_at_a_time",
        ((SQL_QUEUE, '{**fields, "now": last[0][0]} if last else fields', "fields"),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "a forked child waits for its parent's thread",
        "thread_of_its_own",
        (
            (
                "queue/retention.py",
                "            self._thread = None\n        self._lock.release()",
                "            pass\n        self._lock.release()",
            ),
            ("queue/retention.py", " or not self._thread.is_alive()", ""),
        ),
        ("tests/test_retention.py",),
    ),
    mutant(
        "a settlement takes what others got",
        "released_from_a_claim",
        (
            SQLITE_SQL,
            "queue = :queue AND penstock_message.delivery = penstock_held.delivery AND grp IS NULL",
            "queue = :queue AND grp IS NULL",
        ),
    ),
    mutant(
        "a settlement leaves marks",
        "leaves_no_marks",
        (SQLITE_SQL, "grp IS NULL AND mark IS NULL AND state <> 4\n", "grp IS NULL AND state <> 4\n"),
    ),
    mutant("a reader set back is not noticed", "set_back", ("queue/named_claims.py", "epoch <= settled:", "epoch < 0:")),
    spark_damage(
        "what is damaged is read", "left_out_and_stays", ("spark/arrow_reader.py", "and not intact(rows):", "and False:")
    ),
    spark_damage(
        "only what is plain is checked",
        "left_out_and_stays",
        ("spark/arrow_reader.py", "return _all_intact(found)", "return True"),
    ),
    spark_damage(
        "what is damaged has been lost",
        "left_out_and_stays",
        ("spark/reading.py", "found += batch.num_rows\n            whole", "found += 0\n            whole"),
    ),
    mutant(
        "what is damaged is settled with its claim",
        "of_a_claim",
        (SQLITE_SQL, " AND mark IS NULL AND state <> 4", " AND mark IS NULL"),
    ),
    mutant("what is damaged is settled one by one", "of_a_claim", (LISTS, "if row[3] != State.DAMAGED", "if row[3] != 99")),
    mutant(
        "what is damaged is not set aside",
        "of_a_claim",
        ("queue/named_claims.py", "                self._receiving.set_aside(message)", "                pass"),
    ),
    mutant("the checksum is not looked at", "damage", (ROWS, "intact = check ==", "intact = True or check ==")),
    mutant(
        "the next of a group is not freed", "no_later_one", (DELETING, "visible_at >= 0 and state", "visible_at < 0 and state")
    ),
    mutant(
        "groups are not kept",
        "no_later_one",
        (SQL_QUEUE, "                        visible_at = -visible_at", "                        pass"),
    ),
    mutant(
        "a failed sync is forgiven",
        "failing_disk",
        (
            SQLITE_DATABASE,
            'self._execute(connection, f"RELEASE verb{depth}" if depth else "COMMIT")',
            f"with suppress(StoreError):\n                    self._execute(connection, {COMMIT})",
        ),
    ),
    Mutant(
        "others' messages are found late",
        "another_process_wakes",
        (("queue/watching.py", "LOOK_EVERY = 0.035", "LOOK_EVERY = 0.5"),),
        ("tests/test_memcached.py",),
    ),
    mutant("waiting burns the core", "next_to_nothing", ("queue/watching.py", "LOOK_EVERY = 0.035", "LOOK_EVERY = 0.0002")),
    waited(
        "an event wakes the polls of every queue",
        "no_queue_but_its_own",
        ("queue/waiting.py", "self._ring(queues or tuple(self._bells))", "self._ring(tuple(self._bells))"),
    ),
    waited(
        "a change by another process wakes every poll",
        "wakes_no_poll",
        ("queue/watching.py", "if due <= now]", "]"),
        ("queue/watching.py", "return self._store.queue(queue).due()", "return 0"),
    ),
    waited(
        "a change by another process before a rest is missed",
        "between_a_look_and_a_rest",
        ("queue/waiting.py", "            self._last_of_all = self._events\n            return", "            return"),
    ),
    waited(
        "an event of a forgotten queue is missed",
        "more_queues_than",
        ("queue/waiting.py", "                self._last_of_all = self._events\n            for", "            for"),
    ),
    waited(
        "a change of a file wakes nobody",
        "by_the_file",
        ("queue/watching.py", "return watch.wait(seconds)", "return self._end.acquire(timeout=seconds)"),
    ),
    waited(
        "a change of a file is looked into only once",
        "by_the_file",
        ("queue/watching.py", "SETTLING = (0.001, 0.001, 0.002, 0.002, 0.003, 0.004, 0.006, 0.01)", "SETTLING = ()"),
    ),
    waited(
        "a process listens to itself",
        "stops_listening",
        ("queue/watching.py", "in_vain + 1 if heard and not found else 0", "0"),
    ),
    waited(
        "a thread that has ended keeps its descriptor",
        "descriptors",
        ("queue/watching.py", "with closing(FileWatch()) as watch:", "for watch in [FileWatch()]:"),
    ),
    waited("a file that is made anew is not watched", "made_anew", ("queue/inotify.py", "if mask & IGNORED:", "if False:")),
    waited("a batch is told before its commit", "told_when", ("queue/waiting.py", "if told is not None:", "if False:")),
    waited("nobody hears the next event", "gives_up", ("server/polls.py", "if queue not in self._bells:\n", "if False:\n")),
    waited("a closed broker leaves receivers waiting", "is_closed", ("broker.py", "        self.waiting.close()\n", "")),
    waited(
        "what another process delayed is forgotten",
        "another_process_delayed",
        ("queue/watching.py", "if visible := self._visible():", "if visible := self._visible() and version == 0:"),
    ),
    mutant(
        "an idle poll takes the write lock",
        "locked_too_long",
        ("queue/receiving.py", "if due is None or due > queue.clock():", "if due is False:"),
    ),
    mutant("space is never returned", "space_is_returned", (SQLITE_DATABASE, "if free < RECLAIM_PAGES or", "if True or")),
    mutant(
        "retention is ignored",
        "outlived_its_retention_is_never",
        ("policy.py", "return message.expires_at <= now or", "return False and"),
    ),
    mutant(
        "a fork keeps the parent's connection",
        "fork",
        (
            SQLITE_DATABASE,
            "        if not self._depth:\n            self.file.rest()\n",
            "        if False:\n            self.file.rest()\n",
        ),
    ),
    mutant(
        "what a tending error undoes is the answer",
        "cannot_be_tended",
        ("queue/retention.py", "except StoreError as error:", "except ZeroDivisionError as error:"),
    ),
    mutant(
        "a redrive revives old receipts",
        "before_a_redrive",
        (COMMON_SQL, "state = 0, receives = 0,", "state = 0, receives = 0, delivery = 0,"),
    ),
    mutant(
        "a read believes an old catalogue",
        "made_again",
        (SQLITE_DATABASE, "self._seen.get(name) if in_batch else None", "self._seen.get(name)"),
        (SQLITE_DATABASE, "if in_batch:\n                self._seen[name] = found", "self._seen[name] = found"),
        (
            SQLITE_DATABASE,
            "                    self._opener = None\n                self._seen.clear()\n",
            "                    self._opener = None\n",
        ),
    ),
    mutant(
        "a batch goes on after SQLite gave it up",
        "rolled_back",
        (
            SQLITE_DATABASE,
            "                if self._depth:\n                    raise StoreError",
            "                if False:\n                    raise StoreError",
        ),
    ),
    mutant(
        "hidden for no time, given twice",
        "once_an_answer",
        ("queue/receiving.py", "more and all(message.visible_at > now for message in delivered)", "more"),
    ),
    mutant(
        "numbers reserved in a lost batch are used",
        "batch_that_was_undone_are_others",
        (SQLITE_DATABASE, "                self.spare = NO_NUMBERS  # perhaps", "                pass  # perhaps"),
    ),
    filed(
        "a number that was moved in is given again",
        "shares_its_number",
        (VSQS, "self._last = max(self._last, self.number(id))", "pass"),
    ),
    Mutant(
        "an interrupted removal closes a descriptor twice",
        "closes_no_descriptor_twice",
        (
            (
                "stores/disk.py",
                "for folder, folders, files in os.walk(",
                "import shutil; shutil.rmtree(path, ignore_errors=True)\n    for folder, folders, files in os.walk(",
            ),
        ),
        ("tests/test_files.py",),
    ),
    filed(
        "what a full disk kept from being claimed is not seen",
        "kept_from_being_claimed",
        (HOLDING, "                folder.note(id, folder.find(id))\n", ""),
    ),
    filed(
        "a message's file is not synced", "power_cut", (FILED_SENDS, "                os.fsync(handle)", "                pass")
    ),
    filed("a folder is not synced", "power_cut", (BATCHES, "                    sync(folder)", "pass".rjust(24))),
    filed("the last number is forgotten", "one_millisecond", (VSQS, "max(self._last + 1, now // 1000", "max(1, now // 1000")),
    filed("every send lists", "lists_nothing", (VSQS, "if not self._ours:", "if True:")),
    filed("a stranger's number is not looked for", "has_taken_is_taken", (VSQS, "if not self._ours:", "if False:")),
    filed(
        "the clock may come up with a number", "waits_for_its_turn", (VSQS, "            if taken:", "            if False:")
    ),
    filed(
        "a stranger's claim is not noticed",
        "stale_once_the_other",
        (HOLDING, "return hidden if hidden in (0,", "return hidden if True or hidden in (0,"),
    ),
    filed(
        "a stranger's fetch has no timer",
        "the_other_holds",
        (SPOOL, "if received is not None and received.seal == status.st_ctime_ns:", "if True:"),
    ),
    filed(
        "a lost race is an error",
        "lose_any_race",
        (HOLDING, "except FileNotFoundError:  # another", "except ZeroDivisionError:  # another"),
    ),
    filed("what has lapsed is not given back", "let_lapse", (FOLDER, "and first[0] <= now:", "and first[0] < 0:")),
    filed(
        "what is half written is delivered",
        "being_written",
        (SPOOL, "        elif is_written(entry.path):", "        elif True:"),
    ),
    filed("orphans stay", "dead_sender", (FILE_TIMES, "return age > ORPHANED", "return False and age > ORPHANED")),
    filed(
        "a drop takes no lock and a create neither",
        "many_creators or while_it_is_dropped",
        (SIDECAR, "        self._lock.take()\n", ""),
    ),
    filed(
        "the record of an extension comes after the rename",
        "killed_after_its_rename",
        (HOLDING, "            folder.write_received(id, received, durable=lasting)\n", ""),
        (
            HOLDING,
            "            if seal := layout.seal(id, until):\n"
            "                folder.write_received(id, received._replace(seal=seal))",
            "            seal = layout.seal(id, until)\n"
            "            folder.write_received(id, received._replace(seal=seal), durable=lasting)",
        ),
    ),
    ruled(
        "PostgreSQL counts deliveries",
        (
            POSTGRES_SQL,
            "receives = receives + 1, delivery = GREATEST(delivery + 1, :now)",
            "receives = receives + 1, delivery = delivery + 1",
        ),
    ),
    ruled(
        "PostgreSQL forgets the first receive",
        (POSTGRES_SQL, "first_received_at = COALESCE(first_received_at, :now), holder", "first_received_at = :now, holder"),
    ),
    ruled(
        "PostgreSQL claims in any order",
        (POSTGRES_SQL, "ORDER BY visible_at, number LIMIT :limit FOR", "ORDER BY number LIMIT :limit FOR"),
    ),
    ruled(
        "a moved row keeps its old deadline",
        (COMMON_SQL, "deadline_at = :deadline_at, mark", "deadline_at = COALESCE(deadline_at, :deadline_at), mark"),
    ),
    locked("a lock is waited for for ever", "frozen", ("patience.py", "if now >= give_up_at:", "if False:")),
    locked(
        "threads add up their timeouts",
        "counts_as_waiting",
        (LOCKS, "timeout=patience.timeout - self.spent", "timeout=patience.timeout"),
    ),
    locked("the wait for other threads is forgotten", "counts_as_waiting", (BATCHES, "spent = waited", "spent = 0.0")),
    locked(
        "a lock is given back by a close alone",
        "has_a_copy",
        (LOCKS, "            flock(handle, LOCK_UN)  # first", "            pass  # first"),
    ),
    locked("a child keeps copies of locks", "left_to_its_child", (LOCKS, "os.register_at_fork(after_in_child=", "print(")),
    locked(
        "a child gives its parent's lock back", "leaves_the_lock", (LOCKS, "handle, lock.handle = lock.handle, -1", "continue")
    ),
    locked(
        "an interrupt leaves a lock behind",
        "interrupt",
        (BATCHES, "        for lock in list(self.locks.open):", "        for lock in []:"),
        (FOLDER, "        if failed:\n            self.sidecar.give()", "        if failed:\n            pass"),
    ),
    locked(
        "one frozen writer keeps the others from being tended",
        "tends",
        (PUBLISHING, "except StoreBusy as error:", "except ZeroDivisionError as error:"),
    ),
    filed(
        "a mark counts for whatever has its number",
        "same_number",
        (MARKS, "return mark is not None and digest(mark) == name", "return True"),
    ),
    filed(
        "a failed send leaves its mark",
        "fails_or_dies",
        (FILED_SENDS, "self._marks.drop_draft(id, fresh[id].mark)", "self._marks.drop_draft(id, None)"),
    ),
    filed(
        "a dead sender's draft goes before its mark",
        "outlive_its_draft",
        (SWEEPING, 'self._marks.drop_draft(id, Extra.unpack(self._sidecar.read_json("head", id)).mark)', "os.unlink(path)"),
    ),
    filed(
        "a mark is not looked at again before its message is published",
        "makes_ours_the_duplicate",
        (
            FILED_SENDS,
            "for id, entry in fresh.items() if entry.mark and (first",
            "for id, entry in {}.items() if entry.mark and (first",
        ),
    ),
    filed(
        "a mark is written after its message is published",
        "sent_again",
        (FILED_SENDS, "                    self._marks.write(rows)\n", ""),
        (
            FILED_SENDS,
            "        self._end_insert(rows)\n        return",
            "        self._marks.write(rows); self._end_insert(rows)\n        return",
        ),
    ),
    filed(
        "a mark counts whether its message was published or not",
        "sent_again",
        (MARKS, "return not self._folder.is_draft(id) or", "return True or"),
    ),
    filed(
        "an extension that fails voids the receipt",
        "extension_that_fails",
        (HOLDING, "                self._keep_receipt(id, ", "                print(id, "),
    ),
    filed(
        "a failed send takes the head of a message that it cannot remove",
        "leaves_no_message_or_a_whole_one",
        (
            FILED_SENDS,
            "                os.unlink(path)\n                self._folder.forget(id)",
            "                self._folder.forget(id); os.unlink(path)",
        ),
    ),
    filed(
        "a failed send leaves what it has published",
        "leaves_no_message_or_a_whole_one",
        (FILED_SENDS, "if id in published and not self._folder.is_draft(id):", "if False:"),
    ),
    mutant(
        "an error of the disk leaks out of open",
        "cannot_be_synced_is_an_error",
        (
            SQLITE_FILE,
            "            except OSError as error:\n                connection.close()",
            "            except ZeroDivisionError as error:\n                connection.close()",
        ),
    ),
    passing(
        "sends do not pass through new/",
        "watches_new",
        (
            SPOOL,
            "        if hidden:\n            self._move(self.draft(id)",
            "        if True:\n            self._move(self.draft(id)",
        ),
    ),
    passing(
        "what is delayed passes through new/",
        "does_not_pass",
        (
            SPOOL,
            "        if hidden:\n            self._move(self.draft(id)",
            "        if False:\n            self._move(self.draft(id)",
        ),
    ),
    passing(
        "a quicker mover is an error",
        "quicker",
        (SPOOL, "if os.path.exists(passing):", "if True:"),
    ),
    passing("a failed send stays in new/", "fails_on_its_way", (SPOOL, ', f"{self._new}/{self._queue}:{id}"]', "]")),
    passing(
        "a send lets every other queue be listed",
        "let_nobody_list",
        (SPOOL, "return queue, 0, delay", "return queue, new, delay"),
    ),
    passing(
        "what comes into new/ is overlooked",
        "comes_into_new",
        (SPOOL, "            if os.listdir(self._new):", "            if False:"),
    ),
    reserved(
        "the reserve is never given up",
        "full_to_the_last_byte or without_a_file or in_an_instant",
        (RESERVE, "os.truncate(self._pieces[0], 0)", "pass"),
        (RESERVE, "os.unlink(piece)", "pass"),
    ),
    reserved("a send uses the reserve", "full_to_the_last_byte", (RESERVE, "self.size() == 0)", "False)")),
    reserved(
        "what was given up is made again at once",
        "taken_by_the_next_send",
        (RESERVE, "if free[0] < 2 * each * len(self._pieces) or", "if"),
    ),
    reserved(
        "the reserve is not made again",
        "made_again",
        (
            RESERVE,
            "        if self.size():\n            return True\n",
            "        return bool(self.size()) if self.size() is not None else self._first()\n\n    def _first(self) -> bool:\n",
        ),
    ),
    reserved(
        "no file is kept back",
        "without_a_file",
        (BATCHES, "RESERVED_FILES, RESERVED_BYTES = 64, 4096", "RESERVED_FILES, RESERVED_BYTES = 1, 262144"),
    ),
    reserved("a receiver gets all or nothing", "lets_it_have", (HOLDING, "if not claimed or not is_full(error):", "if True:")),
    reserved(
        "a small disk's log grows as any other",
        "stays_smaller",
        (SQLITE_FILE, "if (goal := self.reserve.goal()) < RESERVED:", "if (goal := 0):"),
    ),
    reserved("a store without a reserve refuses", "never_had_room", (RESERVE, "self.size() == 0)", "True)")),
    named("ids are hexadecimal", "can_be_any", (SPOOL, "[!-.0-~]{1,200}", "[0-9a-fA-F-]{1,64}")),
    named("ids with one beginning are one", "bear_no_time", (SPOOL, "blake2b(id.encode()", "blake2b(id.encode()[:5]")),
    named(
        "what is no message is not told",
        "counted_and_named",
        ("queue/retention.py", "            if names:\n", "            if False:\n"),
    ),
    named(
        "what is no message is not counted",
        "counted_and_named",
        (FILE_QUEUE, "foreign=self._foreign(),\n", "foreign=[],\n"),
    ),
    named(
        "a second file of one id replaces the first",
        "waits_in_new",
        (SPOOL, ' or os.path.exists(f"{root}/delay/{entry.name}")', ""),
    ),
    named("a fractional expiry is unreadable", "expiry", (VSQS, "if number is None or", "if True or")),
    named("two files of one number become one", "not_made_one", (VSQS, " or files[id] > 1", "")),
    named("a pipe is read", "no_file", (FOLDER, "if not stat.S_ISREG(status.st_mode):", "if False:")),
    named(
        "a foreign id has the first retention",
        "retention_of_now",
        (FOLDER, "if since < number or undated][-1]", "if since < number][-1]"),
    ),
    named("a UUID of version 1 has no time", "version_1", (SPOOL, "_number_of_version_1(id) or ", "")),
    hurt(
        "records are not checked",
        (RECORDS, "def need(fits: bool) -> None:\n    if not fits:", "def need(fits: bool) -> None:\n    if False:"),
    ),
    hurt("a damaged record is an error", (RECORDS, "DAMAGE = (ValueError, TypeError, ", "DAMAGE = (KeyError, TypeError, ")),
    hurt("a damaged head is no damage", (RECORDS, 'DAMAGED_HEAD = {"intact": False}', 'DAMAGED_HEAD = {"intact": True}')),
    hurt("what is damaged is not counted", (FILE_QUEUE, "damaged=aside + self.sidecar.damaged()", "damaged=aside")),
    hurt("what is damaged is not told", ("broker.py", "        store.on_damage = _log_damage\n", "")),
    hurt(
        "what is damaged is removed",
        (
            RECORDS,
            "        os.rename(path, target)\n        if read(target) == content:",
            "        os.unlink(path)\n        if True:",
        ),
    ),
    hurt(
        "a claim that is damaged keeps its messages",
        (SWEEPING, "        if self._sidecar.damaged():", "        if False:"),
    ),
    hurt(
        "settings have no copy", (SIDECAR, '        self.write_json(record, "settings.copy")\n\n    def keep', "\n    def keep")
    ),
    hurt(
        "a damaged message is deleted with its claim",
        (CLAIM_FILES, "if received is None or received.released != ASIDE:", "if True:"),
    ),
    hurt("what was written anew is set aside", (RECORDS, "if read(target) == content:", "if True:")),
    hurt("any last number is believed", (SIDECAR, "if 0 <= last <= most else (0, 0)", "if True else (0, 0)")),
    filed("peers are ignored", "with_peers", (FOLDER, "if not self.layout.peers or first is None:", "if True:")),
    filed(
        "who removes nothing is given it",
        "another_takes_first or another_removes_first",
        ("queue/receiving.py", "zip(delivered, settled, strict=True) if gone]", "zip(delivered, settled, strict=True)]"),
    ),
    filed(
        "at most once looks only once",
        "gave_back",
        (HOLDING, "return 0 if self._sidecar.received(receipt.id) == brief.before else None", "return 0"),
    ),
    filed(
        "what was looked at stays in mind",
        "another_takes_first",
        (FOLDER, "        self.brief.clear()\n", ""),
    ),
    filed(
        "new settings are taken for old ones",
        "looks_the_same",
        (SIDECAR, "None if is_recent(max(seen[1:])) else seen", "seen"),
    ),
    served(
        "answered before the commit",
        "kill_9",
        ("server/commits.py", "done = self._performer.perform(group)\n", "done = 0; __import__('time').sleep(0.01)\n"),
        (
            "server/commits.py",
            "self._loop.call_soon_threadsafe(self._answer, group, not more, done, time.perf_counter() - started)",
            "[setattr(o, 'answer', Added([__import__('penstock').message.Sent('00000000-0000-8000-8000-000000000001')], 1)) "
            "for o in group if o.key]; "
            "self._loop.call_soon_threadsafe(self._answer, group, not more, 0, 0); __import__('time').sleep(0.01); "
            "self._performer.perform(group)",
        ),
    ),
    served(
        "a refused neighbour fails the commit",
        "refused_neighbour",
        (
            "server/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            elif",
            "            if True:\n                _fail(group, error)\n            elif",
        ),
        (
            "server/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            else",
            "            if True:\n                _fail(group, error)\n            else",
        ),
    ),
    served(
        "what could not be confirmed is tried again",
        "failing_disk",
        (
            "server/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            elif",
            "            if len(group) == 1 or not isinstance(error, PenstockError):\n"
            "                _fail(group, error)\n            elif",
        ),
    ),
    served(
        "an operation that was withdrawn is executed",
        "withdrawn",
        ("server/performing.py", "            self.begun = not self.withdrawn\n", "            self.begun = True\n"),
    ),
    served(
        "an operation that has begun is withdrawn",
        "withdrawn",
        ("server/performing.py", "            self.withdrawn = not self.begun\n", "            self.withdrawn = True\n"),
    ),
    served(
        "a poll that a failure left without messages is told that the queue is empty",
        "share_a_claim_keep",
        ("server/taking.py", "shares.append(failure if failure is not None and not share else share)", "shares.append(share)"),
    ),
    served(
        "a message that stays visible is shared out once",
        "stay_visible",
        ("server/taking.py", "empty = len(more) < asked and not again", "empty = len(more) < asked"),
    ),
    served(
        "one message is deleted twice",
        "finds_nothing",
        ("server/dialects/base.py", "gone.pop(uuid, False)", "gone.get(uuid, False)"),
    ),
    served(
        "receives that came together wait for the disk",
        "do_not_wait_for_the_disk",
        ("server/performing.py", "if len(groups) > 1 and any(operation.promise for operation in shared):", "if shared:"),
    ),
    served(
        "a commit that is stuck holds up all queues of a database server",
        "holds_up_no_other",
        ("server/commits.py", "PATIENCE = 0.05", "PATIENCE = 500"),
    ),
    served(
        "a commit waits for the event loop",
        "wait_for_the_event_loop",
        (
            "server/commits.py",
            "self._loop.call_soon_threadsafe(self._answer, group, not more, done, time.perf_counter() - started)",
            "over = __import__('threading').Event(); self._loop.call_soon_threadsafe("
            "lambda group=group: (self._answer(group, not more, done, 0), over.set())); over.wait(45)",
        ),
    ),
    served(
        "who comes late gets a commit alone",
        "who_waits_shares",
        ("server/commits.py", "more = self._take(len(group))", "more = self._take(1)"),
    ),
    served(
        "what was not delivered stays hidden",
        "does_not_take",
        ("server/http/connection.py", "                response.undo()\n", "                pass\n"),
    ),
    served(
        "an abandoned poll keeps its place",
        "leaves_its_long_poll",
        ("server/http/connection.py", "            self._job.stop()\n\n", "            pass\n\n"),
    ),
    served("no bound on what waits", "ten_times", ("server/commits.py", "self.pending >= self._max_pending", "False")),
    served(
        "a send is repeated without its token",
        "answer_is_lost",
        ("client/queue.py", "drafts=batch, token=known", "drafts=batch, token=None"),
    ),
    watched("any token will do", "known_token", ("server/auth.py", "hmac.compare_digest(known, presented)", "presented")),
    watched(
        "a page of another site may send requests",
        "takes_no_message",
        ("server/auth.py", 'headers.get("sec-fetch-site", "none") not in OWN_SITE', "False"),
    ),
    watched(
        "the server is known by any name",
        "address_is_known",
        ("server/auth.py", "not self._is_known(host))", "False)"),
    ),
    watched("every name needs no token", "every_page", ("server/auth.py", '<= {"*", "?", "."}', "<= set()")),
    watched(
        "a message is run as a page",
        "never_a_page",
        ("server/app.py", "            response.headers.setdefault(name, value)\n", "            pass\n"),
    ),
    watched("a token never expires", "expired_token", ("server/auth.py", "found.expires <= self._clock()", "False")),
    watched(
        "only the last secret is known",
        "both_are_known",
        ("server/auth.py", "for known in token.grant.keys:", "for known in token.grant.keys[-1:]:"),
    ),
    watched(
        "an emptied file opens the server",
        "after_sighup_the_tokens",
        ("server/auth.py", "if self._tokens and not tokens:", "if False:"),
    ),
    watched("SIGHUP kills", "after_sighup", ("server/running.py", "loop.add_signal_handler(signal.SIGHUP", "(lambda *_: 0)(0")),
    watched("a count shows bodies", "no_body", ("server/dialects/native.py", '"peek": Scope.READ', '"peek": Scope.COUNT')),
    watched(
        "metrics show the queues of others",
        "its_own_queues",
        ("server/dialects/base.py", "for name in names if grant.allows(scope, name)]", "for name in names]"),
    ),
    watched(
        "metrics count what others send",
        "its_own_queues",
        ("server/metrics.py", "if wanted(queue):", "if True:"),
    ),
    watched(
        "a token speaks every dialect",
        "its_dialects",
        ("server/app.py", "dialect.name not in grant.dialects", "not grant.dialects"),
    ),
    watched(
        "any certificate will do",
        "without_a_certificate",
        ("server/running.py", "context.verify_mode = ssl.CERT_REQUIRED", "pass"),
    ),
    watched("a bucket that never empties", "bucket_gives", ("server/quotas.py", "        self._left -= count\n", "")),
    watched(
        "the rate of a token has no limit", "on_the_same_connection", ("server/app.py", "self.quotas.admit(request)", "pass")
    ),
    watched(
        "a token has any number of connections",
        "until_they_close",
        ("server/quotas.py", "self._clients[request.client] = grant.name", "pass"),
    ),
    watched(
        "closed connections count for ever",
        "until_they_close",
        ("server/quotas.py", "if client in self._open}", "if True}"),
    ),
    watched("a queue that is there counts twice", "may_have", ("server/quotas.py", "queue in usage.queues", "False")),
    watched(
        "what is under way does not count",
        "under_way",
        ("server/quotas.py", " - self.pending[what]", ""),
    ),
    watched(
        "what was sent since the last count does not count",
        "may_wait",
        ("server/quotas.py", "usage.since[what] += count", "pass"),
    ),
    watched(
        "a full token stays full",
        "may_wait",
        ("server/quotas.py", "        usage.since.clear()\n", ""),
    ),
    watched(
        "a token at its limit keeps the store busy",
        "count_all_the_time",
        ("server/quotas.py", "now < usage.rests_until or", ""),
    ),
    watched(
        "what was deleted takes room",
        "makes_room_at_once",
        ("server/quotas.py", "self._usage(grant).since.subtract(", "dict("),
    ),
    watched(
        "a claim passes the limit in flight",
        "in_flight",
        ("server/dialects/native.py", 'verb == "claim" and isinstance', "False and isinstance"),
    ),
    served(
        "a token may do everything",
        "scopes_say",
        ("server/http/request_response.py", "if not self.allows(scope, queue):", "if False:"),
    ),
    served(
        "slow requests are waited for",
        "slow_request",
        ("server/http/connection.py", "if spent > settings.read_timeout:", "if False:"),
    ),
    served(
        "a receiver who has left costs a message",
        "client_who_left",
        ("server/http/connection.py", "(self.ended and response.undo is not None)", "False"),
    ),
    served(
        "an idle connection keeps its last body",
        "outlives_its_answer",
        ("server/http/conversation.py", "        del self._request  #", "        pass  #"),
    ),
    served(
        "an error and its operation keep each other",
        "outlives_its_answer",
        ("server/performing.py", "error.__traceback__ = error.__context__ = None", "pass"),
        ("server/performing.py", "                del self  #", "                pass  #"),
    ),
    served(
        "an error and its future keep each other",
        "outlives_its_answer",
        ("server/offload.py", "            del future  #", "            pass  #"),
    ),
    served(
        "a waiting thread keeps its last commit",
        "outlives_its_answer",
        ("server/commits.py", "            group = more  #", "            pass  #"),
        ("server/commits.py", "group = group or self._groups.get()", "group = more or self._groups.get()"),
    ),
    served(
        "freed megabytes stay with the allocator",
        "refused_megabytes",
        ("server/running.py", "    return_large_blocks()\n    asyncio", "    asyncio"),
    ),
    served(
        "no bound on the bodies in memory",
        "fit_into_memory",
        ("server/budget.py", "if self.used + count <= self._most:", "if True:"),
    ),
    served(
        "no bound on time",
        "takes_too_long",
        ("server/http/connection.py", "elif spent > settings.request_timeout:", "elif False:"),
    ),
    watched(
        "a guessed receipt settles",
        "no_other_can_settle",
        ("server/receipts.py", "hmac.compare_digest(given.to_bytes(8), proof.to_bytes(8))", "proof"),
    ),
    watched(
        "a receipt without a proof settles",
        "no_other_can_settle",
        ("server/receipts.py", "    return any(hmac", "    return given == 0 or any(hmac"),
    ),
    watched(
        "an id alone settles",
        "no_other_can_settle",
        (
            "server/receipts.py",
            "not _is_proven(grant, receipt, plain)",
            "plain is not None and not _is_proven(grant, receipt, plain)",
        ),
    ),
    watched(
        "a new receipt is proven with the old secret",
        "change_of_the_secret",
        ("server/receipts.py", "_proof(grant.keys[-1],", "_proof(grant.keys[0],"),
    ),
    watched(
        "the server forgets the receipt without its proof",
        "under_its_own_receipt",
        ("server/receipts.py", "message = copy(message)", "message = message"),
    ),
    private(
        "every token learns where the store is",
        "where_the_store_is",
        ("server/auth.py", "return type(error)(text)", "return error"),
    ),
    private(
        "the log does not say why",
        "where_the_store_is",
        ("server/app.py", "response.cause = str(error)", "response.cause = ''"),
    ),
    private(
        "a hidden name is shown",
        "dead_letter_queue_of_others",
        ("server/dialects/base.py", "Redrive(HIDDEN,", "Redrive(settings.redrive.dead_letter_queue,"),
    ),
    private(
        "a hidden name cannot be kept",
        "dead_letter_queue_of_others",
        ("server/dialects/mqs.py", "(settings.redrive, self.seen(request, settings).redrive)", "(settings.redrive,)"),
    ),
    private("a slash ends the password", "malformed", ("urls.py", 'r".*(?:@|%40)"', 'r"(?<=://)[^/]*@"')),
    private(
        "a parser shows the password",
        "malformed",
        ("urls.py", 'why = error if shown(url) == f"{url!r:.200}" else', "why = error or"),
    ),
    private(
        "an unknown argument shows the password", "command_line", ("cli/output.py", 'USER.sub("", shown(text))', "shown(text)")
    ),
    private("everybody reads the queue file", "owner_alone", ("stores/sqlite/file.py", "make_private(self.path)", "pass")),
    private(
        "everybody reads what is staged", "owner_alone", ("stores/staging.py", "if self._beside is not None:", "if False:")
    ),
    private(
        "everybody reads the clock", "owner_alone", ("stores/sqlite/database.py", "str(self), self.file.path)", "str(self))")
    ),
    private(
        "everybody reads a folder of messages",
        "owner_alone",
        ("stores/files/store.py", "self.root.mkdir(0o700", "self.root.mkdir(0o755"),
    ),
    private(
        "a shared file is no longer shared",
        "file_that_is_shared",
        ("stores/disk.py", "mode = os.stat(beside).st_mode & 0o666", "mode = PRIVATE"),
    ),
    served(
        "a token names any dead letter queue",
        "must_be_one_of",
        ("server/dialects/base.py", "request.grant.check(Scope.ADMIN, checked.dead_letter_queue)", "pass"),
    ),
    served(
        "a token redrives to anywhere",
        "where_its_letters_go",
        ("server/dialects/native.py", "elif not request.grant.allows_all(Scope.ADMIN):", "elif False:"),
    ),
    served(
        "all tokens share their writers",
        "writer_of_another",
        ("server/dialects/native.py", "if grant.allows_all(Scope.SEND):", "if True:"),
    ),
    served("a token given directly is ignored", "given_directly", ("server/settings.py", "if self.token:", "if False:")),
    served(
        "no bound on trailers",
        "too_large",
        ("server/http/chunks.py", "if len(data) - at >= room + 2:", "if False:"),
    ),
    served(
        "a body after HEAD",
        "head_has_no_body",
        ("server/http/connection.py", 'body = b"" if response.bare else response.body', "body = response.body"),
    ),
    served("a message is not checked", "cannot_be_one", ("server/dialects/native.py", "if verb in SETTLING:", "if False:")),
    served(
        "attempts are counted",
        "what_was_tried",
        ("server/dialects/native.py", "count_deleted(request, queue, sum(done))", "count_deleted(request, queue, len(done))"),
        ("queue/sending.py", "len(sent) - sum([one.duplicate for one in sent])", "len(sent)"),
    ),
    served(
        "an answer has any number of bytes",
        "too_much_for_an_answer",
        ("server/dialects/looking.py", "and size < core.settings.max_body:", "and size < 1 << 40:"),
        ("server/dialects/looking.py", "room = min(SLICE, core.settings.max_body - size)", "room = SLICE"),
    ),
    served(
        "a look is one slice", "more_than_it_must", ("server/dialects/looking.py", "FIRST, MOST = 4,", "FIRST, MOST = 10_000,")
    ),
    served(
        "blocked messages are listed again",
        "blocked_messages_come_last",
        (SQL_QUEUE, "blocked = after if after[0] >= BLOCKED else (BLOCKED, 0)", "blocked = (BLOCKED, 0)"),
    ),
    served(
        "a run is listed again",
        "reader_holds_is_seen",
        (RUNS, "[message for message in part if message.place > after]", "part"),
    ),
    served(
        "values are not counted before they are parsed",
        "decoded_values or not_read",
        ("server/dialects/native.py", "weight = weigh(request)", "weight = 0"),
    ),
    served(
        "a queue is looked for after its megabytes were parsed",
        "not_read",
        ("server/dialects/native.py", "if request.queue and len(request.body) > SMALL:", "if False:"),
    ),
    served("a compressed segment is decoded", "would_grow", ("publishing/segments.py", "if compressed:", "if False:")),
    served(
        "a segment has any number of messages",
        "limit_of_messages",
        ("publishing/segments.py", "if count < 0 or total > MAX_ROWS:", "if False:"),
    ),
    served(
        "a column's name that is not UTF-8 is a defect",
        "proper_names",
        ("publishing/segments.py", "    except UnicodeDecodeError:\n        raise", "    except KeyError:\n        raise"),
    ),
    served(
        "sends with a token stand alone",
        "share_a_commit",
        ("server/commits.py", 'self.share(f"send {queue}"', 'self.share(f"send {queue} {token}"'),
    ),
    served(
        "the connection of an interrupted request is used again",
        "interrupted_request",
        (
            "client/connections.py",
            "            connection.close()\n            raise\n",
            "            self._give(connection)\n            raise\n",
        ),
    ),
    served(
        "what follows an answer is the next one",
        "what_follows_an_answer",
        ("client/http.py", "self.keeps and not self._rest", "self.keeps; self._rest = b''"),
    ),
    served(
        "bytes that belong to no value",
        "not_in_our_format",
        ("server/dialects/native_values.py", "        bodies.check()\n", "        pass\n"),
    ),
    served(
        "what is behind a refusal is served",
        "behind_a_refus",
        (
            "server/http/conversation.py",
            "            self.phase = REFUSED\n            self._forget()\n",
            "            self.phase = IDLE\n",
        ),
        ("server/http/conversation.py", "self._last = self.phase is REFUSED or not", "self._last = not"),
    ),
    served(
        "an error ends the clock of all connections",
        "clock_that_fails",
        (
            "server/http/open_connections.py",
            "self._timer = self.loop.call_later(TICK, self._sweep)  # first,",
            "pass  # first,",
        ),
        (
            "server/http/open_connections.py",
            "connection.abort()\n\n    def close_idle",
            "connection.abort()\n        self._timer = self.loop.call_later(TICK, self._sweep)\n\n    def close_idle",
        ),
        ("server/http/open_connections.py", "            except Exception:\n", "            except KeyError:\n"),
    ),
    served(
        "handshakes do not count",
        "tls_handshakes",
        (
            "server/http/listening.py",
            "self._all.add(connection)",
            "self._loop.call_later(0 if self._tls is None else 5, self._all.add, connection)",
        ),
    ),
    served(
        "a first request takes as long as it likes",
        "first_request",
        ("server/http/connection.py", "(settings.idle_timeout if self.known else", "(settings.idle_timeout if True else"),
    ),
    served("silent connections stay", "lock_nobody_out", ("server/http/open_connections.py", "if not silent:", "if True:")),
    served(
        "one address takes all connections",
        "over_the_limit or one_address",
        ("server/http/open_connections.py", "if self._by_address[address] >= most:", "if False:"),
    ),
    served(
        "what was begun is answered with 503",
        "answered_late",
        ("server/http/serving.py", "if not awaited.withdraw():\n                return", "awaited.withdraw()"),
    ),
    served(
        "a hang-up behind a request is not seen",
        "hangs_up_behind",
        ("server/http/connection.py", "not self.ended and self._hung_up()", "False"),
    ),
    served(
        "what the kernel refused is taken for heard",
        "kernel_does_not_take",
        ("server/http/connection.py", "        if self._transport.is_closing():\n", "        if False:\n"),
    ),
    served(
        "slow readers have a total time",
        "slow_reader",
        ("server/http/connection.py", "if left != self._left:", "if self._left < 0:"),
    ),
    served("the log does not say unheard", "in_the_log", ("server/access_log.py", "if request.unheard:", "if False:")),
    served(
        "answers do not count",
        "kernel_has_them",
        ("server/http/connection.py", "self._handler.budget.count(self._counted)", "self._counted = 0"),
    ),
    served(
        "messages are claimed without room for them",
        "does_not_fit",
        ("server/taking.py", "self._budget.take(limit * MAX_BODY)", "self._budget.count(limit * MAX_BODY)"),
    ),
    served(
        "what a request held is given back too soon",
        "lets_go_of_it",
        (
            "server/http/connection.py",
            "        self._lost = True\n",
            "        self._lost = True\n        self._job and self._handler.budget.give(self._job.request.held)\n",
        ),
    ),
    served(
        "any number of chunks", "number_of_chunks", ("server/http/chunks.py", "if self._chunks > MOST_CHUNKS:", "if False:")
    ),
    served(
        "long heads are remembered",
        "nothing_long",
        ("server/http/head.py", "if len(line) <= SHORT_LINE else _read_line(line)", ""),
    ),
    served(
        "how the bytes are cut makes a difference",
        "bytes_are_cut",
        ("server/http/chunks.py", "if len(data) - at >= room + 2:", "if len(data) - at >= room:"),
    ),
    served(
        "codings that are not known are ignored",
        "not_understood",
        ("server/http/head.py", 'if coding.lower() != "chunked":', 'if "chunked" not in coding.lower():'),
    ),
    served(
        "HTTP/1.0 in chunks goes on",
        "http_1_0_in_chunks",
        ("server/http/head.py", '"keep-alive" in words and length != CHUNKED', '"keep-alive" in words'),
    ),
    served(
        "a log that nobody reads fills the memory",
        "nobody_reads",
        ("server/log_writer.py", "if self._waiting + len(piece) > MOST_BYTES:", "if False:"),
    ),
    served(
        "each refused connection gets a line in the log",
        "with_one_line",
        ("server/http/listening.py", "self._loop.time() - self._reported_at >= REPORT_EVERY", "True"),
    ),
    served(
        "connections take the descriptors of the store",
        "descriptors_to_the_store",
        ("server/http/listening.py", "most - used - FILES_OF_THE_STORE", "most"),
    ),
    served("two hosts", "malformed", ("server/http/head.py", 'elif key == "host":', "elif False:")),
    served(
        "a stop that does not wait",
        "told_to_stop",
        ("server/http/open_connections.py", "give_up_at = self.loop.time() + grace", "give_up_at = 0"),
    ),
    Mutant(
        "who counts settles all that has expired",
        "bounded_part",
        (("queue/retention.py", "SLICES = 10", "SLICES = 10**9"),),
        ("tests/test_retention.py",),
    ),
    served(
        "a part's header backtracks",
        "hostile_heads",
        (MULTIPART, "value.translate(None, READABLE)", r'not re.fullmatch(rb"[ \t]*([\t -~]*?)[ \t]*", value)'),
    ),
    served("all parts are read before they are counted", "too_many_parts", (MULTIPART, "len(pieces) > most + 2", "False")),
    served("large bodies stop the event loop", "beside_the_event_loop", ("server/offload.py", "size <= SMALL", "True")),
    served("parts are not in the budget", "beside_the_event_loop", (MQS, "budget.take(size)", "budget.take(0)")),
    served("settings of any size", "limit_of_their_own", (MQS, "request.length > MAX_SETTINGS", "False")),
    served("a body that is not used is kept", "not_used", ("server/dialects/base.py", "return 0\n", "return 10**6\n")),
    served(
        "a message of parts stays plain",
        "taken_for_several",
        (MQS, "(limit == 1 or not messages[0].content", "(True or not messages[0].content"),
    ),
    served(
        "a stored content type writes headers",
        "another_program",
        ("server/dialects/base.py", "given if given.isascii() and given.isprintable() else OCTETS", "given"),
    ),
    served(
        "an id is looked for in every queue",
        "only_where_it_can_be",
        ("stores/sql/catalogue.py", "return [] if number is None else", "return None and"),
    ),
    served(
        "an unknown id opens every queue of a spool",
        "only_where_it_can_be",
        (SPOOL, "return given if any(", "return given if True or any("),
    ),
    served("a token deletes anywhere", "where_it_may_receive", (MQS, "request.grant.allows(Scope.RECEIVE, name) and", "")),
    served("a listing holds a commit", "between_two_queues", ("server/dialects/base.py", "or time.monotonic() >= end", "")),
    served(
        "each listing has a slice of its own", "one_slice", ("server/dialects/base.py", "[] if done and", "[] if False and")
    ),
    served("a listing of everything", "listing_is_bounded", (MQS, 'min(numbers["limit"], MOST_LISTED)', 'numbers["limit"]')),
    served("a deleted queue goes in one commit", "go_in_parts", ("server/dialects/base.py", ".purge(PART)", ".purge(10**9)")),
    served(
        "a queue that vanishes fails the metrics",
        "vanish_meanwhile",
        ("server/dialects/operators.py", "except QueueNotFound:", "except KeyError:"),
    ),
    served(
        "each health check is an operation",
        "share_a_commit",
        ("server/dialects/operators.py", "if self._check is None or self._check.done():", "if True:"),
    ),
    served(
        "each looks for itself",
        "share_one_look",
        ("server/dialects/base.py", "lambda asked: [act()] * len(asked)", "lambda asked: [act() for _ in asked]"),
    ),
    served("a name leads out of the store", "out_of_the_store", (FILE_QUEUE, '"/" in name', "False")),
    served("an id leads out of the spool", "out_of_the_store", (SPOOL, ' or "/" in queue', "")),
    served("every queue is remembered", "others_have_deleted", ("broker.py", "len(self._queues) >= MOST_QUEUES", "False")),
    served("a name is looked up before it is checked", "out_of_the_store", ("broker.py", "policy.is_name(name) and", "")),
    served("every folder is a queue", "cannot_be_queues", ("broker.py", " if policy.is_name(name)]", "]")),
    served(
        "paths are remembered",
        "sent_is_remembered",
        ("server/dialects/base.py", "    def find(self", "    @__import__('functools').lru_cache(1024)\n    def find(self"),
    ),
    shared(
        "a commit whose answer was lost is taken for none",
        "postgresql and cut_at",
        (TRANSACTIONS, "return bool(rows) and rows[0][0] == session.token", "return False"),
    ),
    shared(
        "a lost connection is left to finish",
        "postgresql and cut_at",
        (TRANSACTIONS, "            self._driver.end(side, session)\n", "            pass\n"),
    ),
    shared(
        "an exchange whose answer was lost is taken for none",
        "postgresql and cut_at",
        (POSTGRES_ALONE, "| None = ALL_GONE, NOTHING", "| None = NOTHING, NOTHING"),
    ),
    shared(
        "the machine's clock instead of the database's",
        "postgresql and clock_is_wrong",
        (
            SERVER_DATABASE,
            "        return self._clock\n",
            "        from penstock.clock import MachineClock\n\n        return MachineClock()\n",
        ),
    ),
    shared(
        "a rolled back send is sent",
        "postgresql and rolled_back",
        (TRANSACTIONS, "joined = Transaction(Session(connection, None))", "joined = self._begin('BEGIN')"),
    ),
    Mutant(
        "a claim goes by settings that have changed",
        "TestPostgresql and settings_changed",
        ((POSTGRES_SQL, "AND settings = :settings))\n", "AND :settings <> ''))\n"),),
        ("tests/test_postgresql.py",),
    ),
    shared(
        "the commit of a caller that is joined does not wait for the disk",
        "callers_commit",
        (POSTGRES, "        if in_transaction:\n", "        if False:\n"),
    ),
    shared(
        "the dead are not struck off",
        "birth_order",
        ("workers/heartbeat.py", "self._beats % self._check_every == 0", "self._beats < 0"),
    ),
    cached(
        "a slot is filled without comparing",
        "threads or processes",
        (
            SENDING,
            'if keys.link.cas(keys.key("p", at), page.pack(), token):',
            'keys.link.put({keys.key("p", at): page.pack()})\n            if True:',
        ),
    ),
    cached(
        "a page is written without comparing",
        "threads or processes or one_wins",
        (
            PAGES,
            "return self._link.cas(key, packed, token)\n        except",
            "return self._link.put({key: packed}) is None\n        except",
        ),
    ),
    cached(
        "the mark of a dead putter counts",
        "killed_between",
        (
            CONTENTS,
            "        if page.states[slot] == EMPTY:\n            page = self.finish_send",
            "        if False:\n            page = self.finish_send",
        ),
        (CONTENTS, "return number if page.is_live(slot) else 0", "return number"),
    ),
    cached(
        "a mark is set without comparing",
        "add_a_member",
        (SENDING, "if link.cas(key, value, token, seconds):", "link.put({key: value})\n    if True:"),
    ),
    cached(
        "an evicted message is not counted",
        "evicted_message",
        (PAGES, 'if self._link.incr(self._keys.key("lost"), 1) is None:', "if False:"),
    ),
    cached(
        "an evicted page stays lost",
        "evicted_page",
        (PAGES, "for at, record in records.items():\n                if", "for at, record in ():\n                if"),
    ),
    cached(
        "another's lock is deleted",
        "new_holder",
        ("stores/memcached/link.py", "link.delete_if(key, token.__eq__)", "link.forget([key])"),
    ),
    cached(
        "nothing is spared for a full server",
        "still_be_emptied",
        (
            PAGES,
            "for spare in range(SPARES):\n                self._link.forget",
            "for spare in range(0):\n                self._link.forget",
        ),
    ),
    cached(
        "a move that was cut short is made again",
        "killed_between",
        (MOVING, "if self._target.finish_send(number, records.load_one(number)).state(number % SLOTS) != VOID:", "if False:"),
    ),
    mutant("the ledger is not looked at", "published_once", (PUBLISHING, "batch <= last", "False")),
    mutant("the ledger is not written", "published_once", (PUBLISHING, "            self._note(now)\n", "            pass\n")),
    mutant(
        "the ledger is written beside the batch",
        "interrupted_publication",
        (LEDGER, "            yield batch if batch >= 0 else None", "        yield batch if batch >= 0 else None"),
    ),
    mutant("a segment's count is not compared", "lost_segment", (PUBLISHING, "if found != count:", "if False:")),
    mutant("dead attempts stay staged", "removes_all", (PUBLISHING, "        self._staging.unstage(writer, batch)\n", "")),
    mutant(
        "bodies go in under old settings",
        "change_meanwhile",
        (
            SQL_QUEUE,
            "if found.settings != settings:\n                return None\n            (like,)",
            "if False:\n                return None\n            (like,)",
        ),
    ),
    mutant("bodies have the checksum of none", "what_a_sent_one_is", (SQL_QUEUE, "add_body(body, begun)", "begun")),
    shared("what failed was read ahead and is gone", "cut_at_any_point_a_batch", (STAGED_ROWS, '"ROLLBACK"', '"COMMIT"')),
    shared(
        "who read ahead is missed",
        "read_ahead_by_that_is_lost",
        (STAGED_ROWS, "return lambda: self.fetch(writer, batch, name)", "return lambda: None"),
    ),
    cached(
        "who publishes does not renew its lock",
        "outlasts_its_lock",
        ("stores/memcached/outbox.py", '        self.servers.renew(f"writer:{writer}")\n', "        pass\n"),
    ),
    cached(
        "marks that have served stay",
        "publication_leaves_no_marks",
        ("publishing/publishing.py", "                forget()\n", "                pass\n"),
    ),
    filed(
        "what an interrupted receive has left out of the picture stays out",
        "receive_was_interrupted",
        (FOLDER, "            if self.changes:", "            if False:"),
    ),
    filed(
        "what an interrupted receive at most once has left out of the picture stays out",
        "receive_was_interrupted",
        (HOLDING, "        folder.changes = True\n", ""),
    ),
    filed(
        "what an interrupted receive under the lock has left out of the picture stays out",
        "receive_was_interrupted",
        (FOLDER, "            folder.changes = True\n", ""),
    ),
    filed(
        "a sweep of files goes through everything at once",
        "part_at_a_time or part_of_a_long",
        (SWEEPING, "list(islice(records, SLICE))", "list(records)"),
    ),
    filed(
        "a sweep leaves a folder open",
        "leaves_no_folder_open",
        (SWEEPING, "        self._records = None\n\n    def _begin", "        pass\n\n    def _begin"),
    ),
    filed(
        "a sweep that failed goes on where it was",
        "failed_begins_anew",
        (SWEEPING, "records, self._records = self._records, None  #", "records = self._records  #"),
    ),
    filed(
        "a sweep takes the head of what another process has sent",
        "while_a_sweep_goes_on",
        (SWEEPING, "        self._folder.refresh()  # another", "        pass  # another"),
    ),
    filed(
        "a sweep takes the history of what another process has settled",
        "while_a_sweep_goes_on",
        (FILE_HISTORY, " and self._folder.find(id) is not None", ""),
    ),
    filed("a manifest is ignored", "interrupted_publication", (PUBLISHING, "if found.name == MANIFEST)", "if False)")),
    filed("a journal is ignored", "interrupted_publication", (JOURNAL, 'begun["place"] == place', "False")),
    filed(
        "a begun publication is taken back",
        "fails_half_way",
        (FILED_SENDS, "            if not begun:  #", "            if True:  #"),
    ),
    cached("a release is found late", "behind_a_full_page", (PAGES, "bounds[number % FAN] = 0", "pass")),
    spark("two copies of SQLite meet", "copy_of_sqlite", (SQLITE_FILE, "yield not any(", "yield True or any(")),
    spark(
        "a claim is forgotten when the next one fails",
        "is_not_forgotten",
        ("spark/stream.py", "self._claimed[name] = epoch  #", "pass  #"),
    ),
    spark(
        "a batch is not settled by the next", "set_back_is_noticed", ("spark/stream.py", "        self._settle(start)\n", "")
    ),
    spark(
        "a checkpoint set back is not noticed", "set_back_is_noticed", ("spark/stream.py", "if settled > epoch:", "if False:")
    ),
    spark(
        "a reader given up is not noticed",
        "given_up_is_noticed",
        ("spark/stream.py", "if reader in queue.readers():", "if True:"),
    ),
    spark(
        "available now never ends", "comes_later_stays", ("spark/stream.py", "min(pulse.at, self._target[name])", "pulse.at")
    ),
    spark(
        "a claim that was not logged is forgotten",
        "starts_again",
        ("spark/stream.py", "self._claimed.get(name) == epoch", "False"),
    ),
    spark_kill(
        "a batch is published as another's after a death",
        "die_at_every_step and sqlite",
        ("spark/sink.py", 'writer = context.getLocalProperty("sql.streaming.queryId")', "writer = str(uuid.uuid4())"),
    ),
    spark_kill(
        "a worker imports Spark before it connects",
        "connects_before",
        ("spark/worker.py", "    connected = connect(", '    __import__("pyspark")\n    connected = connect('),
    ),
    spark("filters let null pass", "never_comes", ("spark/filters.py", " AND {INSTANTS[column]} < {END}", "")),
    shared(
        "the token is told although nothing was sent",
        "cut_at_any_point_a_send and postgresql",
        (POSTGRES_SQL, " AND EXISTS (SELECT number FROM wanted) RETURNING number", " RETURNING number"),
    ),
    served(
        "what the store failed at is sent again",
        "not_sent_again",
        (
            "server/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            else:",
            "            if len(group) == 1 or not isinstance(error, PenstockError):\n"
            "                _fail(group, error)\n            else:",
        ),
    ),
    served(
        "what a long answer has taken is thrown away",
        "although_the_next_part_fails",
        ("server/taking.py", "if not share and not any(shares):\n                        raise", "raise"),
    ),
    mutant(
        "what a receive has taken is thrown away",
        "next_round_fails",
        ("queue/receiving.py", "if not kept:\n                    raise", "raise"),
    ),
    mutant(
        "letters without a queue use up a redrive's limit",
        "limited_redrive",
        ("queue/dead_letters.py", "gone[target] += 1\n", "gone[target] += 1\n                most -= 1\n"),
    ),
    mutant(
        "a claim goes through what lies below the floor",
        "sought_and_not_come_to",
        (SQLITE_SQL, "number > :floor_number\nUNION", "+number > :floor_number\nUNION"),
    ),
    handled(
        "what was settled is not run",
        "told_to_stop",
        ("workers/consumer.py", "if self._mode is Mode.AT_LEAST_ONCE:  #", "if True:  #"),
    ),
    handled("a coroutine is dropped", "returns_an_awaitable", ("workers/executors.py", "inspect.isawaitable(result)", "False")),
    handled(
        "the call of an object is not looked at", "whose_call", ("workers/executors.py", "(type(handler).__call__)", "(type)")
    ),
    handled(
        "an exit ends the loop",
        "coroutine_that_exits",
        ("workers/executors.py", "suppress(SystemExit, KeyboardInterrupt)", "suppress()"),
    ),
    handled(
        "who cancels itself is given back",
        "cancels_itself",
        ("workers/executors.py", "raise Failure(reads(error)) from error", "raise"),
    ),
    handled("exceptions are sent themselves", "cannot_be_sent", ("workers/executors.py", "return reads(error)", "raise")),
    handled(
        "what is returned is sent",
        "does_not_matter",
        ("workers/executors.py", "submit(call_apart, self._handler", "submit(self._handler"),
    ),
    handled(
        "a process that dies takes the others along",
        "its_own_message",
        ("workers/executors.py", "Executor] = {}", "Executor] = dict.fromkeys(range(workers), make())"),
        ("workers/executors.py", "ProcessPoolExecutor(1,", "ProcessPoolExecutor(workers,"),
    ),
    handled(
        "a loop is left behind",
        "no_thread_behind",
        ("workers/consumer.py", "            runner.close()\n", "            pass\n"),
    ),
    handled(
        "a queue that is gone ends the thread",
        "is_back",
        ("workers/producer.py", "except PenstockError as", "except OSError as"),
    ),
    relayed(
        "a late mover takes along what another has moved",
        (MOVING, "if not self._give_up(head, self._record):", "if records.discard(record):"),
    ),
    handled("a dead thread is kept", "started_again", ("workers/producer.py", " or not self._thread.is_alive()", "")),
    handled("all is pushed at once", "than_a_batch_holds", ("workers/producer.py", "[: policy.MAX_BATCH]", "[:]")),
    handled(
        "a batch that was pushed is kept",
        "than_a_batch_holds",
        ("workers/producer.py", "(token, batch), rest", "(token, batch), batch + rest"),
    ),
    shared(
        "finished messages wait for their whole batch",
        "settled_while_the_next_one_runs",
        ("workers/consumer.py", "                self._settler.start()\n", "                pass\n"),
    ),
    shared(
        "finished messages wait although their deadline is near",
        "settled_at_once",
        ("workers/consumer.py", "- self._clock() < NEAR:", "- self._clock() < 0:"),
    ),
    shared(
        "a handler starts after its deadline, at most once",
        "at_most_once_what_is_past",
        ("policy.py", 'return "deadline" if overdue(message, mode, now) else None', "return None"),
    ),
    shared(
        "a handler starts after its lease",
        "past_its_lease or left_to_others",
        ("policy.py", 'return "lease" if message.visible_at <= now else None', "return None"),
    ),
    handled(
        "a thread starts a handler too late",
        "waited_for_its_turn and threads",
        (
            "workers/executors.py",
            "    def _run(self, message: Message) -> None:\n        self._check(message)\n",
            "    def _run(self, message: Message) -> None:\n",
        ),
    ),
    handled(
        "a process starts a handler too late",
        "waited_for_its_turn and processes",
        (
            "workers/executors.py",
            "        self._check(message)\n        return self._processes",
            "        return self._processes",
        ),
    ),
    handled(
        "a coroutine starts a handler too late",
        "waited_for_its_turn and coroutines",
        (
            "workers/executors.py",
            "            self._check(message)\n            try:\n                await",
            "            try:\n                await",
        ),
    ),
    shared(
        "who was struck off takes more",
        "struck_off_registers_again",
        ("workers/consumer.py", "            self._heart.confirm()\n", ""),
    ),
    shared(
        "leases are renewed one by one",
        "renewed_by_one_call",
        (
            "workers/heartbeat.py",
            "self._queue.extend_many([message for message, _ in due], [(until - now) / SECOND for _, until in due])",
            "[self._queue.extend(message, (until - now) / SECOND) for message, until in due]",
        ),
    ),
    shared(
        "leases are renewed past the deadline",
        "renewed_by_one_call",
        ("policy.py", "return min(until, deadline) if deadline > now else None", "return until"),
    ),
    handled(
        "a foreign error ends the heartbeats",
        "no_error_ends",
        ("workers/heartbeat.py", "except BaseException:", "except OSError:"),
    ),
    served(
        "a remote consumer goes by its own clock",
        "by_the_servers_clock",
        ("client/broker.py", 'int(self._call("describe")["at"])', "system_clock()"),
    ),
    shared(
        "at most once, a failed callback was processed",
        "history_tells_how",
        ("workers/consumer.py", "self._finish([message], reason)", "self._finish([message])"),
    ),
    shared(
        "at most once, what is unfinished was processed",
        "unfinished_has_failed or history_tells_how",
        ("queue/receiving.py", "state = State.PROCESSED if reason is None else State.FAILED", "state = State.PROCESSED"),
    ),
    handled(
        "at most once, a process that died is not counted",
        "down_has_failed",
        ("workers/consumer.py", 'self._fail(message, "took its process down")', "pass"),
    ),
    shared(
        "any receipt tells how a message ended (SQL)",
        "unfinished_has_failed",
        (
            COMMON_SQL,
            "AND queue = :queue AND delivery = COALESCE(:delivery, delivery)\n\n-- name: move",
            "AND queue = :queue AND 0 <= COALESCE(:delivery, 0)\n\n-- name: move",
        ),
    ),
    filed(
        "any receipt tells how a message ended (files)",
        "unfinished_has_failed",
        (FILE_HISTORY, "message is not None and receipt.delivery in (None, message.delivery)", "message is not None"),
    ),
    cached(
        "any receipt tells how a message ended (memcached)",
        "unfinished_has_failed",
        (CONTENTS, "in states and delivery in (None, page.delivery[slot])", "in states"),
    ),
    shared(
        "of a batch that was sent once, the first alone is known",
        "sent_once_is_known or answer_was_lost_is_not_doubled",
        (SQL_QUEUE, "first = first + 1 if first is not None and entry.mark_until == FOLLOWS else None", "first = None"),
    ),
    shared(
        "a batch is sent again by another token",
        "answer_was_lost_is_not_doubled",
        ("workers/producer.py", "token, batch = self._sending\n", "token, batch = secrets.token_hex(16), self._sending[1]\n"),
    ),
    handled("the child waits for its parent's lock", "after_a_fork", ("workers/producer.py", "        watch(self)\n", "")),
    mutant(
        "a redrive keeps a deadline that has passed",
        "new_life",
        ("policy.py", "and message.deadline_at > now else None", "else None"),
    ),
    mutant(
        "a redrive drops every deadline",
        "still_to_come",
        ("policy.py", "message.deadline_at > now else None", "False else None"),
    ),
    mutant("a redriven message has no mark", "of_a_redriven_one", ("policy.py", "if new.deduplicate is True:", "if False:")),
    mutant("a redriven member is none", "redriven_member", ("policy.py", "if known and marks.is_content(known):", "if False:")),
    mutant("a dead letter forgets its key", "keeps_its_key", ("policy.py", "marks.key_of(mark) or _is", "_is")),
    mutant(
        "a dead letter queue refuses equal letters",
        "takes_equal_letters",
        (
            "policy.py",
            "return Readmission(known, 0, message.deadline_at)",
            "return Readmission(mark, FOREVER, message.deadline_at)",
        ),
    ),
    mutant(
        "all that is equal is a member elsewhere",
        "taken_all_letters_go",
        ("policy.py", "(settings.deduplicate is not True or", "(True or"),
    ),
    mutant(
        "a redriven message stands beside an equal one",
        "an_equal_message_is_in_its_queue",
        (SQL_MOVING, "if new.mark_until and marks.bearer(new.mark):", "if False:"),
        (SQL_MOVING, "marks.set(new.mark, number, new.mark_until)", "pass"),
    ),
    mutant(
        "letters that stay use up a redrive's limit",
        "do_not_use_up",
        ("queue/dead_letters.py", "        while known and most > 0:", "        if known:"),
    ),
    mutant(
        "a redrive leaves the rest of a group",
        "whole_groups",
        ("queue/dead_letters.py", "(before < 0 or self._queue.read_settings().groups)", "before < 0"),
    ),
    filed(
        "files: a redriven message stands beside an equal one",
        "an_equal_message_is_in_its_queue",
        (HOLDING, "if lasting and there._marks.is_marked(lasting):", "if False:"),
    ),
    filed(
        "files: a redriven message has no mark",
        "of_a_redriven_one",
        (HOLDING, "there._marks.write([MarkRow(id, message.sent_at, now, lasting, new.mark_until)])", "pass"),
    ),
    cached(
        "memcached: a redriven message stands beside an equal one",
        "an_equal_message_is_in_its_queue",
        (MOVING, "FOREVER and self._target.in_force(value, 0):", "FOREVER and False:"),
    ),
    cached("memcached: a letter that stays is hidden", "stays_as_long", (MOVING, "page.become(slot, *before[0])", "pass")),
    cached(
        "memcached: the history ends a window",
        "big_message",
        (
            CONTENTS,
            "                if record.is_marked:\n",
            "                if True:\n",
        ),
    ),
    Mutant(
        "a refused connection makes a lost answer known",
        "nobody_listens",
        (("client/connections.py", "if lost is not None and changes", "if isinstance(problem, OutcomeUnknown) and changes"),),
        ("tests/test_server_client.py",),
    ),
    Mutant(
        "a proxy's error is an answer",
        "proxy_says",
        (("client/connections.py", "if status >= 500:", "if status >= 600:"),),
        ("tests/test_server_client.py",),
    ),
    Mutant(
        "the random plans are the same in each run",
        "plays_others",
        (("testing/model.py", "seed(first)(run)", "seed(0)(run)"),),
        ("tests/test_model.py",),
    ),
    Mutant(
        "a failed plan does not tell its seed",
        "name_the_seed",
        (("testing/model.py", "error.add_note(told)", "pass"),),
        ("tests/test_model.py",),
    ),
    mutant(
        "a delivery is a count again", "numbered_by_its_instant", (COMMON_SQL, "{later}(delivery + 1, :now)", "delivery + 1")
    ),
    mutant(
        "a run's delivery is a count again", "of_a_named_claim_too", (SQLITE_SQL, "MAX(delivery + 1, :run_at)", "delivery + 1")
    ),
    mutant(
        "a delivery is its instant, even if that is the last one's",
        "numbered_by_its_instant",
        (COMMON_SQL, "{later}(delivery + 1, :now)", "{later}(0, :now)"),
        (MESSAGE, "max(last + 1, now)", "now"),
    ),
    filed(
        "a file's delivery is a count again",
        "numbered_by_its_instant",
        (HOLDING, "next_delivery(received.delivery, now)", "received.delivery + 1"),
    ),
    cached(
        "a slot's delivery is a count again",
        "numbered_by_its_instant",
        (SLOTS, "next_delivery(self.delivery[slot], now)", "self.delivery[slot] + 1"),
    ),
    mutant(
        "a claim does not write its holder",
        "sees_who_holds",
        (COMMON_SQL, ", holder = :holder\nWHERE number = :number", "\nWHERE number = :number"),
    ),
    mutant(
        "a released message keeps its holder",
        "given_back_has_no_holder",
        (COMMON_SQL, "CASE :state WHEN 1 THEN holder END", "holder"),
    ),
    mutant(
        "a moved message keeps its holder",
        "dead_letter_has_no_holder",
        (COMMON_SQL, "checksum = :checksum, holder = NULL", "checksum = :checksum"),
    ),
    mutant(
        "a lapsed lease has a holder",
        "lapsed_has_no_holder",
        (
            QUEUE,
            "message.visible_at <= now:\n                message.holder",
            "message.visible_at < 0:\n                message.holder",
        ),
    ),
    mutant("a run has no holder", "reader_holds", (LISTS, "run.lapses_at, holder=run.reader)", "run.lapses_at)")),
    mutant("a list has no holder", "received_before", (RUNS, "pack_holder(run.reader)", "None")),
    filed(
        "a file's record does not name its holder", "sees_who_holds", (HOLDING, "        holder=holder,\n    )\n", "    )\n")
    ),
    filed(
        "a released file keeps its holder",
        "given_back_has_no_holder",
        (HOLDING, "received = received._replace(holder=None)", "pass"),
    ),
    filed(
        "what a longer name has left is read",
        "shorter_name",
        (RECORDS, "content[RECEIVED.size + 1 :][: content[RECEIVED.size]]", "content[RECEIVED.size + 1 :]"),
    ),
    filed(
        "a record from before there were holders is nothing",
        "before_there_were_holders",
        (RECORDS, "need(len(content) >= RECEIVED.size)", "need(len(content) > RECEIVED.size)"),
    ),
    cached(
        "a released slot keeps its holder",
        "given_back_has_no_holder",
        (SLOTS, "if state in (State.QUEUED, State.DAMAGED):", "if state is None:"),
    ),
    cached("an old page is gone", "before_there_were_holders", (SLOTS, "if len(packed) == OLD_PAGE_BYTES:", "if False:")),
    cached(
        "a moved message's delivery has four bytes",
        "deliveries_were_instants",
        (SLOTS, "-self.delivery if self.delivery else", "-(self.delivery % 2**32) if self.delivery else"),
    ),
    Mutant(
        "a consumer has no name",
        "consumer_is_the_holder",
        ((CONSUMER, ', "holder": self._heart.name}', "}"),),
        ("tests/test_memory.py",),
    ),
    served(
        "a holder is lost over HTTP",
        "give_its_name",
        ("server/taking.py", "mode=how.mode, holder=how.holder, ", "mode=how.mode, "),
    ),
    exchanged(
        "an exchange names nobody",
        "exchange_names",
        (POSTGRES_ALONE, '"holder": pack_holder(claiming.holder)}', '"holder": None}'),
    ),
    clocked(
        "the clock is the wall clock",
        "none_of_the_stores or first_process or followed_no_further",
        (
            "clock.py",
            "        now = self._steady()\n        until, offset",
            "        return self._wall()\n        until, offset",
        ),
    ),
    clocked("a step is adopted at once", "two_percent or none_of_the_stores", ("clock.py", "SHARE = 50", "SHARE = 1")),
    clocked("a step is never made up", "two_percent", ("clock.py", "rest=target - (begun", "rest=0 * target - 0 * (begun")),
    clocked(
        "a new course begins before all know it", "agree_at_every_moment", ("clock.py", "LEAD = 3_000_000", "LEAD = 300_000")
    ),
    clocked(
        "the record is read only once",
        "agree_at_every_moment",
        ("clock.py", 'course = self._records.read(name or "") or', "course = self._course or"),
    ),
    clocked(
        "time runs backwards over a reboot",
        "run_backwards",
        ("clock.py", "start = max(course.at, self._records.seen())", "start = course.at"),
    ),
    clocked("nobody tells the store the time", "run_backwards", ("clock.py", "if now >= self._touch_at:", "if False:")),
    clocked(
        "each process that opens a new store has a clock of its own",
        "open_a_new_store or one_decides",
        (
            "stores/clock_files.py",
            "                os.unlink(draft)\n                return found",
            "                return course",
        ),
    ),
    clocked(
        "another boot's record is used",
        "restored_on_another_boot",
        ("clock.py", "if name != self._boot:", "if name is None:"),
    ),
    clocked(
        "a step is not counted",
        "counted_and_logged_once or operators_see",
        ("clock.py", "self.steps += 1", "self.steps += 0"),
    ),
    clocked(
        "a short write replaces the clock's record",
        "full_disk",
        ("stores/clock_files.py", "if os.write(handle, content) < len(content):", "if os.write(handle, content) < 0:"),
    ),
    clocked(
        "the clock's record is dated by the wall clock",
        "run_backwards or killed_process_left",
        ("stores/clock_files.py", "            os.utime(handle, ns=(now * 1000, now * 1000))\n", ""),
        ("stores/clock_files.py", 'if not entry.name.endswith("~")', ""),
    ),
    clocked(
        "a step of a database's clock goes unnoticed",
        "databases_clock",
        ("server_clock.py", "self._tell(offset, noise, now - self._asked_at)", "pass"),
    ),
    mutant(
        "SQLite: processes have a clock each",
        "wall_clock",
        (
            SQLITE_DATABASE,
            "return machine_clock(ClockFiles(clock_folder(self.file.path), str(self), self.file.path))",
            "return MachineClock()",
        ),
    ),
    filed(
        "files: processes have a clock each",
        "wall_clock",
        (
            "stores/files/store.py",
            'return machine_clock(ClockFiles(self.root / FOLDER / ".clock", str(self)))',
            "return super().clock()",
        ),
    ),
    late(
        "memcached: a tombstone does not tell what was void",
        "send_that_is_late or burial_that_is_late",
        (SLOTS, "if self.states.count(GONE) == SLOTS:\n            return b", "if self.is_dead():\n            return b"),
    ),
    late(
        "memcached: a page that is past takes a message",
        "makes_again",
        (SENDING, "if pages.is_past(at, found):", "if False:"),
    ),
    late(
        "memcached: a page that is past is made again, and stays",
        "makes_again",
        (PAGES, "if self.is_past(number, found):", "if False:"),
    ),
    late(
        "memcached: a message that others find has no mark",
        "died_before_its_mark",
        (PAGES, "                self._records.restore_mark(at, record)\n", ""),
    ),
    late(
        "memcached: a late sender is a duplicate of itself",
        "send_that_is_late",
        (SENDING, "if number not in sent}, dead=True)", "if number not in sent})"),
    ),
    late(
        "memcached: a mark counts whose message was never there",
        "past_and_died",
        (CONTENTS, "return 0 if self.records.load_one(number) else number", "return number"),
    ),
    cached(
        "memcached: processes have a clock each",
        "wall_clock or agree_about",
        (
            "stores/memcached/store.py",
            "return machine_clock(MemcachedClock(self._servers))",
            "return super().clock()",
        ),
    ),
    Mutant(
        "memory goes by the wall clock",
        "wall_clock",
        (
            ("stores/ports.py", "return MachineClock()", "return system_clock"),
            ("stores/ports.py", "import Clock, MachineClock", "import Clock, MachineClock, system_clock"),
        ),
        ("tests/test_memory.py",),
    ),
    clocked(
        "a mover goes by the wall clock",
        "mover_goes",
        ("cli/daemons.py", "spool.move_on(clock(),", "spool.move_on(__import__('time').time_ns() // 1000,"),
    ),
    clocked(
        "a wall clock set forward makes files old",
        "set_forward_makes_no_file_old",
        (FILE_TIMES, "for now in (time.time(), _unstepped() / 1_000_000)]", "for now in (time.time(),)]"),
    ),
    Mutant(
        "a desk stages by the wall clock",
        "staged_by_the_stores_clock",
        (
            (
                "broker.py",
                "durable=False, beside=path), clock)",
                "durable=False, beside=path), lambda: __import__('time').time_ns() // 1000)",
            ),
        ),
        ("tests/test_clock.py",),
    ),
    mutant(
        "a number is kept though nobody knows whether it is given away",
        "interrupt_at_any_instant",
        (SQLITE_ALONE, "(first, last), database.spare = database.spare, NO_NUMBERS", "first, last = database.spare"),
    ),
    mutant(
        "a transaction that an interrupt left is gone on with",
        "while_it_is_undone",
        (SQLITE_DATABASE, '                self._execute(connection, "ROLLBACK")\n', "                pass\n"),
    ),
    mutant(
        "an interrupt right after a batch began leaves it open",
        "interrupt_at_any_instant",
        ("guarded.py", "            self._generator.close()\n", "            pass\n"),
    ),
    mutant(
        "an interrupt right before a batch ends leaves it open",
        "interrupt_at_any_instant",
        ("guarded.py", "partial(_leave, weakref.ref(self._generator))", "partial(_leave, lambda held=self._generator: held)"),
    ),
    Mutant(
        "an interrupted verb is never mended",
        "interrupt_at_any_instant",
        ((MEMORY, "            self._mend()\n", ""),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "an interrupted move leaves a message in both queues",
        "whose_move_was_interrupted",
        (("stores/memory/table.py", "            if id in target.rows:\n", "            if False:\n"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a confirmed claim in memory lapses",
        "confirm",
        (("stores/parts.py", "records.extend(receipt, FOREVER, release=False)", "pass"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a settled epoch can be settled back",
        "settled_late",
        (("stores/parts.py", "epoch if known.settled is None else max(epoch, known.settled)", "epoch"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "what a claim has set aside is deleted with it",
        "set_aside or aside or damaged",
        (("stores/parts.py", "message is not None and message.state is not State.DAMAGED", "message is not None"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a store of another package is not found",
        "own_store and messages_come",
        (("broker.py", "STORES.get(scheme) or _find_opener(scheme) if colon", "STORES.get(scheme) if colon"),),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a publication that fails is noted",
        "fails_changes_nothing",
        (("stores/memory/outbox.py", "self._writers = before  # the batch is undone as well", "pass"),),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a name may be in any Unicode form",
        "bad_name",
        ((POLICY, 'if not unicodedata.is_normalized("NFC", name):', "if False:"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a mode is any word",
        "bad_setting",
        ((POLICY, "mode = Mode(settings.mode)", "mode = settings.mode  # type: ignore[assignment]"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "an attribute may be infinite",
        "bad_draft",
        ((POLICY, "if isinstance(value, float) and not math.isfinite(value):", "if False:"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a claim in memory looks past its instant",
        "random_verbs",
        (
            (
                "stores/memory/queue.py",
                "claiming.limit, claiming.at, claiming.share",
                "claiming.limit, claiming.now, claiming.share",
            ),
        ),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a deletion in memory goes by any settings",
        "random_verbs",
        (
            (
                "stores/memory/queue.py",
                "if settings is not None and table.settings != settings:",
                "if False:",
            ),
        ),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a sweep in memory clears everything at once",
        "clears_a_part",
        (("stores/memory/table.py", "for _ in range(SLICE):", "for _ in range(10**9):"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a mark that was removed early keeps its place",
        "take_no_room",
        (("stores/memory/table.py", "if len(self._heap) > 2 * len(self.records) + SLICE:", "if False:"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a claim in memory deletes nothing",
        "exchange",
        (
            (
                "stores/memory/queue.py",
                "for receipt in receipts] if settlement is not None else []",
                "for receipt in ()] if settlement is not None else []",
            ),
        ),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a fork takes locks in another order than the threads",
        "forked_at_any_moment",
        (
            ("forking.py", "in tuple(_watched)", "in reversed(_watched)"),
            (
                "queue/dead_letters.py",
                "        return True\n",
                "        self._queue.waiting.notify()\n        return True\n",
            ),
        ),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "who joins waits for the store's turn",
        "waits_for_no_thread",
        (
            (
                SQLITE_DATABASE,
                "        database = SqliteDatabase(self.file.over(connection), self.statements, self.ids)\n",
                "        database = SqliteDatabase(self.file.over(connection), self.statements, self.ids)\n"
                "        database.lock = self.lock\n",
            ),
        ),
        ("tests/test_joining.py",),
    ),
    Mutant(
        "the other copy of SQLite is let in",
        "other_copy_of_sqlite",
        ((SQLITE_DATABASE, 'base.__module__ == "sqlite3"', "False"),),
        ("tests/test_joining.py",),
    ),
    filed(
        "what is received is never synced",
        "only_receives_since",
        (HOLDING, "self._transactions.claimed.add(self._sidecar.received_path(id))", "pass"),
    ),
    filed(
        "what is received is synced with each commit",
        "carries_along",
        (BATCHES, "now >= self._claims_synced + CLAIMS_EVERY", "True"),
    ),
    filed(
        "what is gone is synced",
        "carries_along",
        (HOLDING, "self._transactions.claimed.discard(self._sidecar.received_path(id))", "pass"),
    ),
    filed(
        "a record that the disk refuses fails a send",
        "refuses_the_record",
        (
            BATCHES,
            "        with suppress(OSError):\n            if len(claimed)",
            "        with suppress(ValueError):\n            if len(claimed)",
        ),
    ),
    mutant(
        "after a power cut a receipt fits again",
        "before_a_power_cut",
        (COMMON_SQL, "{later}(delivery + 1, :now)", "delivery + 1"),
        (MESSAGE, "max(last + 1, now)", "last + 1"),
    ),
    filed("after a power cut a file's receipt fits again", "before_a_power_cut", (MESSAGE, "max(last + 1, now)", "last + 1")),
    locked(
        "a second interrupt leaves a lock behind",
        "second_interrupt",
        (BATCHES, "if self._torn:", "if False:"),
    ),
    filed(
        "an interrupt at the end of a batch of files leaves it open",
        "interrupt_at_any_instant",
        (BATCHES, "with self.lock:\n            waited", "if self.lock.acquire():\n            waited"),
        (
            BATCHES,
            "                    self._opener = None\n",
            "                    self._opener = None\n                self.lock.release()\n",
        ),
    ),
    refused("files", (BATCHES, "refuse_handlers(self, self._opener)", "pass")),
    refused("servers", (TRANSACTIONS, "refuse_handlers(self._driver, self.here.opener)", "pass")),
    refused("SQLite", (SQLITE_DATABASE, "refuse_handlers(self, self._opener)", "pass")),
    refused(
        "files: a handler is refused for ever",
        (BATCHES, "                    self._opener = None\n", "                    pass\n"),
    ),
    mutant(
        "a signal handler becomes part of the batch that it has interrupted",
        "handler",
        ("stores/callers.py", "and _is_handler(frame.f_code)", "and False"),
    ),
    cached(
        "memcached: a signal handler reads the answers of the call that it has interrupted",
        "handler",
        ("stores/memcached/link.py", "                refuse_handlers(self, self._opener)\n", "                pass\n"),
    ),
    relayed(
        "memcached: what is being moved is received",
        (MEMCACHED_QUEUE, "if not Mover(self._catalogue, contents).resume(at, page, slots, now):", "if True:"),
    ),
    relayed(
        "memcached: a redrive does not see that a move was cut short",
        (MOVING, "            if page.states[slot] & MOVING:\n                return False\n", ""),
    ),
    relayed(
        "memcached: a late mover moves what was taken from it",
        (MOVING, "            if latest > attempt:\n", "            if False:\n"),
    ),
    relayed(
        "memcached: a move is undone without telling a late mover",
        (MOVING, "if self._link.cas(self._note, MARK.pack(0, attempt), token, MOVED_SECONDS):", "if True:"),
    ),
    relayed(
        "memcached: nobody knows that a moved message has been and gone",
        ("stores/memcached/records.py", "        self._tell_movers(records)\n", ""),
    ),
    relayed(
        "memcached: a move to a server that is gone blocks the others",
        (MOVING, "with suppress(StoreError):  # the other queue's", "if True:  # the other queue's"),
    ),
    cached(
        "memcached: what a killed process has given back is never seen",
        "killed_between and give_up",
        (SLICES, "if min(page.visible) < self._survey.bound(at):", "if False:"),
    ),
    cached(
        "memcached: a full server loses what it has just taken",
        "before_the_server_was_full",
        (SENDING, "for number, record in records.items() if number not in sent}", "for number, record in records.items()}"),
    ),
    cached(
        "memcached: a send fails for a hint",
        "before_the_server_was_full",
        (PAGES, "with suppress(StoreFull):  # if this fails", "if True:  # if this fails"),
    ),
    cached(
        "memcached: an exchange forgets what it deleted",
        "exchange_whose_receive_fails",
        (MEMCACHED_QUEUE, "        except StoreError:  # the deletion", "        except KeyError:  # the deletion"),
    ),
    cached(
        "memcached: one sweep clears the whole history",
        "a_slice_at_a_time",
        (SLICES, "            if left <= 0:\n                break\n", ""),
    ),
    cached(
        "memcached: one sweep deletes all that a dropped queue has left",
        "dropped_queue_goes",
        ("stores/memcached/catalogue.py", "end = min(survey.tail + CLEARED, survey.last + 1)", "end = survey.last + 1"),
    ),
    cached(
        "memcached: an interrupt leaves settings that are never read again",
        "interrupted_while_it_reads_the_settings",
        (
            "stores/memcached/records.py",
            "        settings = unpack_settings(packed)\n",
            "        self.raw = raw\n        settings = unpack_settings(packed)\n",
        ),
    ),
    cached(
        "memcached: an interrupt leaves a queue that a process knows without its settings",
        "never_finished_reading",
        (
            "stores/memcached/catalogue.py",
            "            known = Contents(self._keyspace(name, salt))\n",
            "            known = self._known[name] = Contents(self._keyspace(name, salt))\n",
        ),
    ),
    cached(
        "memcached: a sweep clears what was settled since it looked",
        "settled_during_a_sweep",
        (
            CONTENTS,
            "[slot for slot in old if page.state(slot) in SETTLED]",
            "[slot for slot in range(SLOTS) if page.state(slot) in SETTLED]",
        ),
    ),
    cached(
        "memcached: what a reader hid for ever stays hidden",
        "confirmation_that_was_cut_short",
        (SLICES, "        self._give_back(at, page)\n", ""),
    ),
    relayed(
        "memcached: a sweep leaves a move that was cut short",
        (SLICES, "        self._mover.resume(at, page, page.ready(self._now), self._now)\n", ""),
    ),
    Mutant(
        "the filter of the crash tests does not have a call",
        "go_past_the_filter",
        (("testing/faults.py", '    "renameat2": (316, 276),\n', ""),),
        ("tests/test_faults.py",),
    ),
    benched(
        "a server's children outlive the benchmark",
        "stopped_with_all_that_it_has_started",
        ("bench/brokers/processes.py", "        found |= more", "        break"),
    ),
    benched(
        "a signal makes the benchmark forget a process that starts",
        "a_signal_while_a_process_starts",
        ("bench/brokers/processes.py", "lambda number, _: came.append(number)", "signal.default_int_handler"),
    ),
    benched(
        "a turn that begins late has no call",
        "however_late",
        ("bench/brokers/generator.py", "while not took or (now < end", "while (now < end"),
    ),
    benched(
        "beanstalkd does not sync",
        "every_answer_waits",
        ("bench/brokers/servers.py", '"-f0")', '"-F")'),
    ),
]


def plant(mutant: Mutant, folder: Path) -> bool:
    """Whether every place of the fault was found."""
    for name, old, new in mutant.changes:
        path = folder / "src/penstock" / name
        text = path.read_text()
        if old not in text:
            print(f"mutant {mutant.name!r}: its place is gone from {name}: {old!r}")
            return False
        path.write_text(text.replace(old, new))
    return True


def try_out(mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in ("src", "tests", "docs"):
            shutil.copytree(ROOT / part, folder / part)  # with its bytecode, which keeps the time of its source
        shutil.copy(ROOT / "pyproject.toml", folder)
        if not plant(mutant, folder):
            return "NO PLACE"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-k",
                mutant.tests,
                *mutant.files,
            ],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        print(f"mutant {mutant.name!r}: pytest could not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return "NO RUN"
    return "caught" if done.returncode == 1 else "SURVIVED"


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in chosen}
    if unknown:
        raise SystemExit(f"there is no mutant {', '.join(sorted(map(repr, unknown)))}")
    compileall.compile_dir(ROOT / "src", quiet=1)  # once, instead of by every mutant's tests
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(judge, chosen))
    missed = [mutant.name for mutant, verdict in zip(chosen, verdicts, strict=True) if verdict != "caught"]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught", *missed, sep="\n  not caught: ")
    return 1 if missed else 0


def judge(mutant: Mutant) -> str:
    started = time.monotonic()
    verdict = try_out(mutant)
    print(f"{verdict:9}{mutant.name} ({time.monotonic() - started:.0f} s)", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

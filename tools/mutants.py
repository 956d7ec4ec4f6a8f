"""Plant known faults, one at a time, and show that the tests catch each: `make mutants`, or with names, only those.

A mutant is a piece of the source and what takes its place, with the tests that are expected to notice. Each runs on a copy of
the tree. A fault that survives is an error, and so is one whose place is no longer found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SQLITE, QUERIES = "stores/sqlite.py", "stores/queue.sql"
SERVER = "stores/server_session.py"
SQL, MESSAGES, SESSION = "stores/sql.py", "stores/sql_messages.py", "stores/sql_session.py"
COMMIT = '"RELEASE verb" if nested else "COMMIT"'
ADMITTED = """
            alone = settings.groups or any(entry.mark is not None for entry in entries)
            home, current = self._enter(queue, alone=alone)"""
BEGIN = '"SAVEPOINT verb" if nested else "BEGIN IMMEDIATE"'


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    tests: str
    changes: tuple[tuple[str, str, str], ...]


def mutant(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes)


MUTANTS = [
    mutant("no sync", "power_cut", (SQLITE, "{'FULL' if durable else 'NORMAL'}", "OFF"), (SQLITE, "= FULL;", "= OFF;")),
    mutant(
        "NORMAL instead of FULL",
        "power_cut",
        (SQLITE, "'FULL' if durable", "'NORMAL' if durable"),
        (SQLITE, "= FULL;", "= NORMAL;"),
    ),
    mutant(
        "answer before commit",
        "kill_9",
        (SQLITE, COMMIT, '"RELEASE verb" if nested else "SELECT 1"'),
        (
            SQLITE,
            f"self._execute(connection, {BEGIN})",
            'None if nested or connection.get_autocommit() else connection.execute("COMMIT")\n            '
            f"self._execute(connection, {BEGIN})",
        ),
    ),
    mutant(
        "select, then update, with nothing between to stop others",
        "processes_get or eight_threads",
        (SQLITE, COMMIT, '"SELECT 1"'),
        (SQLITE, BEGIN, '"SELECT 1"'),
    ),
    mutant(
        "a stale receipt deletes",
        "stale_receipt_cannot_delete",
        (QUERIES, "delivery = COALESCE(:delivery, delivery)\nRETURNING", "COALESCE(:delivery, 0) >= 0\nRETURNING"),
    ),
    mutant(
        "a stale receipt deletes, alone",
        "stale_receipt_cannot_delete",
        (QUERIES, "delivery = :delivery AND grp", "COALESCE(:delivery, 0) >= 0 AND grp"),
    ),
    mutant("an old number is used again", "never_used_again", (SQLITE, "self._block = (number + 1, last)", "pass")),
    mutant(
        "changed settings are not noticed", "changed_by_another", (QUERIES, "AND settings = :settings", "AND :settings <> ''")
    ),
    mutant(
        "a stale receipt extends", "stale_receipt_cannot_extend", (MESSAGES, "number, home, delivery))", "number, home, None))")
    ),
    mutant(
        "a stale receipt releases",
        "stale_receipt_cannot_release",
        (MESSAGES, "number, home, delivery))", "number, home, None if release else delivery))"),
    ),
    mutant(
        "extend does nothing",
        "an_extension_hides",
        (QUERIES, "SET visible_at = :until, state = :state", "SET state = :state + 0 * :until"),
    ),
    mutant(
        "the receive count is lost", "visibility_ends or too_often", (QUERIES, "receives = receives + 1", "receives = receives")
    ),
    mutant("redrive one too early", "too_often", ("policy.py", "message.receives > settings", "message.receives >= settings")),
    mutant(
        "redrive one too late", "too_often", ("policy.py", "message.receives > settings", "message.receives - 1 > settings")
    ),
    mutant(
        "claim and burial in two transactions",
        "killed_at",
        ("queue.py", "with self._store.batch(durable=chosen is Mode.AT_MOST_ONCE):", "if True:"),
    ),
    mutant(
        "mark and message in two transactions",
        "killed_at",
        (
            MESSAGES,
            f"        with self._joined():{ADMITTED}",
            f"        if True:{ADMITTED}",
        ),
    ),
    mutant(
        "a window forgotten once the first is deleted",
        "within_the_window",
        (QUERIES, " AND number = :number AND expires_at = :forever", " AND number = :number AND :forever > 0"),
    ),
    mutant("duplicates forgotten", "equal_message_in_the_queue", (MESSAGES, "if first is not None:", "if first is False:")),
    mutant(
        "at most once, twice",
        "claim_settles_the_message",
        ("queue.py", "if chosen is Mode.AT_MOST_ONCE:", "if chosen is None:"),
    ),
    mutant("the delay is ignored", "a_delay_hides", ("policy.py", "now + micros(delay),", "now,")),
    mutant(
        "the deadline is ignored",
        "past_its_deadline",
        ("policy.py", "message.deadline_at <= now and", "message.deadline_at <= 0 and"),
    ),
    mutant(
        "last in, first out",
        "order_sent",
        (
            QUERIES,
            "ORDER BY visible_at, number LIMIT :limit {skip_locked}",
            "ORDER BY visible_at DESC, number LIMIT :limit {skip_locked}",
        ),
    ),
    mutant(
        "the body is changed", "any_bytes", (MESSAGES, "head, check, body\n", 'head, check, body.replace(b"\\r\\n", b"\\n")\n')
    ),
    mutant(
        "claims are lost at restart",
        "survive_a_restart",
        (QUERIES, "CREATE TABLE penstock_held", "CREATE TEMP TABLE penstock_held"),
    ),
    mutant("a confirmed claim lapses", "never_lapses", (SQL, "delivery, FOREVER, release=False", "delivery, 0, release=False")),
    mutant("a reader set back is not noticed", "set_back", ("claims.py", "epoch <= settled:", "epoch < 0:")),
    mutant("the checksum is not looked at", "damage", (SESSION, "intact = check ==", "intact = True or check ==")),
    mutant(
        "the next of a group is not freed", "no_later_one", (MESSAGES, "visible_at >= 0 and state", "visible_at < 0 and state")
    ),
    mutant("groups are not kept", "no_later_one", (MESSAGES, "visible_at = -visible_at", "pass")),
    mutant(
        "a failed sync is forgiven",
        "failing_disk",
        (
            SQLITE,
            f"self._execute(connection, {COMMIT})",
            f"with suppress(StoreError):\n                    self._execute(connection, {COMMIT})",
        ),
        (SQLITE, "from contextlib import contextmanager", "from contextlib import contextmanager, suppress"),
    ),
    mutant(
        "others' messages are found late", "another_process_wakes", ("waiting.py", "LOOK_EVERY = 0.025", "LOOK_EVERY = 0.5")
    ),
    mutant("waiting burns the core", "next_to_nothing", ("waiting.py", "LOOK_EVERY = 0.025", "LOOK_EVERY = 0.0002")),
    mutant(
        "an idle poll takes the write lock",
        "locked_too_long",
        ("queue.py", "if due is None or due > self._clock():", "if due is False:"),
    ),
    mutant("space is never returned", "space_is_returned", (SQLITE, "if free < RECLAIM_PAGES or", "if True or")),
    mutant(
        "retention is ignored",
        "outlived_its_retention_is_never",
        ("policy.py", "return message.expires_at <= now or", "return False and"),
    ),
    mutant(
        "a fork keeps the parent's connection",
        "fork",
        (SQLITE, "if not self._depth and self._connection", "if None and self._connection"),
    ),
    mutant(
        "what a tending error undoes is the answer",
        "cannot_be_tended",
        ("queue.py", "except StoreError as error:", "except ZeroDivisionError as error:"),
    ),
    mutant(
        "a redrive revives old receipts",
        "before_a_redrive",
        (QUERIES, "state = 0, receives = 0,", "state = 0, receives = 0, delivery = 0,"),
    ),
    mutant(
        "a read believes an old catalogue",
        "made_again",
        (SESSION, "self._seen.get(name) if self._in_batch() else None", "self._seen.get(name)"),
        (SESSION, "if self._in_batch():\n                self._seen[name] = found", "self._seen[name] = found"),
        (SQLITE, "                self._seen.clear()\n", "                pass\n"),
    ),
    mutant(
        "a batch goes on after SQLite gave it up",
        "rolled_back",
        (SQLITE, "if self._depth and self._connection.get_autocommit():", "if False:"),
    ),
    mutant(
        "hidden for no time, given twice",
        "once_an_answer",
        ("queue.py", "more and all(message.visible_at > now for message in delivered)", "more"),
    ),
    mutant(
        "numbers reserved in a lost batch are used",
        "failing_disk",
        (SQLITE, "self._block = NO_BLOCK  # what could", "pass  # what could"),
        (SQLITE, "block if connection is self._connection else NO_BLOCK", "block"),
    ),
    mutant(
        "a commit whose answer was lost is taken for none",
        "postgresql and cut_at",
        (SERVER, "return bool(rows) and rows[0][0] == session.token", "return False"),
    ),
    mutant(
        "a lost connection is left to finish",
        "postgresql and cut_at",
        (SERVER, "            self._end(side, session)\n", "            pass\n"),
    ),
    mutant(
        "the machine's clock instead of the database's",
        "postgresql and clock_is_wrong",
        (SERVER, "        return self._clock\n", "        return super().clock()\n"),
    ),
    mutant(
        "a rolled back send is sent",
        "postgresql and rolled_back",
        ("stores/postgresql.py", "work = Work(Session(connection, None))", "work = self._begin('BEGIN')"),
    ),
    mutant(
        "the dead are not struck off",
        "birth_order",
        ("heartbeat.py", "self._beats % self._check_every == 0", "self._beats < 0"),
    ),
]


def plant(mutant: Mutant, folder: Path) -> None:
    for name, old, new in mutant.changes:
        path = folder / "src/penstock" / name
        text = path.read_text()
        if old not in text:
            raise SystemExit(f"mutant {mutant.name!r}: its place is gone from {name}: {old!r}")
        path.write_text(text.replace(old, new))


def caught(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        plant(mutant, folder)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-k",
                mutant.tests,
                "tests/test_sqlite.py",
                "tests/test_sqlite_file.py",
                "tests/test_server_faults.py",
                "tests/test_joining.py",
            ],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise SystemExit(f"mutant {mutant.name!r}: pytest could not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    survivors = []
    for mutant in chosen:
        started = time.monotonic()
        if not caught(mutant):
            survivors.append(mutant.name)
        verdict = "SURVIVED" if mutant.name in survivors else "caught"
        print(f"{verdict:9}{mutant.name} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

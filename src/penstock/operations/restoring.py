"""Restoring a backup into an empty place, or over a store if that is asked for.

Everything is prepared beside the place, and put there in one step: a file or a folder is renamed, a SQLite file that others
may have open is replaced in one transaction, and so are the tables of a database server. Killed before that step, nothing has
changed; what is left beside the place is removed by the next try.

A restored store is one in which no receipt from before is valid, and which gives out no message number a second time:
messages that were sent after the backup are gone, and their ids with them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from penstock.broker import open_local
from penstock.clock import machine_clock
from penstock.errors import BadInput, StoreError, Unsupported
from penstock.message import to_datetime
from penstock.operations import folders
from penstock.operations.backups import (
    DATABASE,
    FOLDER,
    STAGED,
    Backup,
    read_backup,
    read_contents,
    take_out,
    translating,
)
from penstock.operations.places import FILES, SERVERS, StorePlace, database_of, find
from penstock.stores.clock_files import ClockFiles, clock_folder
from penstock.stores.disk import remove_folder, rename_new, sync, sync_file_system
from penstock.stores.files.sidecar import FOLDER as SIDECAR
from penstock.stores.ports import Staging
from penstock.stores.sql.database import read_meta
from penstock.stores.sql.whole import copy_rows, empty, make_own
from penstock.stores.sqlite.copies import alone, put, without_runs
from penstock.stores.staging import StagedFiles, staging_folder


def restore(source: str | Path, url: str, *, over: bool = False) -> Backup:
    """Restore the backup in the folder ``source`` to a new store at ``url``. Stop everybody who uses that store first.

    If it has queues already, this is refused; with ``over`` they are replaced. A folder of files is then kept beside the new
    one, under another name."""
    place = find(url, "restore")
    found = read_backup(source)
    if (found.kind in FILES or place.kind in FILES) and found.kind != place.kind:
        raise Unsupported(
            f"{source} is a backup of a {found.kind} store, and cannot become a {place.kind} store: export and import queues"
        )
    with translating(f"the store at {place.path}" if place.path.name else "the store"):
        into = _into_folder if place.kind in FILES else _into_server if place.kind in SERVERS else _into_file
        into(found, place, over)
    return found


def _refuse_queues(place: StorePlace, over: bool) -> bool:
    """Whether there is a store already. One that has queues is replaced only if that is meant."""
    there = place.kind in SERVERS or place.path.is_file() or (place.path.is_dir() and any(place.path.iterdir()))
    if there and not over:
        with open_local(place.url) as broker:
            names = broker.queues(limit=3)
        if names.total:
            few = ", ".join(map(repr, names.names)) + (", …" if names.total > len(names.names) else "")
            raise BadInput(f"the store has queues already ({few}): restore into an empty place, or over them if you mean it")
    return there


def _into_file(backup: Backup, place: StorePlace, over: bool) -> None:
    there, draft = _refuse_queues(place, over), Path(f"{place.path}.restoring~")
    _check_file(place.path, there)
    try:
        _prepare(backup, draft)
        now = _now(backup, ClockFiles(clock_folder(place.path), f"the queue file {place.path}", draft))
        with alone(draft) as database, database.batch():
            make_own(database, backup.taken_at, now, _last_number(place) if there else 0)
        sync(draft)
        staging = StagedFiles(staging_folder(place.path), durable=False, beside=draft)
        _stage(backup, staging)
        if there:
            put(place.path, draft)
        else:
            rename_new(str(draft), str(place.path))
            sync(place.path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _last_number(place: StorePlace) -> int:
    with open_local(place.url) as broker:
        return read_meta(database_of(broker), "number")


def _check_file(path: Path, there: bool) -> None:
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent}")
    for left in () if there else (f"{path}-wal", f"{path}-journal"):
        if Path(left).exists():  # SQLite would take it for a part of the new file
            raise BadInput(f"{left} is left over from another queue file: remove it first")


def _prepare(backup: Backup, draft: Path) -> None:
    draft.unlink(missing_ok=True)  # from a restore that was killed
    for content in read_contents(backup):
        if content.path == DATABASE:
            take_out(backup, content, draft)


def _now(backup: Backup, clock_files: ClockFiles) -> int:
    """The time of the new store, which does not run behind what the backup knows."""
    clock_files.reach(backup.taken_at)
    return max(machine_clock(clock_files)(), backup.taken_at)


def _stage(backup: Backup, staging: Staging) -> None:
    kept = StagedFiles(Path(backup.folder) / STAGED, durable=False)
    for staged in kept.staged():
        segment = kept.fetch(*staged[:3])
        if segment is not None:
            staging.stage(*staged[:3], segment, staged.staged_at)


def _into_server(backup: Backup, place: StorePlace, over: bool) -> None:
    """By way of a copy, which has the newest schema and nothing that only SQLite can keep."""
    _refuse_queues(place, over)
    with tempfile.TemporaryDirectory(prefix="penstock-restore-") as temporary, open_local(place.url) as broker:
        draft, database = Path(temporary) / DATABASE, database_of(broker)
        _prepare(backup, draft)
        with alone(draft) as copy:
            with copy.batch():
                without_runs(copy)
            _stage(backup, broker.store.outbox.staging)
            with database.batch():
                last = read_meta(database, "number")
                empty(database)
                copy_rows(copy, database)
                make_own(database, backup.taken_at, max(broker.clock(), backup.taken_at), last)
                if place.kind == "postgresql":
                    for table in ("queue", "claim"):
                        database.script(SERIAL.format(table=table))


SERIAL = (
    "SELECT setval(pg_get_serial_sequence('penstock_{table}', 'number'), COALESCE(MAX(number), 0) + 1, false) "
    "FROM penstock_{table}"
)
"""The numbers that PostgreSQL gives itself begin after those that were loaded."""


def _into_folder(backup: Backup, place: StorePlace, over: bool) -> None:
    there = _refuse_queues(place, over)
    draft = place.path.with_name(f"{place.path.name}.restoring~")
    remove_folder(draft)  # from a restore that was killed
    draft.mkdir(mode=0o700)
    try:
        for content in read_contents(backup):
            target = draft / content.path.removeprefix(f"{FOLDER}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            take_out(backup, content, target)
        now = _now(backup, ClockFiles(draft / SIDECAR / ".clock", str(draft)))
        folders.make_own(place.kind, draft, backup.queues, now, place.path if there else None)
        sync_file_system(draft)
        if there:
            os.rename(place.path, _other_name(place.path, now))
        os.rename(draft, place.path)
        sync(place.path.parent)
    finally:
        remove_folder(draft)


def _other_name(path: Path, now: int) -> Path:
    return path.with_name(f"{path.name}.until-{to_datetime(now):%Y%m%dT%H%M%S.%f}")

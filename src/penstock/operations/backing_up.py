"""Backups of a store that is in use.

    SQLite               the file as it was at one instant, by SQLite's own backup
    PostgreSQL, MariaDB  the rows as they were at one instant, in a SQLite queue file
    VSQS, spool          the files as they were at one instant, under the locks of all queues (folders.py)

The segments that writers have staged are copied before that instant and again after it: one that is staged meanwhile belongs
to a batch that is not published yet, and one that is removed meanwhile to one that is."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import cast

from penstock.broker import LocalBroker, open_local
from penstock.operations import folders
from penstock.operations.backups import (
    DATABASE,
    FOLDER,
    STAGED,
    Backup,
    begin,
    finish,
    record_file,
    record_folder,
    translating,
)
from penstock.operations.places import FILES, StorePlace, database_of, find
from penstock.stores.disk import make_private, remove_folder
from penstock.stores.files.store import FileStore
from penstock.stores.ports import Staging
from penstock.stores.sql.whole import copy_rows
from penstock.stores.sqlite.copies import alone, take
from penstock.stores.staging import StagedFiles


def backup(url: str, target: str | Path) -> Backup:
    """Back up the store at ``url`` into the new folder ``target``, while others use the store.

    Raises `Unsupported` if that kind of store has another way. If this fails, the folder is removed; if it is killed, what it
    has left is not a whole backup, and `restore` refuses it."""
    place = find(url, "back up")
    place.check_exists()
    folder = begin(target)
    try:
        with translating(f"the backup {folder}"), open_local(url) as broker:
            return (_back_up_files if place.kind in FILES else _back_up_rows)(place, broker, folder)
    except BaseException:
        remove_folder(folder)
        raise


def _back_up_files(place: StorePlace, broker: LocalBroker, folder: Path) -> Backup:
    names, copied = folders.copy(cast(FileStore, broker.store), folder / FOLDER)
    contents = (content._replace(path=f"{FOLDER}/{content.path}") for content in copied)
    return finish(folder, place.kind, broker.clock(), names, contents)


def _back_up_rows(place: StorePlace, broker: LocalBroker, folder: Path) -> Backup:
    file, database, staging = folder / DATABASE, database_of(broker), broker.store.outbox.staging
    make_private(file)
    copy_segments(staging, folder / STAGED)
    if place.kind == "sqlite":
        take(place.path, file)
    with alone(file) as copy:
        if place.kind != "sqlite":
            with database.reading(), copy.batch():
                copy_rows(database, copy)
        names = sorted(name for (name,) in copy.rows("queues", {}))
    copy_segments(staging, folder / STAGED)
    contents = chain([record_file(folder, DATABASE)], record_folder(folder, STAGED))
    return finish(folder, place.kind, broker.clock(), names, contents)


def copy_segments(staging: Staging, folder: Path) -> None:
    """Copy the segments that are not copied yet."""
    target = StagedFiles(folder, durable=False)
    known = set(target.staged())
    for staged in staging.staged():
        segment = None if staged in known else staging.fetch(*staged[:3])
        if segment is not None:
            target.stage(*staged[:3], segment, staged.staged_at)

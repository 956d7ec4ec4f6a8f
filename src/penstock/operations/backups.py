"""A backup on the disk: a folder of plain files, and what makes it whole.

TARGET/
  backup.json      what it is a backup of, and when it was made. Written last: without it, the backup is not finished
  contents.jsonl   every other file: its path, size, mtime and SHA-256
  store.db         the queues of an SQL store, as a SQLite queue file;
  store/           or the folder of a store of files
  staged/          segments that Spark's writers have staged
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import penstock
from penstock.errors import BadInput, StoreCorrupt, StoreVersion
from penstock.stores.disk import PRIVATE, refusal, sync, sync_file_system, write_whole

FORMAT = 1
WHOLE, CONTENTS, DATABASE, FOLDER, STAGED = "backup.json", "contents.jsonl", "store.db", "store", "staged"
PIECE = 1024 * 1024


class Content(NamedTuple):
    """A file of a backup. ``path`` is relative, with slashes."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    """What `backup` has made, or `read_backup` has found."""

    folder: str
    kind: str
    """The scheme of the store's URL."""
    taken_at: int
    """An instant of the store's clock, right after the last one that the backup knows."""
    penstock: str
    queues: list[str]
    bytes: int
    contents: str
    """The SHA-256 of contents.jsonl."""


def begin(target: str | Path) -> Path:
    """A new and private folder, or an empty one. What a backup that was not finished has left stays until somebody removes
    it."""
    folder = Path(target)
    with translating(folder):
        if folder.is_dir() and any(folder.iterdir()):
            left = " (a backup that was not finished is in it)" if is_unfinished(folder) else ""
            raise BadInput(f"the folder {folder} is not empty{left}: give a new one")
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / CONTENTS).touch(PRIVATE)  # marks it as unfinished
    return folder


def is_unfinished(folder: Path) -> bool:
    return (folder / CONTENTS).exists() and not (folder / WHOLE).exists()


def finish(folder: Path, kind: str, taken_at: int, queues: list[str], contents: Iterator[Content]) -> Backup:
    """Everything else is on the disk before the file is that makes the backup whole."""
    digest, total = hashlib.sha256(), 0
    with (folder / CONTENTS).open("wb") as listing:
        for content in contents:
            line = json.dumps(content._asdict()).encode() + b"\n"
            digest.update(line)
            listing.write(line)
            total += content.size
    sync_file_system(folder)
    made = Backup(str(folder), kind, taken_at, penstock.__version__, queues, total, digest.hexdigest())
    write_record(made)
    sync(folder.parent)
    return made


def write_record(backup: Backup) -> None:
    """Make the backup whole."""
    record = {"format": FORMAT} | {name: value for name, value in asdict(backup).items() if name != "folder"}
    record["checksum"] = _checksum(record)
    write_whole(Path(backup.folder) / WHOLE, json.dumps(record, indent=2).encode() + b"\n")


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_backup(folder: str | Path) -> Backup:
    """The backup in a folder, if it is whole."""
    place = Path(folder) / WHOLE
    with translating(place):
        if not place.exists():
            raise BadInput(f"{folder} is no backup, or one that was not finished: it has no {WHOLE}")
        content = place.read_bytes()
    try:
        record = json.loads(content)
        if record.pop("checksum") != _checksum(record):
            raise ValueError
        if record.pop("format") > FORMAT:
            raise StoreVersion(f"the backup {folder} was made by a newer Penstock ({record['penstock']}): use that one")
        return Backup(folder=str(folder), **record)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreCorrupt(f"the file {place} is damaged") from None


def read_contents(backup: Backup) -> Iterator[Content]:
    """The files of a backup. Raises `StoreCorrupt` unless the list is the one that was written."""
    place = Path(backup.folder) / CONTENTS
    with translating(place), place.open("rb") as listing:
        if hashlib.file_digest(listing, "sha256").hexdigest() != backup.contents:
            raise StoreCorrupt(f"the file {place} is damaged")
        listing.seek(0)
        for line in listing:
            content = Content(**json.loads(line))
            path = PurePosixPath(content.path)
            if path.is_absolute() or ".." in path.parts:
                raise StoreCorrupt(f"the file {place} names a file outside of the backup: {content.path!r:.200}")
            yield content


def record_file(folder: Path, path: str) -> Content:
    """What `contents.jsonl` says of a file that is complete."""
    with (folder / path).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
    return Content(path, status.st_size, status.st_mtime_ns, sha256)


def record_folder(folder: Path, part: str) -> Iterator[Content]:
    """The same for all files in a folder of the backup."""
    for place, folders, files in os.walk(folder / part):
        folders.sort()
        for name in sorted(files):
            yield record_file(folder, (Path(place) / name).relative_to(folder).as_posix())


def take_out(backup: Backup, content: Content, target: Path) -> None:
    """Copy a file out of a backup, and make sure that it is what was put in."""
    source, digest = Path(backup.folder) / content.path, hashlib.sha256()
    if not source.is_file():
        raise StoreCorrupt(f"the backup {backup.folder} lacks its file {content.path}")
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with source.open("rb") as given, open(handle, "wb") as taken:
        while piece := given.read(PIECE):
            digest.update(piece)
            taken.write(piece)
    if digest.hexdigest() != content.sha256:
        raise StoreCorrupt(f"the file {source} is not as it was backed up: its checksum differs")
    os.utime(target, ns=(content.mtime_ns, content.mtime_ns))


@contextmanager
def translating(who: object) -> Iterator[None]:
    """Errors of the operating system as our own."""
    try:
        yield
    except OSError as error:
        raise refusal(who, error) from error

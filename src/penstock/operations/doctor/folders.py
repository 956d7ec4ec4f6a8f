"""Stores that are files: the disk, the file system, syncs, permissions and the clock of the store."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import apsw

from penstock.broker import location
from penstock.clock import Course, boot, steady
from penstock.operations.doctor.file_systems import Mount, find_mount
from penstock.operations.doctor.findings import Finding, Visit, compare_clocks, note, ok, size, wrong
from penstock.stores.clock_files import ClockFiles, clock_folder
from penstock.stores.files.sidecar import FOLDER
from penstock.stores.sql.statements import read_sql
from penstock.stores.sqlite.words import TEXTS, WORDS

NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "lustre", "beegfs", "gfs2", "ocfs2"}
NETWORK |= {"glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph", "fuse.cephfs"}
MEMORY = {"tmpfs", "ramfs"}
LITTLE, LITTLE_SHARE, PLENTY = 64 << 20, 0.05, 2 << 30
"""A disk is nearly full with less than the first, or less than this share of it if that is less than the last."""
FEW_NAMES = 1000
SYNCS = 5
SLOW_SYNC = 0.1
MOST_FILES = 1000


def examine_sqlite(visit: Visit) -> Iterator[Finding]:
    path = Path(os.path.realpath(location(visit.url)[1]))
    yield from _examine_place(path.parent, whole_machine="SQLite's locks and shared memory")
    if not path.exists():
        yield note("store", f"there is no store at {path} yet", "the first program that opens it makes it")
        return
    beside = [entry for entry in path.parent.iterdir() if entry.name.startswith(f"{path.name}-")]
    yield from _examine_rights([path.parent, path, *beside])
    yield _schema(path)
    yield from _examine_clock(ClockFiles(clock_folder(path), str(path), path), visit)


def examine_folder(visit: Visit) -> Iterator[Finding]:
    root = Path(os.path.realpath(location(visit.url)[1]))
    there = root.is_dir()
    yield from _examine_place(root if there else root.parent, whole_machine="the locks of the processes")
    if not there:
        yield note("store", f"there is no store at {root} yet", "the first program that opens it makes it")
        return
    if not os.access(root, os.R_OK | os.X_OK):
        yield from _examine_rights([root])
        return
    inside = [root, *root.iterdir(), *(root / FOLDER).glob("*")]
    yield from _examine_rights(inside[:MOST_FILES])
    yield ok("store", f"a folder with {len(inside) - 1:,} entries")
    yield from _examine_clock(ClockFiles(root / FOLDER / ".clock", str(root)), visit)


def _examine_place(folder: Path, *, whole_machine: str) -> Iterator[Finding]:
    if not folder.is_dir():
        yield wrong("disk", f"there is no folder {folder}", "make it, for the user that runs the queue")
        return
    mount = find_mount(folder)
    yield from _examine_file_system(folder, mount, whole_machine)
    yield from _examine_room(folder)
    yield from _examine_sync(folder, mount)


def _examine_file_system(folder: Path, mount: Mount, whole_machine: str) -> Iterator[Finding]:
    if mount.kind in NETWORK:
        remedy = "keep the store on a local disk, and let other machines use it over HTTP (penstock serve)"
        yield wrong(
            "disk", f"{folder} is on a network file system ({mount.kind}): {whole_machine} work on one machine only", remedy
        )
    elif mount.kind in MEMORY:
        yield wrong("disk", f"{folder} is in memory ({mount.kind}): a reboot loses all messages", "keep the store on a disk")
    elif mount.kind == "overlay":
        yield note("disk", f"{folder} is a layer of a container: messages go with it", "mount a volume there")
    else:
        yield ok("disk", f"{folder} is on {mount.kind}")
    if "ro" in mount.options:
        yield wrong(
            "disk", f"{folder} is mounted read-only", "mount it for writing; a disk with errors is mounted so by itself"
        )
    if {"nobarrier", "barrier=0"} & mount.options:
        yield wrong(
            "sync", f"{folder} is mounted without barriers: a power cut may lose what was synced", "mount it with barriers"
        )


def _examine_room(folder: Path) -> Iterator[Finding]:
    room = os.statvfs(folder)
    free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    what = f"{size(free)} of {size(whole)} are free"
    if free < LITTLE or free < min(whole * LITTLE_SHARE, PLENTY):
        yield wrong("disk", f"it is nearly full: {what}", "make room; a full store takes no messages, but can be drained")
    else:
        yield ok("disk", what)
    if room.f_files and room.f_favail < FEW_NAMES:
        yield wrong("disk", f"only {room.f_favail:,} more files can be made on it", "remove files")


def _examine_sync(folder: Path, mount: Mount) -> Iterator[Finding]:
    """Write, sync and lock a file without a name, as the stores do."""
    try:
        taken = _sync_times(folder)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            yield wrong("permissions", f"no file can be made in {folder}: {error.strerror}", f"let {_user()} write there")
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            yield wrong("disk", f"{folder} has no room for one more page: {error.strerror}", "make room")
        else:
            yield wrong("sync", f"{folder} cannot sync or lock files: {error.strerror}", "keep the store on another disk")
        return
    if mount.kind in MEMORY:
        return
    each = median(taken)
    what = f"a sync takes {each * 1000:.2g} ms"
    if each > SLOW_SYNC:
        yield note("sync", f"{what}: at most {1 / each:.0f} commits a second", "use a faster disk, or send in batches")
    else:
        yield ok("sync", what)


def _sync_times(folder: Path) -> list[float]:
    taken = []
    with tempfile.TemporaryFile(dir=folder) as probe:
        fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in range(SYNCS):
            os.write(probe.fileno(), bytes(4096))
            began = time.perf_counter()
            os.fsync(probe.fileno())
            taken.append(time.perf_counter() - began)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return taken


def _examine_rights(paths: list[Path]) -> Iterator[Finding]:
    for path in paths:
        wanted = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
        if path.exists() and not os.access(path, wanted):
            owner = path.stat().st_uid
            yield wrong(
                "permissions",
                f"{_user()} may not read and write {path}, which is user {owner}'s",
                "run all programs as one user",
            )
            return
    public = next((path for path in paths[1:] if path.exists() and path.is_file() and path.stat().st_mode & stat.S_IROTH), None)
    if public is not None:
        yield note(
            "permissions", f"every user of this machine can read {public}", f"chmod o-rwx {public}, if that is not wanted"
        )
    else:
        yield ok("permissions", f"{_user()} may read and write the store")


def _user() -> str:
    return f"user {os.geteuid()}"


def _schema(path: Path) -> Finding:
    newest = max(read_sql(WORDS, TEXTS)[0])
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            ((found,),) = connection.execute("SELECT value FROM penstock_meta WHERE name = 'version'").fetchall()
        finally:
            connection.close()
    except apsw.NotADBError:
        return wrong("store", f"{path} is no SQLite database", "give another path, or restore a backup")
    except (apsw.Error, ValueError) as error:
        return wrong("store", f"{path} cannot be read: {error}", "penstock check says more")
    return compare_schema("store", f"the SQLite file {path} of {size(path.stat().st_size)}", int(str(found)), newest)


def compare_schema(subject: str, what: str, found: int, newest: int) -> Finding:
    if found > newest:
        return wrong(subject, f"{what} has schema {found}; this Penstock knows {newest}", "use a newer Penstock")
    if found < newest:
        return note(subject, f"{what} has schema {found}", f"the next program that opens it brings it to {newest}")
    return ok(subject, f"{what}, schema {found}")


def _examine_clock(records: ClockFiles, visit: Visit) -> Iterator[Finding]:
    """The store's clock does not step. After a step of the wall clock, it makes the difference up slowly."""
    try:
        course: Course | None = records.read(boot() or "")
    except OSError:
        return
    if course is not None:
        now = steady()
        yield compare_clocks("the clock of the store", (course.show(now) - visit.wall()) / 1_000_000)

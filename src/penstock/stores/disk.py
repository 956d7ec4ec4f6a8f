"""Disk access for every store that has one: syncing, and translating OS errors."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from penstock.errors import StoreError, StoreFull, StoreReadOnly

PIECE = 65536
AT_FDCWD, RENAME_NOREPLACE = -100, 1
_libc = ctypes.CDLL(None, use_errno=True)
_renameat2 = getattr(_libc, "renameat2", None)
if _renameat2:
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def sync(path: Path | str) -> None:
    """Sync a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_whole(path: str) -> bytes | None:
    """The content of a small file, with as few system calls as possible; None if it does not exist."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        content = os.read(handle, PIECE)
        while len(content) % PIECE == 0 and (more := os.read(handle, PIECE)):
            content += more
        return content
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file in one step: a reader sees either the old content or the new."""
    draft = path.with_name(f"{path.name}.{os.getpid()}~")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while content:
            content = content[os.write(handle, content) :]
        if durable:
            os.fsync(handle)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    finally:
        os.close(handle)
    draft.rename(path)
    if durable:
        sync(path.parent)


PRIVATE = 0o600
"""The permissions of a store's first file. What is made beside it later gets those that it has by then (`folder_mode`)."""


def make_private(path: str | Path) -> None:
    """Create an empty file for its owner alone, unless there is one. Nothing is opened: closing it would drop the locks that
    this process may have on it by then."""
    with suppress(FileExistsError):
        os.mknod(path, PRIVATE | stat.S_IFREG)


def folder_mode(beside: str | Path) -> int:
    """The permissions of a folder that belongs to this file: for those that may use the file."""
    try:
        mode = os.stat(beside).st_mode & 0o666
    except OSError:
        mode = PRIVATE
    return mode | (mode & 0o444) >> 2


def sync_file_system(folder: Path) -> None:
    if not hasattr(_libc, "syncfs"):
        os.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


def rename_new(source: str, target: str) -> None:
    """Rename, but never over another file: raises `FileExistsError`."""
    if _renameat2 and _renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (0, errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(target))
    os.link(source, target)  # the file system does not support this rename
    os.unlink(source)


def remove_folder(path: Path | str) -> None:
    """Remove a folder and its content. What cannot be removed stays.

    Not ``shutil.rmtree``: interrupted in its ``close``, it closes the same descriptor again, which another thread may have."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*folders, *files):
            with suppress(OSError):  # the folder is gone already; a link to one is not
                os.unlink(f"{folder}/{name}")
        with suppress(OSError):
            os.rmdir(folder)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def refusal(who: object, error: OSError) -> StoreError:
    """An operating system error that happened to ``who``, as a Penstock error."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFull(f"{who}: no space left on its disk")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return StoreReadOnly(f"{who} cannot be written: {error.strerror}")
    return StoreError(f"{who}: {error}")

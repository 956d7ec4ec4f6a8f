"""Segments that writers have staged, as files.

    FOLDER/WRITER/BATCH.NAME      a segment, last modified when it was staged; NAME ends in ~ while it is being written

SQLite keeps FOLDER beside the database (FILE-staged), the file stores in their sidecar folder. Staging takes no connection and
no lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.stores.disk import folder_mode, refusal, sync
from penstock.stores.ports import Staged, Staging


def staging_folder(path: str | Path) -> Path:
    """The folder of segments for the SQLite database at ``path``."""
    return Path(f"{path}-staged")


class StagedFiles(Staging):
    def __init__(
        self,
        folder: Path,
        *,
        durable: bool,
        admit: Callable[[int], object] = lambda _size: None,
        beside: str | Path | None = None,
    ) -> None:
        """``durable``: a segment is on the disk when `stage` returns. ``admit`` is called with the size before each write.
        ``beside``: the file to which the folder belongs, if it is not within a folder of the store."""
        self.folder = folder
        self._beside = beside
        self._durable = durable
        self._admit = admit

    def __str__(self) -> str:
        return f"the folder {self.folder}"

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        self._admit(len(segment))
        folder, path = self.folder / writer, self._path(writer, batch, name)
        with self._translating():
            while True:
                try:
                    handle = os.open(f"{path}~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                    break
                except FileNotFoundError:  # this writer's first segment, or another process has just removed the last
                    if self._beside is not None:
                        self.folder.mkdir(folder_mode(self._beside), exist_ok=True)
                    folder.mkdir(parents=True, exist_ok=True)
            try:
                rest = memoryview(segment)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.utime(handle, ns=(now * 1000, now * 1000))
                if self._durable:
                    os.fsync(handle)
            except BaseException:
                with suppress(OSError):
                    os.unlink(f"{path}~")
                raise
            finally:
                os.close(handle)
            os.rename(f"{path}~", path)
            if self._durable:
                sync(folder)
                sync(self.folder)

    def staged(self, writer: str | None = None) -> list[Staged]:
        found: list[Staged] = []
        with self._translating(), suppress(FileNotFoundError):  # nothing was ever staged
            for each in os.listdir(self.folder) if writer is None else [writer]:
                with suppress(FileNotFoundError, NotADirectoryError):
                    for entry in os.scandir(self.folder / each):
                        batch, _, name = entry.name.partition(".")
                        if batch.isdecimal():
                            with suppress(FileNotFoundError):
                                found.append(Staged(each, int(batch), name, entry.stat().st_mtime_ns // 1000))
        return found

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        with self._translating():
            try:
                return Path(self._path(writer, batch, name)).read_bytes()
            except FileNotFoundError:
                return None

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        with self._translating():
            if names is None:
                gone = [(found.batch, found.name) for found in self.staged(writer) if found.batch <= batch]
            else:
                gone = [(batch, name) for name in names]
            for number, name in gone:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(writer, number, name))
            with suppress(OSError):  # not empty, or it never existed
                os.rmdir(self.folder / writer)

    def _path(self, writer: str, batch: int, name: str) -> str:
        return f"{self.folder}/{writer}/{batch}.{name}"

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise refusal(self, error) from error

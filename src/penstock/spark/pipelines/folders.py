"""The folders that pipelines keep, on this machine or in a lake (s3://, gs://, hdfs://): listing and moving files durably."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.errors import BadInput
from penstock.spark.lakes.storage import for_libraries, for_spark
from penstock.stores.disk import sync
from penstock.urls import without_password

NOTES = "penstock.json"
SYNC_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class File:
    path: str
    """Relative to the folder."""
    size: int


class DataFolder:
    """``place`` is a path or a URL; ``url`` the same for Spark."""

    def __init__(self, place: str) -> None:
        scheme = urlsplit(place).scheme
        if len(scheme) > 1 and scheme != "file":
            try:
                self._files, self._root = fs.FileSystem.from_uri(for_libraries(place))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:  # OSError: Hadoop is missing
                told = without_password(f"{place!r:.200} is not a folder that can be opened: {error}")
                raise BadInput(f"{told}; a path with a colon in its first name is written ./…") from None
            self.url, self.local = for_spark(place).rstrip("/"), False
        else:
            self._files = fs.LocalFileSystem()
            # Spark drops '..' from paths, even after a symbolic link; so must we, to mean the same folder.
            self._root = os.path.abspath(unquote(urlsplit(place).path) if scheme == "file" else place)  # noqa: PTH100
            self.url, self.local = self._root, True

    def __truediv__(self, name: str) -> DataFolder:
        return DataFolder(f"{self.url}/{name}")

    @property
    def is_file(self) -> bool:
        return bool(self._files.get_file_info(self._root).type == fs.FileType.File)

    @property
    def exists(self) -> bool:
        return bool(self._files.get_file_info(self._root).type != fs.FileType.NotFound)

    def files(self, below: str = "") -> list[File]:
        """All files, at any depth, by name; without our own."""
        root = f"{self._root}/{below}" if below else self._root
        found = self._files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        listed = (File(info.path[len(self._root) + 1 :], info.size) for info in found if info.type == fs.FileType.File)
        return sorted((file for file in listed if below or not file.path.startswith("_")), key=lambda file: file.path)

    def move(self, moves: dict[str, str]) -> None:
        """Move files into their places, replacing what was there. On a disk they are synced before anybody sees them."""
        folders = {str(Path(self._root, new).parent) for new in moves.values()}
        for folder in folders:
            self._files.create_dir(folder)
        if self.local:
            for old in moves:
                sync(f"{self._root}/{old}")
        for old, new in moves.items():
            self._files.move(f"{self._root}/{old}", f"{self._root}/{new}")
        if self.local:
            for folder in {*folders, *(str(Path(folder).parent) for folder in folders), self._root}:
                sync(folder)

    @contextmanager
    def syncing(self, below: str) -> Iterator[None]:
        """Sync files while they are being written, so that `move` finds little left to sync."""
        done = Event()
        failed: list[OSError] = []

        def follow() -> None:
            while not done.wait(SYNC_EVERY) and not failed:
                try:
                    for file in self.files(below):
                        sync(f"{self._root}/{file.path}")
                except FileNotFoundError:  # Spark has moved or removed it: the others are synced next time
                    continue
                except OSError as error:  # reported only once: the next sync would succeed
                    failed.append(error)

        thread = Thread(target=follow, daemon=True)
        if self.local:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if self.local:
                thread.join()
        if failed:
            raise failed[0]

    def remove(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._files.delete_file(f"{self._root}/{path}")
            except FileNotFoundError:
                continue

    def clear(self, name: str) -> None:
        try:
            self._files.delete_dir(f"{self._root}/{name}")
        except FileNotFoundError:
            return

    def read(self, name: str) -> str | None:
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                return file.read().decode()  # type: ignore[no-any-return]
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Atomic: all of it or nothing."""
        self._files.create_dir(str(Path(self._root, name).parent))
        with self._files.open_output_stream(f"{self._root}/{name}~") as file:
            file.write(text.encode())
        self.move({f"{name}~": name})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; a lake has no locks."""
        if not self.local:
            yield
            return
        with held(Path(self._root, ".lock"), f"the checkpoint {self.url} is in use by another process"):
            yield


@contextmanager
def held(lock: Path, refusal: str) -> Iterator[None]:
    """One process at a time; the lock ends with its process."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(refusal) from None
        yield


def checkpoint_id(checkpoint: DataFolder, pipeline: str, about: dict[str, Any]) -> str:
    """The id of all runs with this checkpoint, made with it. `BadInput` if the checkpoint belongs to another pipeline: Spark
    would misread its offsets."""
    about = {name: without_password(value) if isinstance(value, str) else value for name, value in about.items()}
    noted = checkpoint.read(NOTES)
    if noted is None:
        notes = {"pipeline": pipeline, "about": about, "id": secrets.token_hex(4)}
        checkpoint.write(NOTES, json.dumps(notes))
        return str(notes["id"])
    notes = json.loads(noted)
    if (notes["pipeline"], notes["about"]) != (pipeline, about):
        was = ", ".join(f"{name} {value}" for name, value in notes["about"].items())
        raise BadInput(
            f"the checkpoint {checkpoint.url} belongs to another pipeline: {notes['pipeline']}, {was}; give another one"
        )
    return str(notes["id"])


def check_no_pattern(path: str) -> None:
    """Spark takes a path that looks like a pattern for one: it does not find the file again, and a stream reads the other files
    of a batch several times."""
    if set(path) & set("{}[]*?\\"):
        raise BadInput(f"Spark takes {path!r:.200} for a pattern: rename it, so that it has none of {{}}[]*?\\")

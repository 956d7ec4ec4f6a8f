"""What a table of a lake must do, and how tables are named.

delta:PLACE                      a folder or a URL (s3://…), which is the table
iceberg:CATALOG/NAMESPACE.TABLE  CATALOG is a name that PyIceberg's configuration knows, or a folder (./lake, /data/lake) in
                                 which the catalog is a SQLite file
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock.errors import BadInput, MissingExtra
from penstock.spark.lakes.storage import for_libraries, is_local

KINDS = ("delta", "iceberg")


class CommitConflict(Exception):
    """Another writer has changed the table since it was opened; nothing was committed."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a task has written, and what the table wants to know of it."""

    path: str
    """As the table's files are named in its metadata."""
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str
    """Statistics as Delta has them, in JSON."""


@dataclass(frozen=True, slots=True)
class LakeBatch:
    """A batch of an application."""

    app: str
    version: int
    content: str
    """The count and digest of its rows."""


class Output(Protocol):
    """Where tasks write files; it is pickled to them."""

    @property
    def in_files(self) -> bool:
        """Whether the files have the columns of partitions, too."""
        ...

    def path(self, name: str) -> str: ...

    def open(self, path: str) -> Any:
        """A file to write to."""
        ...

    def local(self, path: str) -> str | None:
        """Its path, if it is in a folder."""
        ...


class TableReader(Protocol):
    """Reads parts of a table; it is pickled to executors."""

    def batches(self, part: Any) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class Scan:
    reader: TableReader
    parts: list[Any]
    """Its files, as the reader wants them named."""


class LakeTable(Protocol):
    """One table. It is opened once and then a picture of it as it was; `refresh` makes a new one."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> str | None:
        """The local folder that has the table, if there is one."""
        ...

    @property
    def notes(self) -> str | None:
        """Where checkpoints of pipelines that write to it are kept by default."""
        ...

    def refresh(self) -> None: ...

    def schema(self) -> pa.Schema | None:
        """None: there is no table yet."""
        ...

    def partition(self) -> list[str]: ...

    def create(self, schema: pa.Schema, partition: Sequence[str]) -> None:
        """Unless somebody else has created it."""
        ...

    def add_columns(self, fields: Sequence[pa.Field]) -> None: ...

    def output(self) -> Output: ...

    def committed(self, app: str) -> int | None:
        """The version of the application's last batch."""
        ...

    def content(self, app: str) -> str | None:
        """Of that batch; None if the table does not know any more."""
        ...

    def commit(self, batch: LakeBatch, files: Sequence[DataFile]) -> None:
        """All files, under the batch's application and version, in one transaction on the table as it was opened;
        `CommitConflict` if that is not possible because the application has committed something meanwhile."""
        ...

    def scan(self, since: str | None, until: str | None) -> Scan:
        """``since`` and ``until`` may leave out some of other days, in the partition ``day``."""
        ...

    def compact(self, keep: int | None, /) -> dict[str, int]:
        """Make many small files few; with ``keep``, remove files that no version of the last ``keep`` hours has."""
        ...


@dataclass(frozen=True, slots=True)
class TableAddress:
    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"

    @property
    def folder(self) -> str | None:
        """The local folder in which its files are, if they are in one."""
        place = self.place if self.kind == "delta" else self.place.rpartition("/")[0]
        return place if is_local(place) else None

    def open(self) -> LakeTable:
        try:
            if self.kind == "delta":
                from penstock.spark.lakes.delta import DeltaLakeTable

                return DeltaLakeTable(self.place)
            from penstock.spark.lakes.iceberg import IcebergLakeTable

            return IcebergLakeTable(*self.place.rsplit("/", 1))
        except ModuleNotFoundError as error:
            raise MissingExtra(f"a table of {self.kind.capitalize()}", "lakes") from error


def is_address(text: str) -> bool:
    return text.partition(":")[0] in KINDS and ":" in text


def table_address(text: str, below: str | Path | None = None) -> TableAddress:
    """Paths are relative to the folder ``below``, or to the working directory."""
    kind, _, place = text.partition(":")
    if not is_address(text) or not place:
        raise BadInput(f"{text!r:.200} names no table: write delta:FOLDER or iceberg:CATALOG/NAMESPACE.TABLE")
    if kind == "delta":
        return TableAddress(kind, _absolute(place, below))
    catalog, slash, table = place.rpartition("/")
    if not slash or not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)+", table):
        raise BadInput(f"{text!r:.200} names no table: write iceberg:CATALOG/NAMESPACE.TABLE")
    return TableAddress(kind, f"{_absolute(catalog, below) if '/' in catalog or catalog == '.' else catalog}/{table}")


def _absolute(place: str, below: str | Path | None) -> str:
    if place.startswith("file:"):
        place = unquote(urlsplit(place).path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", place):
        return for_libraries(place).rstrip("/")
    path = os.path.normpath(os.path.join(below or os.getcwd(), place))  # noqa: PTH109, PTH118
    if set(path) & set("%?"):
        raise BadInput(f"the libraries take {path!r:.200} for a URL: rename it, so that it has none of %?")
    return path

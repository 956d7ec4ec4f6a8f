"""Messages that a pipeline has claimed, as Parquet, until every query that reads them has committed them.

    LANDED/00000012/part-….parquet     the messages of batch 12 of the query that takes them
    LANDED/00000012/_offset.json       what Spark has logged as its offset: {"reader": …, "epoch": …, "claims": …}
    LANDED/00000012/_done              in the newest batch, which stays: its messages are in the sinks, and gone from here

A batch is written beside LANDED, synced, and renamed into its place before Spark commits it. So it is there whole or not at
all, and when Spark replays the batch, it is found. Its messages stay claimed in their queue until every query has committed
them.

Spark does not report which files a query is done with, but its checkpoint shows it:

    commits/N            batch N is committed
    offsets/N            v1, one line of metadata, then a line for each source: {"logOffset": M} for one of files
    sources/I/M          v1, then a line for each file: {"path": "file:///…", "timestamp": …, "batchId": M};
                         M.compact also has all before it
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import ReaderSetBack
from penstock.stores.disk import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipelines.limits import BatchLimits

OFFSET, DONE = "_offset.json", "_done"
"""Spark ignores files whose names begin like this."""


@dataclass
class Landing:
    """Lands each batch, once; Spark may pickle it to another process."""

    landed: str
    staged: str
    checkpoint: str
    """Of the query that takes the messages."""
    limits: BatchLimits | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        landed, staged = Path(self.landed), Path(self.staged)
        offset, place = _logged(Path(self.checkpoint), batch), landed / f"{batch:08}"
        newest = max((number for number, _ in _batches(landed)), default=-1)
        if batch <= newest:
            if batch == newest and offset_of(place) == offset:
                return
            raise ReaderSetBack(
                f"batch {batch} of {self.checkpoint} was landed before, with other messages, and the last one is {newest}: the "
                "checkpoint was set back. Its messages stay claimed: `penstock readers QUEUE` shows them"
            )
        shutil.rmtree(staged, ignore_errors=True)
        frame.write.parquet(str(staged))
        if self.limits is not None:
            self.limits.judge(frame.sparkSession.read.schema(frame.schema).parquet(str(staged)))
        (staged / OFFSET).write_text(json.dumps(offset))
        for file in (*staged.iterdir(), staged):
            sync(file)
        os.rename(staged, place)  # noqa: PTH104
        for folder in (landed, staged.parent):
            sync(folder)


def finished(landed: Path, take: Path, checkpoints: Sequence[Path]) -> list[Path]:
    """The first batches, in their order, that the taking query has committed and that all these queries are done with."""
    if not checkpoints:
        return []
    committed = _committed(take)
    done = set.intersection(*(_read_by(checkpoint) for checkpoint in checkpoints))
    found = []
    for number, folder in _batches(landed):
        if committed is None or number > committed or any(str(file) not in done for file in folder.glob("*.parquet")):
            break
        found.append(folder)
    return [] if found and (found[-1] / DONE).exists() else found


def remove(landed: Path, folders: Sequence[Path]) -> None:
    """Remove what is in the sinks. The newest batch leaves a mark, by which a replay of it is recognised."""
    newest = _batches(landed)[-1][1]
    for folder in folders:
        if folder == newest:
            (folder / DONE).touch()
            for file in folder.iterdir():
                if file.name not in (OFFSET, DONE):
                    file.unlink()
        else:
            shutil.rmtree(folder)


def offset_of(folder: Path) -> dict[str, Any] | None:
    """The offset of a landed batch; None if a run has died while it removed the batch."""
    try:
        found: dict[str, Any] = json.loads((folder / OFFSET).read_text())
    except FileNotFoundError:
        return None
    return found


def reader_of(checkpoint: Path) -> str | None:
    """The reader of a query that takes messages; None if it has claimed nothing yet."""
    last = max(_numbers(checkpoint / "offsets"), default=None)
    return None if last is None else str(_logged(checkpoint, last)["reader"])


def _batches(landed: Path) -> list[tuple[int, Path]]:
    return sorted((int(folder.name), folder) for folder in landed.iterdir() if folder.name.isdecimal())


def _logged(checkpoint: Path, batch: int) -> dict[str, Any]:
    """The offset of the first source, which Spark logs before it runs the batch."""
    found: dict[str, Any] = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
    return found


def _committed(checkpoint: Path) -> int | None:
    return max(_numbers(checkpoint / "commits"), default=None)


def _numbers(log: Path) -> list[int]:
    try:
        return [int(file.name) for file in log.iterdir() if file.name.isdecimal()]
    except FileNotFoundError:  # the query has not begun, or is just beginning
        return []


def _read_by(checkpoint: Path) -> set[str]:
    """The files up to the last batch that the query has committed."""
    last = _committed(checkpoint)
    try:
        offsets = [] if last is None else (checkpoint / "offsets" / str(last)).read_text().splitlines()[2:]
    except FileNotFoundError:  # removed meanwhile: a later one is committed
        return set()
    found: set[str] = set()
    for source, offset in enumerate(offsets):
        reached = json.loads(offset) if offset.startswith("{") else {}
        if "logOffset" in reached:
            log = _entries(checkpoint / "sources" / str(source))
            found.update(path for path, entry in log if entry["batchId"] <= reached["logOffset"])
    return found


def _entries(log: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files in one of Spark's logs, and their metadata."""
    for file in log.glob("[0-9]*"):
        try:
            lines = file.read_text().splitlines()[1:]
        except FileNotFoundError:  # compacted meanwhile: its entries are missed this time
            continue
        for entry in map(json.loads, lines):
            yield unquote(urlsplit(entry["path"]).path), entry

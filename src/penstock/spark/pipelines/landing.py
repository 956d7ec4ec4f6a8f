"""Deletes landed files (messages taken from a queue) once every query that reads them has committed them.

Spark does not report which files a query is done with, but its checkpoint shows it:

    commits/N            batch N is committed
    offsets/N            v1, one line of metadata, then a line for each source: {"logOffset": M} for one of files
    sources/I/M          v1, then a line for each file: {"path": "file:///…", "timestamp": …, "batchId": M};
                         M.compact also has all before it

and a log in the folder itself lists its files (others are from a driver that died before it logged them):

    _spark_metadata/N    v1, then a line for each file: {"path": "file:///…", …}; N.compact also has all before it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def tidy(landed: Path, checkpoints: Sequence[Path]) -> int:
    """Delete the landed files that all these queries are done with; returns how many."""
    if not checkpoints:
        return 0
    done = set.intersection(*(_done(checkpoint) for checkpoint in checkpoints))
    return _delete(file for file in landed.glob("*.parquet") if str(file) in done)


def sweep(landed: Path) -> int:
    """Delete what dead drivers left behind; only while no query takes from the queue.

    Files are compared by name, which is unique: a folder has many spellings, and Spark may have logged another."""
    known = {path.rpartition("/")[2] for path, _ in _entries(landed / "_spark_metadata")}
    return _delete(file for file in landed.glob("*.parquet") if file.name not in known)


def _delete(files: Iterable[Path]) -> int:
    gone = 0
    for file in files:
        file.unlink(missing_ok=True)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        gone += 1
    return gone


def _done(checkpoint: Path) -> set[str]:
    """The files up to the last batch that the query has committed."""
    try:
        last = max((int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()), default=None)
        offsets = [] if last is None else (checkpoint / "offsets" / str(last)).read_text().splitlines()[2:]
    except FileNotFoundError:  # it has not begun, or is just beginning
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

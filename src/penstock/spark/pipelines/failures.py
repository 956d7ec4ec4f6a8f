"""Makes Spark's errors readable: one line that names the column, the file or the queue, and the place in the SQL.

An error that we raised ourselves, in a Python worker or below a stream, is recovered from Spark's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, PySparkValueError

from penstock import errors
from penstock.errors import BadInput, PenstockError, QueueNotFound, StoreError

OURS = re.compile(r"^penstock[\w.]*\.(\w+): (.*)", re.M)
RAISED = re.compile(r"^(\w[\w.]*(?:Error|Exception|Interrupt)): (.+)", re.M)
CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
WRAPPERS = re.compile(
    r"STREAM_FAILED|FOREACH_BATCH_USER_FUNCTION_ERROR|FOREACH_USER_FUNCTION_ERROR|TASK_WRITE_FAILED|WRITING_JOB_ABORTED"
)
SQL_AT = re.compile(r"\bline (\d+),? (pos|position) (\d+)")
AT = re.compile(r" \(line (\d+), position \d+\)")
BAD = re.compile(
    "USER_RAISED|UNRESOLVED|PARSE|CAST|DATATYPE|PATH_NOT_FOUND|FAILED_READ_FILE|MALFORMED|MISMATCH|INVALID|UNSUPPORTED|CANNOT_PARSE"
)


class PipelineFailed(StoreError):
    """Spark failed for a reason that is not in its input."""


def readable(error: BaseException) -> BaseException:
    """The error to show: ours as it is, Spark's as one line of ours, anything else untouched."""
    if isinstance(error, PenstockError) or not isinstance(error, (PySparkException, Py4JError)):
        return error
    text = str(error)
    return _our_own(text) or _sparks_own(error, text)


def _our_own(text: str) -> PenstockError | None:
    found = OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, PipelineFailed)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        kind = PipelineFailed
    made: PenstockError = kind.__new__(kind, message)
    Exception.__init__(made, message)
    if isinstance(made, QueueNotFound):
        made.name = message.partition("'")[2].rpartition("'")[0]
    return made


def _sparks_own(error: BaseException, text: str) -> PenstockError:
    conditions = [found for found in CONDITION.finditer(text) if not WRAPPERS.fullmatch(found[1])]
    if not conditions:
        return PipelineFailed(_unnamed(text))
    condition, message = conditions[0][1], text[conditions[0].end() :]
    bad = isinstance(error, (AnalysisException, IllegalArgumentException, PySparkValueError)) or BAD.search(condition)
    kind = BadInput if bad else PipelineFailed
    return kind(_told(condition, message, text) + _place(text))


def _told(condition: str, message: str, text: str) -> str:
    head = re.split(r"\s+SQLSTATE:|\n\s*== |\n\tat ", message, maxsplit=1)[0]
    named = " ".join(head.split())
    if condition.startswith("UNRESOLVED_COLUMN") and (found := re.search(r"name (`.*?`) cannot be resolved", named)):
        has = re.search(r"Did you mean one of the following\? \[(.*)\]", named)
        return f"there is no column {found[1].strip('`')!r}" + (f"; there are {has[1].replace('`', '')}" if has else "")
    if condition == "PATH_NOT_FOUND" and (found := re.search(r"does not exist: (\S+?)\.?$", named)):
        return f"there is no file {_path(found[1])}"
    if condition.startswith("FAILED_READ_FILE") and (found := re.search(r"reading file (\S+?)\.?(\s|$)", named)):
        if "FOOTER" in condition or "is not a Parquet file" in text:
            return f"the file {_path(found[1])} is not Parquet, or it is damaged"
        rest = named[found.end() :].strip()
        return f"the file {_path(found[1])} cannot be read: {rest or 'it is damaged, or not of its format'}".rstrip(".")
    if condition == "DATA_SOURCE_NOT_FOUND" and re.search(r"source: penstock\b", named):
        return "the Python that Spark runs (PYSPARK_PYTHON) has no Penstock: install penstock[spark] there, too"
    if "Traceback (most recent call last)" in message:
        return _unnamed(message)
    return named.rstrip(". ")


def _path(text: str) -> str:
    return re.sub("^file:/+", "/", text)


def _place(text: str) -> str:
    found = SQL_AT.search(text)
    # Spark counts "pos" from 0, and "position" from 1.
    return f" (line {found[1]}, position {int(found[3]) + (found[2] == 'pos')})" if found else ""


def _unnamed(text: str) -> str:
    """For an error that Spark has no name for: what a Python worker raised, or the first line that says something."""
    if raised := RAISED.findall(text):
        return f"{raised[-1][0].rpartition('.')[2]}: {raised[-1][1]}"
    text = re.sub(r"^\[\w+\] Query \[.*?\] terminated with exception: ", "", text.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("An error occurred while")]
    return re.sub(r"( SQLSTATE: \w+)+$", "", lines[0].removeprefix(": ")) if lines else "Spark failed and did not say why"


@contextmanager
def at_line(where: str, first_line: int | None = None) -> Iterator[None]:
    """Make errors say where in the file: at the line that SQL names, if the text begins at ``first_line``."""
    try:
        yield
    except (PySparkException, PenstockError) as error:
        known = readable(error)
        text = str(known)
        if first_line is not None and (found := AT.search(text)):
            where = re.sub(r"line \d+", f"line {first_line + int(found[1]) - 1}", where, count=1)
            text = AT.sub("", text)
        named = text.startswith(f"{where.partition(',')[0]}, line ")  # by one who knows better where
        known.args = (text if named else f"{where}: {text}",)
        raise known from None

"""Loads files into queues: each row becomes one message, however often the load is restarted.

Parquet, CSV and text are read by Spark's own file streams, whose checkpoint knows which files are done; JSON lines are read as
text, so that a message's body is the line, byte for byte. Rows that cannot be messages are diverted, with the reason.

With a rate, the rows are first split into files of one second each (CHECKPOINT/rows), which are then sent one a second.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    DataType,
    FractionalType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import penstock
from penstock.errors import BadInput
from penstock.message import MAX_NUMBER
from penstock.policy import MAX_BATCH
from penstock.spark.lakes.tables import is_address
from penstock.spark.pipelines.access import store_options
from penstock.spark.pipelines.archive import known_types
from penstock.spark.pipelines.folders import DataFolder, check_no_pattern, checkpoint_id
from penstock.spark.pipelines.progress import COUNTED, Totals, Watch
from penstock.spark.pipelines.reporting import ReportPlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENDINGS = {
    "parquet": "parquet", "json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv",
    "txt": "text", "text": "text", "log": "text",
}  # fmt: skip
FORMATS = ("parquet", "json", "csv", "text")
TARGETS = ("queue", "content_type", "key", "group", "delay", "deadline", "attributes")
ATTRIBUTE = "attribute."
READ = {"maxFileAge": "36500d"}
"""A file is never too old to be read, even if others of the folder are much newer."""
MUCH = {"maxBytesPerTrigger": str(256 * 2**20)}
"""The bytes of files in one batch."""
CORRUPT = "_corrupt"
JSON = "application/json"


def load(
    spark: SparkSession,
    files: str | Sequence[str],
    url: str,
    queue: str,
    *,
    checkpoint: str,
    format: str | None = None,
    body: str | None = None,
    columns: Mapping[str, str] | None = None,
    schema: str | None = None,
    rate: int | None = None,
    bad_queue: str | None = None,
    bad_file: str | None = None,
    watch: Watch | None = None,
    **options: str,
) -> Totals:
    """Send each row of the files to a queue. ``options`` are those of Spark's file streams.

    ``body``: the column that is the body, or ``json`` for the whole row. ``columns``: where the rest of a message comes from,
    such as {"key": "order_id", "attribute.region": "region"}. ``schema``: the types of a CSV's columns (DDL). An archive is
    loaded unchanged. The answer's ``rows`` are those that became messages, and its ``bad`` those that went to ``bad_file``;
    with ``bad_queue``, ``rows`` are all rows, and ``bad`` is None."""
    if rate is not None and not 1 <= rate <= MAX_NUMBER:
        raise BadInput(f"the rate is {rate}; it must be at least 1 row a second")
    if bad_queue is not None and bad_file is not None:
        raise BadInput("bad rows go to a queue or to a file, not to both")
    given = [files] if isinstance(files, str) else files
    for path in given:
        if is_address(path):
            raise BadInput(
                f"{path} is a table, and load reads files: replay sends the messages of an archive, run those of other tables"
            )
    paths = [DataFolder(path).url for path in given]
    kind = format or _format(paths)
    notes = DataFolder(checkpoint)
    with notes.locked():
        # With a rate, the checkpoint covers other files: continuing without it would load everything again.
        about = {"files": ",".join(paths), "store": url, "queue": queue, "rate": "none" if rate is None else "some"}
        run = checkpoint_id(notes, "load", about)
        bad = _bad_queue(url, f"load-bad-{run}") if bad_file is not None else bad_queue
        before = _count(url, bad) if bad_file is not None and bad is not None else 0  # a run that was stopped has left them
        reading = {**READ, **({} if "maxFilesPerTrigger" in options else MUCH), **options}
        rows = Shape(spark, paths, kind, schema, reading).messages(body, dict(columns or {}), queue, bad)
        watch = (watch or Watch("load")).report_to(ReportPlace(url, writes=[queue]))
        sink = {**store_options(url), **({"badRows": bad} if bad else {})}
        if "queue" not in rows.columns:
            sink["queue"] = queue
        if rate is None:
            rows = rows.observe(COUNTED, F.count(F.lit(1)).alias("rows"))  # without the empty lines of JSON
            writer = rows.writeStream.format("penstock").options(**sink).option("checkpointLocation", f"{notes.url}/load")
            done = watch.follow(writer.trigger(availableNow=True).start())
        else:
            done = _slowly(spark, rows, rate, sink, notes, watch)
        if bad_file is not None and bad is not None:
            done.bad = _count(url, bad) - before
            done.rows -= done.bad
            if not done.stopped:
                _write_down(url, bad, Path(bad_file))
        elif bad_queue is not None:
            done.bad = None  # others may send to that queue, or receive from it
    return done


def _slowly(spark: SparkSession, rows: DataFrame, rate: int, sink: dict[str, str], notes: DataFolder, watch: Watch) -> Totals:
    check_no_pattern(notes.url)
    cut = rows.writeStream.format("parquet").option("path", f"{notes.url}/rows").option("maxRecordsPerFile", str(rate))
    cut.option("checkpointLocation", f"{notes.url}/cut").trigger(availableNow=True).start().awaitTermination()
    return send_slowly(spark, rows.schema, sink, notes, watch)


def send_slowly(spark: SparkSession, schema: StructType, sink: dict[str, str], notes: DataFolder, watch: Watch) -> Totals:
    """Send the rows that were cut into CHECKPOINT/rows, one file a second."""
    parts = spark.readStream.schema(schema).options(**READ).option("maxFilesPerTrigger", "1").parquet(f"{notes.url}/rows")
    writer = parts.writeStream.format("penstock").options(**sink).option("checkpointLocation", f"{notes.url}/load")
    query = writer.trigger(processingTime="1 second").start()

    def end() -> None:
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    threading.Thread(target=_quietly, args=(end,), daemon=True).start()
    return watch.follow(query)


def _quietly(act: Callable[[], None]) -> None:
    with suppress(Exception):  # the caller that follows the query gets the same error
        act()


class Shape:
    """The files as a stream of rows, and the rows as messages."""

    def __init__(
        self, spark: SparkSession, paths: list[str], kind: str, schema: str | None, options: Mapping[str, str]
    ) -> None:
        if kind not in FORMATS:
            raise BadInput(f"format {kind!r:.80} is not one of {', '.join(FORMATS)}")
        if schema is not None and kind != "csv":
            raise BadInput(f"a schema is for CSV; {kind} has its own")
        self.kind = kind
        self._problems: list[Column] = []
        """One column per check: the problem of a row, or null if it has none."""
        path, paths = _pattern(paths), [_escaped(path) for path in paths]
        _check_files(spark, paths)  # raises an error if a file is missing
        stream = spark.readStream.options(**options)
        if kind == "parquet":
            self.schema = known_types(spark.read.parquet(*paths).schema)
            self.rows = stream.schema(self.schema).parquet(path)
        elif kind == "csv":
            given = spark.createDataFrame([], schema).schema if schema else spark.read.csv(paths, header=True).schema
            self.schema = StructType([*given, StructField(CORRUPT, StringType())])
            self.rows = stream.schema(self.schema).csv(
                path, header=True, enforceSchema=False, columnNameOfCorruptRecord=CORRUPT
            )
        else:
            self.schema = StructType([StructField("value", StringType())])
            self.rows = stream.text(path)
            if kind == "json":
                self.rows = self.rows.where("trim(value) <> ''").withColumn("parsed", F.expr("try_parse_json(value)"))

    def messages(self, body: str | None, columns: dict[str, str], queue: str, bad: str | None) -> DataFrame:
        names = set(self.schema.fieldNames())
        archived = self.kind == "parquet" and {"body", "attributes", "attribute_types"} <= names
        chosen: dict[str, Column] = {}
        if archived:
            chosen = {
                name: F.col(name) for name in ("content_type", "attributes", "attribute_types", "group", "key") if name in names
            }
        chosen |= self._mapped(columns, chosen, queue)
        chosen["body"] = self._body(body, chosen)
        why = self._why_bad()
        if why is not None:
            chosen = self._diverted(chosen, why, queue, bad)
        return self.rows.select(*(column.alias(name) for name, column in chosen.items()))

    def _body(self, body: str | None, chosen: dict[str, Column]) -> Column:
        names = [name for name in self.schema.fieldNames() if name != CORRUPT]
        if body is None:
            body = "body" if "body" in names else "value" if self.kind == "text" else "json"
        if body != "json":
            column, kind = self._column(body)
            return column if isinstance(kind, StringType | BinaryType) else column.cast("string")
        chosen.setdefault("content_type", F.lit(JSON))
        if self.kind == "json":
            return F.col("value").cast("binary")
        return F.to_json(F.struct(*map(_quoted, names))).cast("binary")

    def _mapped(self, columns: dict[str, str], chosen: dict[str, Column], queue: str) -> dict[str, Column]:
        found: dict[str, Column] = {}
        texts: list[Column] = []
        types: list[Column] = []
        for target, name in columns.items():
            column, kind = self._column(name)
            if target.startswith(ATTRIBUTE) and len(target) > len(ATTRIBUTE):
                label = F.lit(target.removeprefix(ATTRIBUTE))
                texts += [label, F.base64(column) if isinstance(kind, BinaryType) else column.cast("string")]
                if tag := _attribute_type(kind):
                    types += [label, F.lit(tag)]
            elif target not in TARGETS:
                raise BadInput(f"a message has no {target!r:.80}; there are {', '.join(TARGETS)} and {ATTRIBUTE}NAME")
            elif target == "delay":
                found[target] = column.cast("double") if isinstance(kind, NumericType) else self._cast(target, column, "double")
            elif target == "deadline":
                found[target] = column if isinstance(kind, TimestampType) else self._cast(target, column, "timestamp")
            elif target == "attributes":
                found[target] = column
            else:
                found[target] = column if isinstance(kind, StringType | BinaryType) else column.cast("string")
        if "queue" in found:
            found["queue"] = F.coalesce(found["queue"].cast("string"), F.lit(queue))
        if texts:
            present = F.map_filter(F.create_map(*texts), lambda _name, value: value.isNotNull())
            found["attributes"] = _joined(found.get("attributes", chosen.get("attributes")), present)
        if types:
            tags = F.map_filter(F.create_map(*types), lambda name, _tag: F.map_contains_key(found["attributes"], name))
            found["attribute_types"] = _joined(chosen.get("attribute_types"), tags)
        return found

    def _cast(self, target: str, column: Column, kind: str) -> Column:
        """A value that cannot be cast makes its row a bad one."""
        cast = column.try_cast(kind)
        told = F.concat(F.lit(f"its {target} is not a {kind}: "), F.substring(column.cast("string"), 1, 80))
        self._problems.append(F.when(column.isNotNull() & cast.isNull(), told))
        return cast

    def _column(self, name: str) -> tuple[Column, DataType]:
        if self.kind == "json":
            path = "$." + name if all(part.isidentifier() for part in name.split(".")) else f"$[{json.dumps(name)}]"
            return F.try_variant_get("parsed", path, "string"), StringType()
        names = [field for field in self.schema.fieldNames() if field != CORRUPT]
        if name not in names:
            raise BadInput(f"there is no column {name!r:.80}; there are {', '.join(names)}")
        return _quoted(name), self.schema[name].dataType

    def _why_bad(self) -> Column | None:
        """Null for a row that could be read; the sink finds any other problem."""
        found = list(self._problems)
        if self.kind == "json":
            found.insert(0, F.when(F.col("parsed").isNull(), F.lit("the line is not JSON")))
        if self.kind == "csv":
            found.insert(0, F.when(F.col(CORRUPT).isNotNull(), F.lit("the line does not fit the columns")))
        return F.coalesce(*found) if found else None

    def _diverted(self, chosen: dict[str, Column], why: Column, queue: str, bad: str | None) -> dict[str, Column]:
        body = chosen["body"].cast("binary")
        lines = {"json": F.col("value").cast("binary"), "csv": F.coalesce(F.col(CORRUPT).cast("binary"), body)}
        line = lines.get(self.kind, body)
        file = F.regexp_replace("_metadata.file_path", "^file:/+", "/")
        if bad is None:
            told = F.concat(F.lit("in "), file, F.lit(": "), why, F.lit(": "), F.substring(line.cast("string"), 1, 200))
            return chosen | {"body": F.when(why.isNull(), chosen["body"]).otherwise(F.raise_error(told))}
        told = F.create_map(F.lit("reason"), why, F.lit("queue"), F.lit(queue), F.lit("file"), file)
        instead = {"body": line, "queue": F.lit(bad), "attributes": told}
        good = {"queue": F.lit(queue), "attributes": F.create_map().cast("map<string,string>"), **chosen}
        good["body"] = body
        good.setdefault("content_type", F.lit("text/plain; charset=utf-8"))
        return {name: F.when(why.isNull(), column).otherwise(instead.get(name, F.lit(None))) for name, column in good.items()}


def _quoted(name: str) -> Column:
    """A column by its whole name: a dot in it selects no field."""
    return F.col("`{}`".format(name.replace("`", "``")))


def _joined(first: Column | None, second: Column) -> Column:
    return second if first is None else F.map_concat(first, second)


def _attribute_type(kind: DataType) -> str | None:
    if isinstance(kind, BinaryType):
        return "bytes"
    return "integer" if isinstance(kind, IntegralType) else "number" if isinstance(kind, FractionalType) else None


def _pattern(paths: list[str]) -> str:
    """Spark streams one folder or one pattern, so a file, or several paths, become a pattern that matches them."""
    if len(paths) == 1 and not DataFolder(paths[0]).is_file:
        return _escaped(paths[0])
    # Leave a comma within the pattern's own braces as it is.
    parts = [re.sub(r"(\\.|\{[^{}]*\})|,", lambda found: found[1] or r"\,", _escaped(path)).split("/") for path in paths]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return "/".join(parts[0][:shared]) + "/{" + ",".join("/".join(part[shared:]) for part in parts) + "}"


def _escaped(path: str) -> str:
    """If the path exists, escape it so that no character acts as a pattern; otherwise it is a Hadoop pattern."""
    return re.sub(r"[{}\[\]*?,\\]", r"\\\g<0>", path) if DataFolder(path).exists else path


def _check_files(spark: SparkSession, paths: list[str]) -> None:
    for file in spark.read.format("binaryFile").load(paths).inputFiles():
        check_no_pattern(unquote(urlsplit(file).path))


def _format(paths: list[str]) -> str:
    for path in paths:
        names = [path] if DataFolder(path).is_file else [file.path for file in DataFolder(path).files()] or [path]
        for name in names:
            endings = [ending for ending in name.rpartition("/")[2].lower().split(".")[1:] if ending in ENDINGS]
            if endings:
                return ENDINGS[endings[-1]]
    raise BadInput(
        f"the format of {paths[0]!r:.200} cannot be told from its name, or it is missing; choose one of {', '.join(FORMATS)}"
    )


def _bad_queue(url: str, name: str) -> str:
    with penstock.open(url) as broker:
        broker.create(name, exist_ok=True, retention=MAX_NUMBER)
    return name


def _count(url: str, name: str) -> int:
    with penstock.open(url) as broker:
        return broker.queue(name).stats().messages


def _write_down(url: str, name: str, file: Path) -> None:
    """Write bad rows as JSON lines. Rows that an earlier run wrote, but did not remove, are recognised by their ids."""
    with penstock.open(url) as broker:
        queue = broker.queue(name)
        before = file.read_text().splitlines() if file.exists() else []
        known = {json.loads(line)["id"] for line in before}
        while messages := queue.peek(MAX_BATCH):
            lines = [json.dumps({"id": one.id, **one.attributes, **_text(one.body)}) for one in messages if one.id not in known]
            DataFolder(str(file.parent)).write(file.name, "".join(f"{line}\n" for line in [*before, *lines]))
            before += lines
            queue.delete_many([message.id for message in messages])
        broker.delete(name)


def _text(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}

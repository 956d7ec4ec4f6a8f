"""The file of a declared pipeline, read and checked before anything runs. An error names the table and line.

store = "sqlite:////data/shop.db"        # where the queues are; default: the one passed to the run
checkpoint = "checkpoint"                # the folder from which a restart continues; paths are relative to this file
trigger = "once"                         # or how often: "10 seconds"

[restart]                                # after an error that another try may not meet; without this table never
times = 10                               # in a row

[source.orders]                          # a stream from a queue; its messages leave the queue
queue = "orders"
json = "item string, quantity int, at timestamp"
watermark = ["at", "10 minutes"]

[source.prices]                          # files are a table, or with stream = true a stream; so is delta or iceberg a table
parquet = "prices"

[check.orders]                           # rows that fail go to the dead letters, or as action says
where = "quantity > 0"
reason = "nothing was ordered"
stop_share = 0.2                         # if more than a fifth of a batch fails, no sink gets it, and the pipeline stops

[step.priced]
sql = "SELECT o.*, p.price FROM orders o JOIN prices p USING (item)"

[sink.lake]
from = "priced"
parquet = "lake"

[dead_letters]
queue = "orders-dead"
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from penstock.errors import BadInput
from penstock.spark.lakes.storage import for_spark
from penstock.spark.lakes.tables import KINDS as LAKES
from penstock.spark.lakes.tables import TableAddress, table_address
from penstock.spark.pipelines import declared_checks
from penstock.spark.pipelines.declared_checks import DeclaredCheck
from penstock.spark.pipelines.restarts import NEVER, Restarts, read_seconds

FILES = ("parquet", "json", "csv")
NAME = declared_checks.NAME
MODES = ("append", "complete")
KINDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number such as 0.05",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    queue: str | None
    json: str | None
    format: str | None
    path: str | None
    schema: str | None
    stream: bool
    store: str | None
    watermark: tuple[str, str] | None
    options: dict[str, str]
    lake: TableAddress | None = None


@dataclass(frozen=True, slots=True)
class DeclaredStep:
    name: str
    sql: str
    watermark: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    table: str
    queue: str | None
    path: str | None
    partition: tuple[str, ...]
    mode: str
    store: str | None
    lake: TableAddress | None = None


@dataclass(frozen=True, slots=True)
class DeclaredDeadLetters:
    queue: str
    store: str | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    file: Path
    text: str
    name: str
    store: str | None
    checkpoint: str
    trigger: str
    sources: tuple[Source, ...]
    steps: tuple[DeclaredStep, ...]
    checks: tuple[DeclaredCheck, ...]
    sinks: tuple[Sink, ...]
    dead_letters: DeclaredDeadLetters | None
    restarts: Restarts = NEVER

    def where(self, *table: str, key: str | None = None, place: int = 0) -> str:
        """`shop.toml, line 12, [sink.totals]`: where something is declared."""
        header, line = _find(self.text, table, key, place)
        named = f", [{'.'.join(table)}]" if table else ""
        return f"{self.file.name}, line {line or header or 1}{named}"

    def first_line(self, *table: str, key: str, place: int = 0) -> int:
        """The line of the file where a text begins."""
        line = _find(self.text, table, key, place)[1] or 1
        opening = self.text.splitlines()[line - 1].partition("=")[2].strip()
        return line + (opening in ('"""', "'''"))  # TOML drops the newline that follows

    def uses(self, table: str) -> set[str]:
        """The table, and all that it may be made of: every table before it that its SQL mentions as a word, and theirs."""
        steps = [step.name for step in self.steps]
        if table not in steps:
            return {table}
        place = steps.index(table)
        words = set(re.findall(r"\w+", self.steps[place].sql.casefold()))
        names = [source.name for source in self.sources] + steps[:place]
        return {table}.union(*(self.uses(name) for name in names if name.casefold() in words))

    def reads(self, table: str) -> set[str]:
        """The sources that a table may read."""
        return self.uses(table) & {source.name for source in self.sources}

    def checks_of(self, table: str) -> list[DeclaredCheck]:
        """In the order in which they are made: first, whether bodies have the declared form."""
        own = [check for check in self.checks if check.table == table]
        form = next((source.json for source in self.sources if source.name == table and source.queue is not None), None)
        if form and not any(check.of_bodies for check in own):
            return [declared_checks.of_bodies(table, form), *own]
        return sorted(own, key=lambda check: not check.of_bodies)


def load(file: str | Path) -> Pipeline:
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path.name} is not UTF-8 text: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path.name} is not TOML: {error}") from None
    return _Reader(path, text).pipeline(given)


class _Reader:
    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self._folder = path.absolute().parent

    def pipeline(self, given: dict[str, Any]) -> Pipeline:
        known = {"name": str, "store": str, "checkpoint": str, "trigger": str}
        tables = ("source", "step", "check", "sink", "dead_letters", "restart")
        top = self._keys((), {key: value for key, value in given.items() if key not in tables}, known, extra=tables)
        sources = tuple(self._source(name, table) for name, table in self._tables(given, "source"))
        steps = tuple(self._step(name, table) for name, table in self._tables(given, "step"))
        names = [source.name for source in sources] + [step.name for step in steps]
        taken: dict[str, tuple[str, str]] = {}
        for kind, name in [("source", source.name) for source in sources] + [("step", step.name) for step in steps]:
            if name.casefold() in taken:  # SQL ignores case
                other = "a {} {!r}".format(*taken[name.casefold()])
                raise self._bad((kind, name), None, f"there is {other} too, and each table needs a name of its own")
            taken[name.casefold()] = (kind, name)
        checks = tuple(
            check for name, table in self._tables(given, "check") for check in self._checks(name, table, names, sources)
        )
        sinks = tuple(self._sink(name, table, names) for name, table in self._tables(given, "sink"))
        if not sources or not sinks:
            raise BadInput(f"{self._path.name}: a pipeline needs at least one [source.NAME] and one [sink.NAME]")
        dead_letters = self._dead_letters(given.get("dead_letters"))
        if dead_letters is None:
            for source in sources:
                declared_body = any(check.of_bodies for check in checks if check.table == source.name)
                if source.queue is not None and source.json and not declared_body:
                    raise self._bad(("source", source.name), "json", "bodies that are not so need [dead_letters], with a queue")
            for check in checks:
                if check.action == "reject":
                    what = "rows that fail need [dead_letters], with a queue; or say action = 'drop', 'count' or 'stop'"
                    raise self._bad(("check", check.table), None, what, check.place)
        declared = Pipeline(
            file=self._path,
            text=self._text,
            name=top.get("name", self._path.stem),
            store=self._store(top.get("store")),
            checkpoint=self._absolute(top.get("checkpoint", f"{self._path.stem}-checkpoint")),
            trigger=self._trigger(top.get("trigger", "once")),
            sources=sources,
            steps=steps,
            checks=checks,
            sinks=sinks,
            dead_letters=dead_letters,
            restarts=self._restarts(given.get("restart")),
        )
        used = {source for sink in sinks for source in declared.reads(sink.table)}
        for source in sources:
            if source.queue is not None and source.name not in used:
                raise self._bad(("source", source.name), None, "no sink is made of it: its messages would be taken for nothing")
        wanted = {name for sink in sinks for name in declared.uses(sink.table)}
        for check in checks:
            if check.action != "reject" and check.table not in wanted:
                raise self._bad(("check", check.table), None, "no sink is made of it: nothing would be checked", check.place)
        return declared

    def _trigger(self, text: str) -> str:
        if text != "once" and not re.fullmatch(r"\d+ (milliseconds?|seconds?|minutes?|hours?)", text):
            raise self._bad((), "trigger", f"it is {text!r:.80}, and must be once or a time such as '10 seconds'")
        return text

    def _tables(self, given: dict[str, Any], kind: str) -> list[tuple[str, Any]]:
        found = given.get(kind, {})
        if not isinstance(found, dict):
            raise self._bad((), kind, f"write [{kind}.NAME]")
        for name in found:
            if not NAME.fullmatch(name):
                raise self._bad((kind, name), None, f"{name!r:.80} cannot name a table: use letters, digits and _")
        return list(found.items())

    def _source(self, name: str, table: Any) -> Source:
        at = ("source", name)
        known = {"queue": str, "json": str, "parquet": str, "csv": str, "schema": str, "stream": bool, "store": str}
        given = self._keys(at, table, known | dict.fromkeys(LAKES, str) | {"watermark": list, "options": dict})
        options = {key: _text(value) for key, value in given.get("options", {}).items()}
        watermark = self._watermark(at, given)
        if "queue" in given:
            for key in ("parquet", "csv", *LAKES, "schema", "stream"):
                if key in given:
                    raise self._bad(at, key, f"a queue is a stream, and has no {key}")
            common = (given["queue"], given.get("json"), None, None, None, True)
            return Source(name, *common, self._store(given.get("store")), watermark, options)
        formats = [key for key in (*FILES, *LAKES) if key in given]
        if len(formats) != 1:
            raise self._bad(at, None, "say where it comes from: one of queue, parquet, json, csv, delta and iceberg")
        if formats[0] in LAKES:
            for key in ("schema", "stream", "options"):
                if key in given:
                    raise self._bad(at, key, f"a table of a lake is read as it is, and has no {key}")
            lake = self._lake(at, formats[0], given)
            return Source(name, None, None, None, None, None, False, None, watermark, options, lake)
        stream = given.get("stream", False)
        if stream and "schema" not in given:
            raise self._bad(at, None, "a stream of files needs a schema, such as schema = 'item string, price double'")
        path = self._absolute(given[formats[0]])
        return Source(name, None, None, formats[0], path, given.get("schema"), stream, None, watermark, options)

    def _step(self, name: str, table: Any) -> DeclaredStep:
        given = self._keys(("step", name), table, {"sql": str, "watermark": list}, needed=("sql",))
        return DeclaredStep(name, given["sql"], self._watermark(("step", name), given))

    def _checks(self, name: str, table: Any, names: Sequence[str], sources: Sequence[Source]) -> list[DeclaredCheck]:
        if name not in names:
            raise self._bad(("check", name), None, f"there is no source or step {name!r}; there are {', '.join(names)}")
        form = next((source.json for source in sources if source.name == name and source.queue is not None), None)
        listed = table if isinstance(table, list) else [table]
        found = [self._check(name, place, one, form) for place, one in enumerate(listed)]
        for check in found:
            if check.name in (other.name for other in found[: check.place]):
                raise self._bad(("check", name), "name", f"another check of {name!r} has this name", check.place)
        return found

    def _check(self, table: str, place: int, given: Any, form: str | None) -> DeclaredCheck:
        at = ("check", table)
        self._keys(at, given, declared_checks.KEYS, place=place)
        if problem := declared_checks.problem(given, has_bodies=form is not None):
            raise self._bad(at, *problem, place)
        return declared_checks.made(table, place, given, form)

    def _sink(self, name: str, table: Any, names: Sequence[str]) -> Sink:
        at = ("sink", name)
        known = {"from": str, "queue": str, "parquet": str, **dict.fromkeys(LAKES, str), "console": bool}
        given = self._keys(at, table, {**known, "partition": list, "mode": str, "store": str}, needed=("from",))
        if given["from"] not in names:
            raise self._bad(at, "from", f"there is no source or step {given['from']!r}; there are {', '.join(names)}")
        if sum(key in given for key in ("queue", "parquet", *LAKES)) + given.get("console", False) != 1:
            raise self._bad(at, None, "say where it goes: one of queue, parquet, delta, iceberg and console = true")
        files = next((key for key in ("parquet", *LAKES) if key in given), None)
        mode = given.get("mode", "append")
        if mode not in MODES:
            raise self._bad(at, "mode", f"it is {mode!r:.80}, and must be one of {', '.join(MODES)}")
        if mode != "append" and files is not None:
            raise self._bad(at, "mode", "files can only be appended to")
        partition = tuple(_text(column) for column in given.get("partition", ()))
        if partition and files is None:
            raise self._bad(at, "partition", "only Parquet, Delta and Iceberg are partitioned")
        path = self._absolute(given["parquet"]) if "parquet" in given else None
        lake = self._lake(at, files, given) if files in LAKES else None
        return Sink(name, given["from"], given.get("queue"), path, partition, mode, self._store(given.get("store")), lake)

    def _lake(self, at: tuple[str, str], kind: str, given: Mapping[str, Any]) -> TableAddress:
        try:
            return table_address(f"{kind}:{given[kind]}", self._folder)
        except BadInput as error:
            raise self._bad(at, kind, str(error)) from None

    def _dead_letters(self, table: Any) -> DeclaredDeadLetters | None:
        if table is None:
            return None
        given = self._keys(("dead_letters",), table, {"queue": str, "store": str}, needed=("queue",))
        return DeclaredDeadLetters(given["queue"], self._store(given.get("store")))

    def _restarts(self, table: Any) -> Restarts:
        if table is None:
            return NEVER
        given = self._keys(("restart",), table, {"times": int, "wait": str, "longest": str})
        if given.get("times", 0) < 0:
            raise self._bad(("restart",), "times", f"it is {given['times']}, and must be 0 or more")
        waits = {}
        for key, field in (("wait", "first"), ("longest", "longest")):
            if key in given:
                seconds = read_seconds(given[key])
                if seconds is None:
                    raise self._bad(("restart",), key, f"it is {given[key]!r:.80}, and must be a time such as '10 seconds'")
                waits[field] = seconds
        return Restarts(times=given.get("times", Restarts().times), **waits)

    def _watermark(self, at: tuple[str, ...], given: Mapping[str, Any]) -> tuple[str, str] | None:
        found = given.get("watermark")
        if found is None:
            return None
        if len(found) != 2 or not all(isinstance(part, str) for part in found):
            raise self._bad(at, "watermark", "write a column and how late it may be: watermark = ['at', '10 minutes']")
        return found[0], found[1]

    def _keys(
        self,
        at: tuple[str, ...],
        table: Any,
        known: Mapping[str, type],
        *,
        needed: Sequence[str] = (),
        extra: Sequence[str] = (),
        place: int = 0,
    ) -> dict[str, Any]:
        """The table's keys, each of its type; `BadInput` for one that is unknown or missing."""
        if not isinstance(table, dict):
            raise self._bad(at, None, "this is a table: write its keys below it")
        for key, value in table.items():
            if key not in known:
                raise self._bad(at, key, f"there is no key {key!r:.80}; there are {', '.join((*known, *extra))}", place)
            if type(value) is not known[key]:
                raise self._bad(at, key, f"{key} must be {KINDS[known[key]]}, not {value!r:.80}", place)
        for key in needed:
            if key not in table:
                raise self._bad(at, None, f"the key {key!r} is missing", place)
        return table

    def _bad(self, table: tuple[str, ...], key: str | None, what: str, place: int = 0) -> BadInput:
        header, line = _find(self._text, table, key, place)
        named = f", [{'.'.join(table)}]" if table else ""
        return BadInput(f"{self._path.name}, line {line or header or 1}{named}: {what}")

    def _absolute(self, path: str) -> str:
        """A path relative to this file, without '..', as Spark spells it; a URL, such as s3a://, is left as it is."""
        return for_spark(path) if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) else os.path.normpath(self._folder / path)

    def _store(self, url: str | None) -> str | None:
        """A store's URL, with an absolute path if it is a file."""
        scheme, colon, rest = (url or "").partition(":///")
        if not colon or scheme not in ("sqlite", "vsqs", "spool") or rest.startswith("/"):
            return url
        path, mark, query = rest.partition("?")
        return f"{scheme}:///{quote(str(self._folder / unquote(path)))}{mark}{query}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find(text: str, table: Sequence[str], key: str | None, place: int = 0) -> tuple[int | None, int | None]:
    """The lines of a table's header (the ``place``-th, if there are several) and of one of its keys. The TOML parser reports
    neither, so this searches for the usual spellings; others get no line."""
    wanted = ".".join(table)
    inside, header = not table, None
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line):
            name = re.sub(r"[\s\"']", "", found[1])
            inside = False
            if name == wanted:
                inside, place = place == 0, place - 1
                header = number if inside else header
        elif inside and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return header, number
    return header, None

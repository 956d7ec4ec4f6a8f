"""The options of the data source, named like those of Spark's own sources; case does not matter.

Options are checked on the driver, before anything runs. The error for an unknown or wrong option names it.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

import penstock
from penstock.broker import REMOTE, location
from penstock.errors import BadInput, BadURL, QueueNotFound, StoreError, Unsupported
from penstock.policy import MAX_BATCH, MAX_CLAIM, check_name
from penstock.urls import without_password

VIEWS = ("messages", "settled")
FILES = ("sqlite", "vsqs", "spool")
PARALLELISM = "PENSTOCK_PARALLELISM"
"""The variable in which `penstock.spark.session` notes how many tasks run at a time."""
SPARKS_OWN = {"path", "checkpointlocation", "queryname", "__data_source_options__"}
"""Options that Spark itself passes to a source or a sink."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """url                     the store or the server; ``token``: its token, if it needs one
    queue                   a name, names separated by commas, or a pattern with * and ?
    exact                   true: queue is one name, not a list or a pattern
    view                    messages (what is in the queue) or settled (its history): for batches
    maxMessagesPerTrigger   how many messages one micro-batch may claim
    maxBytesPerTrigger      how many bytes of bodies, approximately
    minPartitions           how many partitions a batch has at least, if it has enough messages
    parallelism             how many tasks Spark runs at a time: if there is work for them, a batch has as many partitions
    failOnDataLoss          false: a checkpoint that was set back or whose claims are gone is skipped, with a warning
    includeAttributes       false: without the columns attributes and attribute_types
    claimTimeout            seconds after which a claim that Spark never logged is given back
    reader, epoch           for batches: claim what is visible under this name and number; a repeated read has the same rows
    readerPrefix            how the name of a new checkpoint's reader begins
    settle                  false: messages stay claimed when Spark has committed them, and somebody else settles them
    pauseFile               a file: as long as it exists, a stream claims nothing more
    """

    url: str
    queue: str
    exact: bool = False
    token: str | None = None
    view: str = "messages"
    max_messages: int = MAX_BATCH
    max_bytes: int | None = None
    min_partitions: int | None = None
    parallelism: int | None = None
    fail_on_data_loss: bool = True
    include_attributes: bool = True
    claim_timeout: float = 60
    reader_prefix: str = "spark-"
    settle: bool = True
    pause_file: str | None = None
    reader: str | None = None
    epoch: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        given = _Given(options)
        chosen = cls(
            url=given.url(),
            queue=given.required("queue"),
            exact=given.flag("exact", False),
            token=given.token(),
            view=given.one_of("view", VIEWS, "messages"),
            max_messages=given.count("maxMessagesPerTrigger", 1, MAX_CLAIM) or MAX_BATCH,
            max_bytes=given.count("maxBytesPerTrigger", 1, 2**62),
            min_partitions=given.count("minPartitions", 1, 100_000),
            parallelism=given.count("parallelism", 1, 100_000) or _known_parallelism(),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            include_attributes=given.flag("includeAttributes", True),
            claim_timeout=given.count("claimTimeout", 1, 86400) or 60,
            reader_prefix=given.text("readerPrefix") or "spark-",
            settle=given.flag("settle", True),
            pause_file=given.text("pauseFile") or None,
            reader=given.text("reader") or None,
            epoch=given.count("epoch", 0, 2**62),
        )
        if (chosen.reader is None) != (chosen.epoch is None):
            raise BadInput("the options reader and epoch belong together: a read that can be repeated has both")
        if chosen.reader is not None:
            check_name(chosen.reader, "reader name")
            if chosen.view != "messages":
                raise BadInput(f"the options reader and epoch claim messages; the view {chosen.view!r} has none to claim")
        given.done()
        check_name(f"{chosen.reader_prefix}{uuid.UUID(int=0)}", "reader name")
        return chosen

    def open(self) -> penstock.Broker:
        return _open(self.url, self.token)

    def queues(self, broker: penstock.Broker) -> list[str]:
        """The selected queues, sorted; `QueueNotFound` if a name does not exist. A pattern may match nothing (yet).

        Names may contain commas, * and ?: a queue whose name is the whole option wins over a list or a pattern."""
        names = broker.queues().names
        if self.queue in names:
            return [self.queue]
        if self.exact:
            raise QueueNotFound(check_name(self.queue))
        wanted = [part.strip() for part in self.queue.split(",")]
        found: set[str] = set()
        for part in wanted:
            if "*" in part or "?" in part:
                found.update(name for name in names if fnmatchcase(name, part))
            elif part in names:
                found.add(part)
            else:
                raise QueueNotFound(check_name(part))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """url            the store or the server; ``token``: its token, if it needs one
    queue          where all rows go; default: the queue named in each row's column ``queue``
    badRows        a queue for rows that cannot be messages, with the reason; default: they fail the batch
    failOnDataLoss false: a batch whose number was published with other rows is left out, with a warning
    txnAppId       with txnVersion, for batch writes: a write that is repeated with the same two is done once for each queue
    """

    url: str
    queue: str | None
    token: str | None = None
    bad_rows: str | None = None
    fail_on_data_loss: bool = True
    txn_app_id: str | None = None
    txn_version: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        given = _Given(options)
        chosen = cls(
            url=given.url(),
            queue=given.text("queue"),
            token=given.token(),
            bad_rows=given.text("badRows"),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            txn_app_id=given.text("txnAppId") or None,
            txn_version=given.count("txnVersion", 0, 2**62),
        )
        if (chosen.txn_app_id is None) != (chosen.txn_version is None):
            raise BadInput("the options txnAppId and txnVersion belong together: a write that is done once has both")
        given.done()
        return chosen

    def open(self) -> penstock.Broker:
        return _open(self.url, self.token)

    def access(self) -> dict[str, str]:
        return {} if self.token is None else {"token": self.token}


def check_queues(url: str, *names: str, what: str = "the store", patterns: bool = False) -> None:
    """Raise `QueueNotFound`, with a note that says whose queue is missing, unless all these queues exist.

    ``patterns``: they are what the option ``queue`` of a source may be."""
    if not names:
        return
    with penstock.open(_check_url(url)) as broker:
        try:
            for name in names:
                ReadOptions(url, name).queues(broker) if patterns else broker.queue(name)
        except QueueNotFound as error:
            error.add_note(f"{what} is {without_password(url)}")
            raise


def token_for(url: str) -> str | None:
    """The token that this process has for a server, from its environment."""
    return os.environ.get("PENSTOCK_TOKEN") if url.partition(":")[0] in REMOTE else None


def _known_parallelism() -> int | None:
    """What `session` has noted. Spark does not tell its Python processes how many tasks run at a time."""
    noted = os.environ.get(PARALLELISM, "")
    return int(noted) if noted.isdecimal() and int(noted) else None


def _check_url(url: str) -> str:
    if url.startswith("memory:"):
        raise Unsupported("a memory store lives in one process, and Spark is several: use another store")
    if url.startswith("sqlite:///") and not url.startswith("sqlite:////"):
        raise BadURL(f"URL {url!r:.200} is relative, and Spark's processes have folders of their own: write sqlite:////…")
    return url


class FileNotShared(StoreError):
    """A process of Spark does not see the files of the store."""


def check_shared(url: str) -> None:
    """Raise an error if the store is a file that this process does not see: to open it would make an empty one."""
    kind, path = location(url)
    if kind in FILES and not Path(path).exists():
        raise FileNotShared(
            f"there is no {path} on {socket.gethostname()}: a store of files must be on a file system that the driver and all "
            "executors share; otherwise use a database server, or the URL of `penstock serve`"
        )


def _open(url: str, token: str | None) -> penstock.Broker:
    check_shared(url)
    return penstock.open(url) if token is None else penstock.open(url, token=token)


class _Given:
    """The options as given, and the names that were looked up."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._known: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        self._known[name.lower()] = name
        return self._options.get(name.lower())

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise BadInput(f'the option {name!r} is missing: say .option("{name}", …)')
        return value

    def url(self) -> str:
        url = self.text("url") or os.environ.get("PENSTOCK_URL")
        if not url:
            raise BadInput('the option \'url\' is missing: say .option("url", "sqlite:////data/jobs.db"), or set PENSTOCK_URL')
        return _check_url(url)

    def token(self) -> str | None:
        """If no option gives it, the driver's own, which executors do not have."""
        return self.text("token") or token_for(self._options.get("url") or os.environ.get("PENSTOCK_URL", ""))

    def count(self, name: str, least: int, most: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or not least <= int(value) <= most:
            raise BadInput(f"the option {name} is {value!r:.80}; it must be a whole number between {least} and {most}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), "true" if default else "false") == "true"

    def one_of(self, name: str, values: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in values:
            raise BadInput(f"the option {name} is {value!r:.80}; it must be one of {', '.join(values)}")
        return value.strip().lower()

    def done(self) -> None:
        unknown = self._options.keys() - self._known.keys() - SPARKS_OWN
        if unknown:
            known = ", ".join(sorted(self._known.values()))
            raise BadInput(f"there is no option {min(unknown)!r:.80}; there are {known}")

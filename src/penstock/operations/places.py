"""Where a store is, for operations that work on the whole of it and not through its verbs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

from penstock.broker import REMOTE, STORES, LocalBroker, location
from penstock.errors import BadInput, BadURL, Unsupported
from penstock.stores.sql.database import Database
from penstock.stores.sql.store import SqlStore
from penstock.urls import shown

FILES = ("vsqs", "spool")
SERVERS = ("postgresql", "mysql")


class StorePlace(NamedTuple):
    url: str
    kind: str
    """The scheme of its URL."""
    path: Path
    """Its file or folder; of a server, nothing."""

    def check_exists(self) -> None:
        """Opening a store would create it."""
        if not (self.path.is_dir() if self.kind in FILES else self.kind != "sqlite" or self.path.is_file()):
            raise BadInput(f"there is no store at {self.path}")


def database_of(broker: LocalBroker) -> Database:
    """The database of a store that is in one, as its place says."""
    return cast(SqlStore, broker.store).database


def find(url: str, what: str, *, kept: bool = True) -> StorePlace:
    """``what`` cannot be done with every store: the error says what to do instead. ``kept``: only with one that keeps something
    on a disk."""
    kind = url.partition(":")[0].lower()
    if kind in REMOTE:
        raise Unsupported(
            f"a service cannot {what} over HTTP: do it where its store is, with the store's own URL; export works here"
        )
    if kind == "memory" and kept:
        raise Unsupported(f"a store in memory has nothing to {what}: it ends with its process")
    if kind == "memcached" and kept:
        raise Unsupported(f"there is nothing to {what} in memcached, which keeps nothing on a disk: export its queues instead")
    if kind in STORES:
        return StorePlace(url, kind, Path(location(url)[1] if kind in (*FILES, "sqlite") else ""))
    if ":" not in url:
        raise BadURL(f"URL {shown(url)} does not begin with the kind of a store, such as sqlite:")
    raise Unsupported(f"Penstock does not know how to {what} a store of the kind {kind!r:.80}: use its own means, or export")

"""Named records that are changed by compare-and-swap, and the list of their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Generic, TypeVar

from penstock.stores.memcached.catalogue import digest
from penstock.stores.memcached.link import Link

Record = TypeVar("Record")
"""A dataclass, stored as JSON."""


class ListedRecords(Generic[Record]):
    def __init__(
        self, fresh: Callable[[str], Record], link: Callable[[str], Link], prefix: str, home: Link, names: str
    ) -> None:
        """``link`` finds the server of a name's record; the list of names is on ``home``, under the key ``names``."""
        self._fresh = fresh
        self._link = link
        self._prefix = prefix
        self._home = home
        self._names = names

    def key(self, name: str) -> str:
        return f"{self._prefix}{digest(name.encode())}"

    def names(self) -> list[str]:
        return list(json.loads(self._home.get([self._names]).get(self._names, b"[]")))

    def load(self, name: str) -> tuple[Record, bytes | None]:
        """A record, and the token for changing it: None if it does not exist."""
        key, fresh = self.key(name), self._fresh(name)
        raw, token = self._link(name).gets([key]).get(key, (b"{}", None))
        return replace(fresh, **json.loads(raw)), token  # type: ignore[type-var]

    def change(self, name: str, change: Callable[[Record], object]) -> None:
        while True:
            known, token = self.load(name)
            if token is None:
                self._enter(name, present=True)
            change(known)
            if self._link(name).cas(self.key(name), json.dumps(asdict(known)).encode(), token):  # type: ignore[call-overload]
                return

    def forget(self, name: str) -> None:
        self._link(name).forget([self.key(name)])
        self._enter(name, present=False)  # last: a name that has a record must be in the list

    def _enter(self, name: str, *, present: bool) -> None:
        while True:
            raw, token = self._home.gets([self._names]).get(self._names, (b"[]", None))
            names = set(json.loads(raw)) - {name} | ({name} if present else set())
            if self._home.cas(self._names, json.dumps(sorted(names)).encode(), token):
                return

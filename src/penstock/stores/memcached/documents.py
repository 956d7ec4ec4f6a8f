"""JSON documents in memcached that have names and are changed by compare-and-swap, and the list of their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Generic, TypeVar

from penstock.stores.memcached.formats import digest
from penstock.stores.memcached.link import Link

Document = TypeVar("Document")
"""A dataclass whose fields have defaults."""


class Documents(Generic[Document]):
    def __init__(
        self, fresh: Callable[[], Document], link: Callable[[str], Link], prefix: str, names: tuple[Link, str]
    ) -> None:
        """``link`` finds the server of a document; ``names`` is where the list of names is."""
        self._fresh = fresh
        self._link = link
        self._prefix = prefix
        self._names_link, self._names = names

    def key(self, name: str) -> str:
        return f"{self._prefix}{digest(name.encode())}"

    def names(self) -> list[str]:
        return list(json.loads(self._names_link.get([self._names]).get(self._names, b"[]")))

    def find(self, name: str) -> Document | None:
        """None if it does not exist."""
        document, token = self._read(name)
        return None if token is None else document

    def load(self, name: str) -> Document:
        return self._read(name)[0]

    def change(self, name: str, change: Callable[[Document], object]) -> None:
        while True:
            document, token = self._read(name)
            if token is None:
                self._enter(name, present=True)
            change(document)
            if self._link(name).cas(self.key(name), json.dumps(asdict(document)).encode(), token):  # type: ignore[call-overload]
                return

    def forget(self, name: str) -> None:
        self._link(name).forget([self.key(name)])
        self._enter(name, present=False)  # last: a name that has a document must be in the list

    def _read(self, name: str) -> tuple[Document, bytes | None]:
        key = self.key(name)
        raw, token = self._link(name).gets([key]).get(key, (b"{}", None))
        return replace(self._fresh(), **json.loads(raw)), token  # type: ignore[type-var]

    def _enter(self, name: str, *, present: bool) -> None:
        while True:
            raw, token = self._names_link.gets([self._names]).get(self._names, (b"[]", None))
            names = set(json.loads(raw)) - {name} | ({name} if present else set())
            if self._names_link.cas(self._names, json.dumps(sorted(names)).encode(), token):
                return

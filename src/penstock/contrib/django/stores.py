"""The stores that the backends of a process have open. Django makes a backend for each thread; they share a store."""

from __future__ import annotations

import atexit
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

import penstock
from penstock.forking import watch

CONNECTION_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "options", "application_name", "connect_timeout")
"""Of PostgreSQL's, those of Django's database that also belong to a connection of ours."""


class Stores:
    """By URL and options. Owns the brokers until the process ends."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], penstock.Broker] = {}
        self._lock = Lock()
        watch(self)
        atexit.register(self.close)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        self._lock.release()

    def get(self, url: str, options: dict[str, Any]) -> penstock.Broker:
        key = (url, *sorted(options.items()))
        with self._lock:
            if key not in self._open:
                self._open[key] = penstock.open(url, **options)
            return self._open[key]

    def close(self) -> None:
        with self._lock:
            brokers, self._open = list(self._open.values()), {}
        for broker in brokers:
            broker.close()


STORES = Stores()


def url_of(database: str) -> str:
    """The store in one of Django's own databases."""
    connection = connections[database]
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"tasks can be kept in a database of Django's on PostgreSQL only, and {database!r} is {connection.vendor}; "
            'give the backend an OPTIONS["url"], such as "sqlite:///tasks.db"'
        )
    found = connection.get_connection_params()
    user = quote(found.get("user") or "", safe="")
    if found.get("password"):
        user += f":{quote(found['password'], safe='')}"
    host, port = found.get("host") or "", found.get("port")
    query = {name: str(found[name]) for name in CONNECTION_PARAMETERS if found.get(name)}
    if host.startswith("/"):  # the folder of a socket
        query["host"], host = host, ""
    place = f"{host}:{port}" if port and host else host
    if port and not host:
        query["port"] = str(port)
    tail = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return f"postgresql://{user + '@' if user else ''}{place}/{quote(found.get('dbname') or '', safe='')}{tail}"

"""All that is compared, by name: which server, and by which client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from penstock.bench.brokers.sessions.base import Session

SERVE, CLIENT, EMBEDDED, ON_POSTGRESQL = "serve", "client", "embedded", "serve-postgresql"
OURS = (SERVE, CLIENT, EMBEDDED, ON_POSTGRESQL)


@dataclass(frozen=True, slots=True)
class Target:
    """A server and a way to talk to it.

    server     its name in `servers.STARTERS`
    opens      where sessions are opened: module and class.method in `sessions`
    package    Debian's package of the server, if it is not Python's
    library    the client's module, and its name on PyPI
    note       what a reader must know to compare it"""

    name: str
    server: str
    opens: str
    package: str = ""
    library: tuple[str, str] | None = None
    note: str = ""

    def missing_library(self) -> str | None:
        return self.library[1] if self.library and not find_spec(self.library[0]) else None

    def client(self) -> str:
        return f"{self.library[1]} {version(self.library[1])}" if self.library else ""

    def opener(self) -> Callable[[str], Awaitable[Session]]:
        module, maker, method = self.opens.split(".")
        found = getattr(import_module(f"penstock.bench.brokers.sessions.{module}"), maker)
        return getattr(found, method)  # type: ignore[no-any-return]


AIO_PIKA = ("aio_pika", "aio-pika")
TARGETS = {
    target.name: target
    for target in (
        Target(SERVE, "serve", "penstock_http.HttpSession.open", note="`penstock serve` on SQLite, by plain requests (mqs)"),
        Target(CLIENT, "serve", "penstock_library.LibrarySession.open", note='the same server by `penstock.open("http://…")`'),
        Target(EMBEDDED, "embedded", "penstock_library.LibrarySession.open", note="the queue in SQLite without a server"),
        Target(
            ON_POSTGRESQL,
            "serve-postgresql",
            "penstock_http.HttpSession.open",
            "postgresql",
            ("psycopg", "psycopg"),
            "`penstock serve` on the same PostgreSQL that asyncpg uses; its processor time includes the database's",
        ),
        Target(
            "rabbitmq-quorum",
            "rabbitmq",
            "rabbitmq.RabbitmqSession.quorum",
            "rabbitmq-server",
            AIO_PIKA,
            "a quorum queue of one node; batches are published together, and then all confirms awaited; an ack has no answer",
        ),
        Target(
            "rabbitmq-classic",
            "rabbitmq",
            "rabbitmq.RabbitmqSession.classic",
            "rabbitmq-server",
            AIO_PIKA,
            "a classic queue, as the quorum queue",
        ),
        Target(
            "redis",
            "redis",
            "redis.RedisSession.open",
            "redis-server",
            ("redis", "redis"),
            "a stream: XADD, XREADGROUP, XACK with XDEL; batches are pipelines",
        ),
        Target(
            "nats",
            "nats",
            "nats.NatsSession.open",
            "nats-server",
            ("nats", "nats-py"),
            "JetStream, a work queue on files: publish, fetch, ack_sync; batches are published together",
        ),
        Target(
            "beanstalkd",
            "beanstalkd",
            "beanstalkd.BeanstalkdSession.open",
            "beanstalkd",
            note="put, reserve, delete over asyncio's streams; batches are pipelined",
        ),
        Target(
            "postgresql",
            "postgresql",
            "postgresql.PostgresqlSession.open",
            "postgresql",
            ("asyncpg", "asyncpg"),
            "a table: INSERT, UPDATE with SKIP LOCKED, DELETE; a batch is one INSERT",
        ),
    )
}

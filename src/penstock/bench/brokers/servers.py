"""The servers that are compared, each in a folder of its own, on free loopback ports, and told to sync before it answers."""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from penstock.bench.brokers.processes import Daemon, family, processor_seconds, undisturbed
from penstock.testing.servers import Missing, PostgresqlServer, find, free_port

ERLANG = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""What Debian's rabbitmq-server runs; that one insists on a user, and on the machine's own folders."""
GET_FLAGS, SET_FLAGS, SYNC_FLAG = 0x80086601, 0x40086602, 0x8
SYNCS_ALWAYS = (2, 10)
"""The version of NATS from which JetStream can sync every message."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs: where clients find it, the processes that serve them, and what a reader must know of it.

    written   a folder whose files are on the disk as soon as they are written, without a call that syncs them
    synced    False if it could not be told to sync before it answers"""

    address: str
    roots: tuple[int, ...]
    version: str
    settings: str
    written: Path | None = None
    synced: bool = True

    def processes(self) -> list[int]:
        return family(self.roots)

    def processor_seconds(self) -> float:
        return processor_seconds(self.processes())


class Servers:
    """The servers of one comparison, started when first asked for, and all stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[str, Running] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, name: str) -> Running:
        if name not in self._running:
            self._running[name] = self._stack.enter_context(STARTERS[name](self, self._folder / name))
        return self._running[name]


@contextmanager
def started(folder: Path, *command: str, executable: str | None = None, **variables: str) -> Iterator[Daemon]:
    with ExitStack() as stack:
        with undisturbed():
            daemon = stack.enter_context(Daemon(folder, *command, executable=executable, **variables))
        yield daemon


@contextmanager
def rabbitmq(_: Servers, folder: Path) -> Iterator[Running]:
    if not ERLANG.exists():
        raise Missing("rabbitmq-server is not installed")
    port, meeting, distribution = free_port(), free_port(), free_port()
    folder.mkdir()
    (folder / "plugins").write_text("[].")
    (folder / "empty.conf").touch()
    names = {"ERL_EPMD_PORT": str(meeting), "ERL_EPMD_ADDRESS": "127.0.0.1", "HOME": str(folder)}
    variables = names | {
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "empty"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "empty.conf"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    # Erlang starts this registry of nodes itself, if there is none, and then nobody stops it.
    with started(folder / "epmd", "epmd", "-port", str(meeting), "-address", "127.0.0.1", **names) as registry:
        registry.wait_until(lambda: listens(meeting))
        with started(folder / "node", "rabbitmq-server", executable=str(ERLANG), **variables) as daemon:
            daemon.wait_until(lambda: listens(port))
            found = next(iter(ERLANG.parent.parent.glob("lib/rabbitmq_server-*")), Path("rabbitmq_server-?"))
            yield Running(
                f"amqp://guest:guest@127.0.0.1:{port}/",
                (daemon.pid,),
                f"RabbitMQ {found.name.partition('-')[2]}",
                "durable queue, persistent messages, publisher confirms",
            )


@contextmanager
def redis(_: Servers, folder: Path) -> Iterator[Running]:
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with started(folder, "redis-server", *options, "--daemonize", "no") as daemon:
        daemon.wait_until(lambda: listens(port))
        yield Running(
            f"redis://127.0.0.1:{port}", (daemon.pid,), f"Redis {version_of('redis-server', '--version')}", "appendfsync always"
        )


@contextmanager
def nats(_: Servers, folder: Path) -> Iterator[Running]:
    port, version = free_port(), version_of("nats-server", "--version")
    data = folder / "data"
    data.mkdir(parents=True)
    knows = tuple(map(int, version.split(".")[:2])) >= SYNCS_ALWAYS
    written = None
    if knows:
        settings = "sync_interval: always"
    elif write_through(data):
        written, settings = (
            data,
            "it cannot sync every message, so its folder has the attribute S: every write waits for the disk",
        )
    else:
        settings = (
            "**it syncs every two minutes**: before 2.10 that cannot be changed, and the file system knows no attribute S"
        )
    always = ", sync_interval: always" if knows else ""
    config = f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{data}"{always} }}\n'
    (folder / "nats.conf").write_text(config)
    with started(folder, "nats-server", "-c", str(folder / "nats.conf")) as daemon:
        daemon.wait_until(lambda: listens(port))
        yield Running(
            f"nats://127.0.0.1:{port}", (daemon.pid,), f"NATS {version}", settings, written, synced=knows or written is not None
        )


@contextmanager
def beanstalkd(_: Servers, folder: Path) -> Iterator[Running]:
    port = free_port()
    (folder / "data").mkdir(parents=True)
    with started(folder, "beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder / "data"), "-f0") as daemon:
        daemon.wait_until(lambda: listens(port))
        yield Running(f"127.0.0.1:{port}", (daemon.pid,), f"beanstalkd {version_of('beanstalkd', '-v')}", "-f0")


@contextmanager
def postgresql(_: Servers, folder: Path) -> Iterator[Running]:
    folder.mkdir(mode=0o755)
    closed = [path for path in folder.parents if not path.stat().st_mode & 0o001]
    if os.geteuid() == 0 and closed:
        raise RuntimeError(
            f"it runs as the user {PostgresqlServer.user}, to whom {closed[-1]} is closed; give another --folder"
        )
    with ExitStack() as stack:
        with undisturbed():
            server = stack.enter_context(PostgresqlServer(sync=True, within=folder))
        settings = "fsync=on, synchronous_commit=on"
        yield Running(server.url, (server.pid,), f"PostgreSQL {version_of('postgres', '--version')}", settings)


@contextmanager
def serve(_: Servers, folder: Path) -> Iterator[Running]:
    with served(folder, f"sqlite:///{quote(str(folder))}/queue.db") as running:
        yield running


@contextmanager
def serve_postgresql(servers: Servers, folder: Path) -> Iterator[Running]:
    database = servers.get("postgresql")
    with served(folder, database.address, database) as running:
        yield running


@contextmanager
def served(folder: Path, store: str, behind: Running | None = None) -> Iterator[Running]:
    command = [sys.executable, "-m", "penstock.cli", "serve", "--store", store, "--port", "0", "--access-log", "off"]
    with started(folder, *command, executable=sys.executable, PYTHONPATH=os.pathsep.join(sys.path)) as daemon:
        daemon.wait_until(lambda: bool(re.search(r"http://\S+\n", daemon.output)))
        (address,) = re.findall(r"http://\S+", daemon.output)[:1]
        roots = (daemon.pid, *(behind.roots if behind else ()))
        yield Running(address, roots, "this version", behind.settings if behind else "synchronous=FULL")


@contextmanager
def embedded(_: Servers, folder: Path) -> Iterator[Running]:
    """No server: the file on which the clients work themselves."""
    folder.mkdir()
    yield Running(f"sqlite:///{quote(str(folder))}/queue.db", (), "this version", "synchronous=FULL")


STARTERS: dict[str, Callable[[Servers, Path], AbstractContextManager[Running]]] = {
    "serve": serve,
    "embedded": embedded,
    "serve-postgresql": serve_postgresql,
    "rabbitmq": rabbitmq,
    "redis": redis,
    "nats": nats,
    "beanstalkd": beanstalkd,
    "postgresql": postgresql,
}


def listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


def version_of(program: str, flag: str) -> str:
    ran = subprocess.run([program, flag], executable=find(program), capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", ran.stdout + ran.stderr)
    return found[0] if found else "?"


def write_through(folder: Path) -> bool:
    """Have every write to new files of the folder wait for the disk (`chattr +S`); returns whether the file system can."""
    flags = array.array("l", [0])
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, GET_FLAGS, flags)
        flags[0] |= SYNC_FLAG
        fcntl.ioctl(handle, SET_FLAGS, flags)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True

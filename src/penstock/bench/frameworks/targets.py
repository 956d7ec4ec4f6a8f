"""All that is compared, by name: a framework, the broker that it runs on, and the command of its worker."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from penstock.bench.frameworks.apps import surroundings

APPS = "penstock.bench.frameworks.apps"
PROCESSES = 2
CELERY_SQLITE, CELERY_POSTGRESQL = "celery penstock-sqlite", "celery penstock-postgresql"
OURS = (CELERY_SQLITE, CELERY_POSTGRESQL)
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
SAID = "nothing"


@dataclass(frozen=True, slots=True)
class Target:
    """A framework on a broker.

    library    the framework's module; how it is installed
    server     the broker, by its name in `penstock.bench.brokers.servers`; "file" if it is a file
    scheme     what becomes of the server's address; {} is the address
    loses      which tasks can be lost with the power, by a worker that is killed, or "nothing"
    workers    how many processes run the command
    ends       the signal after which a worker finishes what it does
    package    Debian's package of the server, if it is not Python's
    drivers    more modules that must be there"""

    name: str
    library: tuple[str, str]
    module: str
    server: str
    scheme: str
    command: tuple[str, ...]
    note: str
    loses: str = SAID
    workers: int = 1
    ends: signal.Signals = signal.SIGTERM
    package: str = ""
    drivers: tuple[tuple[str, str], ...] = ()

    @property
    def app(self) -> str:
        return f"{APPS}.{self.module}"

    @property
    def lossless(self) -> bool:
        return self.loses == SAID

    def missing(self) -> list[str]:
        """How to install what is not there."""
        return [cure for module, cure in (self.library, *self.drivers) if not find_spec(module)]

    def version(self) -> str:
        return f"{self.library[0]} {version(self.library[0])}"

    def address(self, given: str) -> str:
        return self.scheme.format(given)

    def environment(self, address: str, notes: str = "") -> dict[str, str]:
        return {
            surroundings.ADDRESS: self.address(address),
            surroundings.NOTES: notes,
            surroundings.KIND: self.name.partition(" ")[2],
        }


def _celery(broker: str, server: str, scheme: str, note: str, **more: object) -> Target:
    command = ("celery", "-A", f"{APPS}.on_celery", "worker", "-c", str(PROCESSES), "-l", "warning", *QUIET)
    return Target(f"celery {broker}", CELERY, "on_celery", server, scheme, command, note, **more)  # type: ignore[arg-type]


def _dramatiq(broker: str, server: str, scheme: str, note: str, **more: object) -> Target:
    command = ("dramatiq", f"{APPS}.on_dramatiq", "-p", str(PROCESSES))
    return Target(f"dramatiq {broker}", DRAMATIQ, "on_dramatiq", server, scheme, command, note, **more)  # type: ignore[arg-type]


CELERY = ("celery", 'pip install "penstock[celery]"')
DRAMATIQ = ("dramatiq", 'pip install "penstock[dramatiq]"')
BENCH = 'pip install "penstock[bench]"'
REDIS = ("redis", BENCH)
PSYCOPG = ("psycopg", 'pip install "penstock[postgres]"')
TARGETS = {
    target.name: target
    for target in (
        _celery("penstock-sqlite", "file", "penstock+sqlite:///{}", "a commit for each send"),
        _celery(
            "penstock-postgresql",
            "postgresql",
            "penstock+{}",
            "a commit for each send",
            package="postgresql",
            drivers=(PSYCOPG,),
        ),
        _celery(
            "redis",
            "redis",
            "{}",
            "a list; taken by BRPOP, and then put among those that are not acknowledged",
            loses="a task between these two steps, when the worker is killed or the power fails",
            package="redis-server",
            drivers=(REDIS,),
        ),
        _celery(
            "rabbitmq", "rabbitmq", "{}", "a classic queue, durable; each send waits for its confirm", package="rabbitmq-server"
        ),
        _dramatiq("penstock-sqlite", "file", "sqlite:///{}", "a commit for each send"),
        _dramatiq("redis", "redis", "{}/1", "lists and hashes, changed by scripts", package="redis-server", drivers=(REDIS,)),
        Target(
            "procrastinate postgresql",
            ("procrastinate", BENCH),
            "on_procrastinate",
            "postgresql",
            "{}",
            ("procrastinate", "-a", f"{APPS}.on_procrastinate.app", "worker", "--delete-jobs", "successful"),
            "a task whose worker was killed stays where it is until the application tries it again",
            workers=PROCESSES,
            package="postgresql",
            drivers=(PSYCOPG,),
        ),
        Target(
            "huey sqlite",
            ("huey", BENCH),
            "on_huey",
            "file",
            "{}",
            ("huey.bin.huey_consumer", f"{APPS}.on_huey.huey", "-w", str(PROCESSES), "-k", "process"),
            "fsync=True; a task is deleted when a worker takes it",
            ends=signal.SIGINT,
            loses="the tasks that workers have, when they are killed or the power fails",
        ),
    )
}


def worker_command(target: Target) -> list[str]:
    return [sys.executable, "-m", *target.command]

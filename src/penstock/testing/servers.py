"""Real servers for tests and benchmarks, started on a free loopback port in a temporary folder, and stopped afterwards.

Databases refuse to run as root, so root starts them as the user that Debian's packages create.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

START_SECONDS = 240
MEMORY, ROOM = "/dev/shm", 4 << 30
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
"""For Spark in tests: it starts faster, and is fast enough for short jobs. With the first flag Java reserves only 48 MB for the
code that it compiles, and a session that has run many queries fails when they are used up."""


class Missing(Exception):
    """The server's programs are not installed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find(program: str) -> str:
    folders = [*os.environ["PATH"].split(":"), "/usr/sbin", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))]
    found = shutil.which(program, path=":".join(folders))
    if found is None:
        raise Missing(f"{program} is not installed (tools/provision does that, as root)")
    return str(Path(found).resolve())


def roomy_memory() -> str | None:
    """A folder in memory with room for a server's files, if there is one: MariaDB syncs 280 times for our tables, whatever its
    settings. The files survive the server's death, but not the machine's."""
    with suppress(OSError):
        if shutil.disk_usage(MEMORY).free >= ROOM:
            return MEMORY
    return None


class DatabaseServer(ABC):
    user: str

    def __init__(self, *, sync: bool = False, within: Path | None = None) -> None:
        """Without ``sync`` it does not wait for the disk: its answers survive its own death, but not the machine's. ``within``:
        the folder that holds its own, so that its files are on that disk."""
        self.sync = sync
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-server-", dir=within or (None if sync else roomy_memory())))
        self._process: subprocess.Popen[bytes] | None = None
        self._serial = count(1)
        self._log = (self.folder / "log").open("wb")
        if os.geteuid() == 0:
            shutil.chown(self.folder, self.user, pwd.getpwnam(self.user).pw_gid)
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def connect(self) -> Any:
        """A plain connection of the driver, in autocommit mode."""

    @abstractmethod
    def new_url(self) -> str:
        """The URL of a new, unused store."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _as_user(self, command: Sequence[str]) -> list[str]:
        if os.geteuid() != 0:
            return list(command)
        known = pwd.getpwnam(self.user)
        return ["setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups", *command]

    def _run(self, *command: str) -> None:
        subprocess.run(self._as_user(command), check=True, stdout=self._log, stderr=self._log, cwd=self.folder)

    def start(self) -> None:
        self._process = subprocess.Popen(self._as_user(self._command()), stdout=self._log, stderr=self._log, cwd=self.folder)
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            try:
                self.connect().close()
                return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:]) from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.stop(signal.SIGQUIT if isinstance(self, PostgresqlServer) else signal.SIGKILL)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresqlServer(DatabaseServer):
    user = "postgres"
    FAST, IMMEDIATE = signal.SIGINT, signal.SIGQUIT

    def _prepare(self) -> None:
        self._run(find("initdb"), "-D", str(self.folder / "data"), "-A", "trust", "-U", "penstock", "-E", "UTF8", "--no-sync")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "128MB",
            "max_wal_size": "4GB",
            "fsync": "on" if self.sync else "off",
            "autovacuum_naptime": "1s",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [find("postgres"), "-D", str(self.folder / "data"), *options]

    @property
    def url(self) -> str:
        return f"postgresql://penstock@127.0.0.1:{self.port}/postgres"

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def new_url(self) -> str:
        schema = f"penstock_{next(self._serial)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return f"{self.url}?options=-csearch_path%3D{schema}"


class MariadbServer(DatabaseServer):
    user = "mysql"

    def _prepare(self) -> None:
        self._run(
            find("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def _command(self) -> list[str]:
        return [
            find("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--innodb-flush-log-at-trx-commit={1 if self.sync else 2}",
            "--innodb-log-file-size=256M",
            "--max-connections=200",
        ]

    def connect(self) -> Any:
        import pymysql

        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)

    def new_url(self) -> str:
        name = f"penstock_{next(self._serial)}"
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        connection.close()
        return f"mysql://root@127.0.0.1:{self.port}/{name}"


class MemcachedServer:
    """It keeps nothing on disk, so a restart empties it."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._serial = count(1)
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        options = self._options or ("-M", "-m", "1024")
        self._process = subprocess.Popen([find("memcached"), *user, "-l", "127.0.0.1", "-p", str(self.port), *options])
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError("memcached did not start") from None
                time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop all its threads; it keeps its connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        give_up_at = time.monotonic() + START_SECONDS
        while not all("State:\tT" in (thread / "status").read_text() for thread in threads.iterdir()):
            assert time.monotonic() < give_up_at, f"process {self._process.pid} does not stop"
            time.sleep(0.001)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    close = stop

    def new_url(self) -> str:
        """The URL of a new, unused store."""
        return f"memcached://127.0.0.1:{self.port}/test{next(self._serial)}"

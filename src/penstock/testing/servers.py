"""Real servers for tests and benchmarks: started on a free loopback port, and stopped after."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from itertools import count
from typing import Self

START_SECONDS = 60


class Missing(Exception):
    """The server's programs are not installed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        raise Missing(f"{program} is not installed (tools/provision does that, as root)")
    return found


class MemcachedServer:
    """It keeps nothing, so that to stop and start it is to empty it."""

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

    def signal(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)

    close = stop

    def new_url(self) -> str:
        """The URL of a store that nobody has used yet."""
        return f"memcached://127.0.0.1:{self.port}/test{next(self._serial)}"

"""A standalone Spark cluster on loopback, from the pip package: a master and two workers, whose Python does not have Penstock.

Each worker has its own host, since Spark starts a speculative attempt of a task only on another host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Self

import pyspark

import penstock
from penstock.spark import worker
from penstock.spark.java import find_java
from penstock.testing.servers import QUICK_JAVA

PACKAGES = Path(penstock.__file__).parents[1]
HERE = Path(__file__).parent


class Cluster:
    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, hides: Path | None = None) -> None:
        """``hides``: a folder that the workers see empty, as if they were on other machines; this needs root."""
        self.folder = folder
        self._workers, self._cores, self._hides = workers, cores, hides
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        for number in range(self._workers):
            work = str(self.folder / f"work-{number}")
            flags = f"--host 127.0.0.{number + 1} --cores {self._cores} --memory 1g --webui-port 0".split()
            self._start("worker.Worker", self.url, *flags, "-d", work)
        give_up_at = time.monotonic() + 90
        while self.log().count("Registering worker") < self._workers:
            assert time.monotonic() < give_up_at, self.log()[-3000:]
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(timeout=30)

    def log(self) -> str:
        return (self.folder / "cluster.log").read_text()

    def environment(self) -> dict[str, str]:
        """For a driver: its executors get the package as a zip, because their Python has every library except Penstock."""
        python = self.folder / "python"
        # As in worker-python, a worker for which Spark waits ten seconds connects before it imports PySpark.
        python.write_text(
            f"""#!/bin/sh
export PYTHONPATH="$PYTHONPATH:{Path(pyspark.__file__).parents[1]}"
if [ "$1" = -m ] && [ -n "$PYTHON_WORKER_FACTORY_PORT" ] && [ -n "$PYTHON_WORKER_FACTORY_SECRET" ]; then
    set -- "{worker.__file__}" "$@"
fi
exec {sys.executable} -S "$@"
"""
        )
        python.chmod(0o755)
        return {
            "PENSTOCK_MASTER": self.url,
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": os.pathsep.join([str(PACKAGES), str(HERE)]),  # for the driver; executors have their own
            "PENSTOCK_ZIP": str(zip_packages(self.folder / "penstock.zip")),
        }

    def kill_executors(self) -> int:
        """kill -9 all executors; returns how many."""
        workers = ",".join(str(process.pid) for process in self._processes[1:])
        found = subprocess.run(["pgrep", "-P", workers, "java"], capture_output=True, text=True, check=False).stdout.split()
        for pid in found:
            os.kill(int(pid), signal.SIGKILL)
        return len(found)

    def seen_by_workers(self, folder: Path) -> list[str]:
        """The names in a folder as the first worker sees it."""
        return [path.name for path in Path(f"/proc/{self._processes[1].pid}/root/{folder}").iterdir()]

    def _start(self, name: str, *arguments: str) -> None:
        home = str(Path(pyspark.__file__).parent)
        environment = os.environ | {"JAVA_HOME": find_java(), "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK_JAVA
        with (self.folder / "cluster.log").open("ab") as log:
            command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
            if self._hides is not None and name == "worker.Worker":
                covered = 'mount -t tmpfs none "$0" && exec "$@"'
                command = ["unshare", "--mount", "sh", "-c", covered, str(self._hides), *command]
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


def zip_packages(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name in ("penstock", "pyspark_penstock"):
            for file in (PACKAGES / name).rglob("*"):
                if file.suffix in (".py", ".sql", ".typed"):
                    packed.write(file, file.relative_to(PACKAGES))
        packed.write(HERE / "faulty.py", "faulty.py")
    return path

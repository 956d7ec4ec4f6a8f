"""Starts a Python worker of Spark, and connects to Spark before it imports PySpark: python worker.py -m MODULE

Spark gives a process that it starts for a stream ten seconds to connect, and no setting changes that. Importing PySpark takes
almost a second on an idle machine, but more than ten on a busy one. So the connection comes first. This file runs as a script,
and imports only what Python loads at startup anyway.
"""

from __future__ import annotations

import os
import socket
import sys
from io import IOBase
from typing import Any


def connect(port: int, secret: str) -> tuple[IOBase, socket.socket]:
    """Like `pyspark.util.local_connect_and_auth`."""
    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
    connection = socket.create_connection((host, port), timeout=int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15")))
    file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
    said = secret.encode()
    file.write(len(said).to_bytes(4, "big") + said)
    file.flush()
    if file.read(int.from_bytes(file.read(4), "big")) != b"ok":
        raise ConnectionError(f"Spark at port {port} does not accept this worker")
    return file, connection


def main() -> None:
    connected = connect(int(os.environ["PYTHON_WORKER_FACTORY_PORT"]), os.environ["PYTHON_WORKER_FACTORY_SECRET"])
    sys.path[0] = os.getcwd()  # noqa: PTH109 – as `python -m` has it; it was the folder of this file
    sys.argv = sys.argv[2:]

    import runpy
    from importlib import import_module

    util: Any = import_module("pyspark.worker_util")
    connect_anew = util.local_connect_and_auth

    def hand_over(*_: object) -> tuple[IOBase, socket.socket]:
        util.local_connect_and_auth = connect_anew
        return connected

    util.local_connect_and_auth = hand_over
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

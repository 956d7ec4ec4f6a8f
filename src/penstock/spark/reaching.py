"""Finds out whether a Spark elsewhere answers, before this process waits for it: Spark itself tries for minutes, in silence."""

from __future__ import annotations

import re
import socket
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import BadInput, MissingExtra, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE, GREETING = 4.0, 8.0
"""Seconds for one connection, and until a server of Spark Connect has answered on it."""
MUSTER = 10.0
"""Seconds until a cluster should have given an executor."""
MASTERS = re.compile(r"local(\[.*\])?|local-cluster\[.*\]|yarn|\w+://.+")
PORT, CONNECT_PORT = 7077, 15002


class SparkUnreachable(StoreError):
    """Nothing answers where Spark should be."""


def check_master(master: str) -> None:
    """Raise an error unless the master of a cluster, or one of several, accepts a connection."""
    if not MASTERS.fullmatch(master):
        raise BadInput(f"master {master!r:.200} is none that Spark knows: local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT")
    scheme, _, rest = master.partition("://")
    if scheme not in ("spark", "k8s"):
        return
    problems = []
    for place in rest.split(","):
        parsed = urlsplit(place if "://" in place else f"//{place}")
        default = {"https": 443, "http": 80}.get(parsed.scheme, PORT if scheme == "spark" else 443)
        problem = _problem(parsed.hostname or "", _port(parsed.port, default))
        if problem is None:
            return
        problems.append(problem)
    raise SparkUnreachable(f"no Spark master answers at {master!r:.200}: {'; '.join(problems)}")


def check_remote(remote: str) -> None:
    """Raise an error unless a server of Spark Connect answers at sc://HOST:PORT."""
    if find_spec("grpc") is None:
        raise MissingExtra("Spark Connect", "connect")
    grpc, client = import_module("grpc"), import_module("pyspark.sql.connect.client")
    builder = client.DefaultChannelBuilder(remote)
    host, _, port = builder.endpoint.rpartition(":")
    if (problem := _problem(host.strip("[]"), int(port))) is not None:
        raise SparkUnreachable(f"no Spark Connect server answers at {_shown(remote)}: {problem}")
    channel = builder.toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=GREETING)
    except grpc.FutureTimeoutError:
        raise SparkUnreachable(
            f"what answers at {_shown(remote)} is no Spark Connect server, or it wants other settings of TLS"
        ) from None
    finally:
        channel.close()


def await_executors(spark: SparkSession) -> bool:
    """Wait until a cluster has given executors, and no more have come for a moment: their cores are the parallelism.

    Returns whether there is one."""
    context: Any = spark.sparkContext
    give_up_at, known = time.monotonic() + MUSTER, 0
    while time.monotonic() < give_up_at:
        before, known = known, context.defaultParallelism
        there = bool(context._jsc.sc().getExecutorMemoryStatus().size() > 1)  # the driver is one of them
        if there and known == before:
            return True
        time.sleep(0.5)
    return False


def _port(given: int | None, default: int) -> int:
    return default if given is None else given


def _problem(host: str, port: int) -> str | None:
    """Why no connection can be made; None if one can."""
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except TimeoutError:
        return f"{host}:{port} gives no answer within {PATIENCE:.0f} s"
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return None


def _shown(remote: str) -> str:
    """Without its parameters, one of which may be a token."""
    return repr(remote.partition("/;")[0])

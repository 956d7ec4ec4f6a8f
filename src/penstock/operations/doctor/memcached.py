"""memcached servers: reachable, and would they rather refuse messages than throw some away."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from penstock.broker import memcached_servers
from penstock.errors import StoreUnreachable
from penstock.operations.doctor.findings import Finding, Visit, compare_clocks, note, ok, size, wrong

NEARLY = 0.9


def examine_memcached(visit: Visit) -> Iterator[Finding]:
    for host, port in memcached_servers(visit.url):
        yield from _examine(f"memcached at {host}:{port}", _ask(host, port, visit.timeout), visit)


def _examine(name: str, told: tuple[dict[str, str], dict[str, str]], visit: Visit) -> Iterator[Finding]:
    stats, settings = told
    yield ok("server", f"{name}, version {stats['version']}")
    yield compare_clocks(f"the clock of {name}", float(stats["time"]) - visit.wall() / 1_000_000)
    if settings["evictions"] != "off":
        what = f"{name} throws values away when its memory is full, so messages may be lost"
        yield wrong("server", what, "start it with -M")
    if int(stats["evictions"]):
        yield wrong(
            "server",
            f"{name} has thrown away {int(stats['evictions']):,} values",
            "penstock check counts the messages among them",
        )
    used, most = int(stats["bytes"]), int(stats["limit_maxbytes"])
    what = f"{name} uses {size(used)} of {size(most)}"
    if used >= most * NEARLY:
        yield wrong("server", f"{what}: it is nearly full", "start it with more memory (-m)")
    else:
        yield ok("server", what)
    connections, room = int(stats["curr_connections"]), int(stats["max_connections"])
    if connections >= room * NEARLY:
        yield wrong("server", f"{connections} of {room} connections to {name} are in use", "start it with more (-c)")
    yield note("store", "memcached keeps messages in memory: a restart of it loses them", "other stores keep them on a disk")


def _ask(host: str, port: int, timeout: float) -> tuple[dict[str, str], dict[str, str]]:
    """By hand: the library reads the number of evictions as it reads the setting of that name."""
    try:
        with socket.create_connection((host, port), timeout) as connection, connection.makefile("rwb") as conversation:
            answers = []
            for command in (b"stats\r\n", b"stats settings\r\n"):
                conversation.write(command)
                conversation.flush()
                found: dict[str, str] = {}
                while (line := conversation.readline()).startswith(b"STAT "):
                    _, name, value = line.decode(errors="replace").rstrip("\r\n").split(" ", 2)
                    found[name] = value
                if line.rstrip() != b"END":
                    raise StoreUnreachable(f"what answers at {host}:{port} is no memcached")
                answers.append(found)
    except TimeoutError:
        raise StoreUnreachable(f"memcached at {host}:{port} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise StoreUnreachable(f"memcached at {host}:{port} cannot be reached: {error.strerror or error}") from error
    return answers[0], answers[1]

"""The course of a store's clock in memcached: PREFIX:clock:BOOT, JSON, for each boot of each machine that uses the store.

A machine whose record was evicted, or lost in a restart of the server, writes the one that it knows. Nothing survives a reboot
of the machine: its clock then starts from the wall clock.
"""

from __future__ import annotations

from penstock.clock import Course
from penstock.stores.memcached.link import Servers


class MemcachedClock:
    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._link = servers.links[0]

    def __str__(self) -> str:
        return str(self._servers)

    def read(self, boot: str) -> Course | None:
        key = self._key(boot)
        with self._servers.batch():
            return Course.unpack(self._link.get([key]).get(key))

    def create(self, boot: str, course: Course) -> Course:
        key = self._key(boot)
        with self._servers.batch():
            self._link.add(key, course.pack())
            found = Course.unpack(self._link.get([key]).get(key))  # ours or another's; an answer may have been lost, too
            if found is None:
                self.replace(boot, course, 0)
            return found or course

    def replace(self, boot: str, course: Course, now: int) -> None:  # noqa: ARG002
        with self._servers.batch():
            self._link.put({self._key(boot): course.pack()})

    def touch(self, boot: str, course: Course, now: int) -> None: ...

    def seen(self) -> int:
        return 0

    def _key(self, boot: str) -> str:
        return f"{self._servers.prefix}:clock:{boot}"

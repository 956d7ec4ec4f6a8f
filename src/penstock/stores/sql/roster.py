"""The consumers of each queue, in a table."""

from __future__ import annotations

from penstock.errors import QueueNotFound
from penstock.stores.ports import Roster
from penstock.stores.sql.session import SqlSession


class SqlRoster(Roster):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def beat(self, queue: str, consumer: str, now: int) -> None:
        with self._session._joined(durable=False):
            fields = {"queue": self._session._queue(queue)[0], "consumer": consumer, "now": now}
            if not self._session._run("beat", fields):
                self._session._run("enroll", fields)

    def strike(self, queue: str, before: int) -> None:
        with self._session._joined(durable=False):
            self._session._run("strike", {"queue": self._session._queue(queue)[0], "before": before})

    def living(self, queue: str) -> list[str]:
        rows = self._session._rows("living", {"name": queue})  # one round trip: a consumer asks before each receive
        if not rows:
            raise QueueNotFound(queue)
        return [name for (name,) in rows if name is not None]

    def leave(self, queue: str, consumer: str) -> None:
        with self._session._joined(durable=False):
            self._session._run("leave", {"queue": self._session._queue(queue)[0], "consumer": consumer})

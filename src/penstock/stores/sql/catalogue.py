"""The queues of an SQL database and their settings."""

from __future__ import annotations

from penstock.message import Settings
from penstock.stores.encoding import pack_settings
from penstock.stores.ids import Uuids
from penstock.stores.sql.database import Database


class SqlCatalogue:
    """Owns the rows of penstock_queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self._database.joined():
            found = self._database.rows("queue", {"name": name})
            if bool(found) == create:
                return False
            if create:
                return self._database.run("add_queue", {"name": name, "settings": pack_settings(settings)}) > 0
            self._database.run("change_queue", {"queue": found[0][0], "settings": pack_settings(settings)})
            return True

    def load(self, name: str) -> Settings | None:
        found = self._database.look_up(name)
        return None if found is None else found.settings

    def names(self) -> list[str]:
        return sorted(name for (name,) in self._database.rows("queues", {}))

    def drop(self, name: str) -> bool:
        with self._database.joined():
            found = self._database.rows("lock_queue", {"name": name})
            if not found:
                return False
            for part in ("held", "claims", "readers", "consumers", "marks", "settled", "messages", "queue"):
                self._database.run(f"drop_{part}", {"queue": found[0][0]})
            return True


class SqlUuids(Uuids):
    """The numbers of messages are unique in a database, so that one look finds a message in any queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def homes(self, given: str) -> list[str]:
        number = self._database.ids.number(given)
        return [] if number is None else [name for (name,) in self._database.rows("home", {"number": number})]

"""``penstock doctor``: what is wrong with a set-up, in one page and in bounded time.

It changes nothing: a store that does not exist is not made, and one of an older version is not brought to the newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Thread

from penstock.broker import REMOTE, STORES
from penstock.clock import Clock, system_clock
from penstock.errors import BadInput, PenstockError
from penstock.operations.doctor.databases import examine_mysql, examine_postgresql
from penstock.operations.doctor.findings import Finding, Severity, Visit, wrong
from penstock.operations.doctor.folders import examine_folder, examine_sqlite
from penstock.operations.doctor.machine import examine_clock, examine_java, examine_libraries, examine_python
from penstock.operations.doctor.memcached import examine_memcached
from penstock.operations.doctor.service import examine_service
from penstock.policy import check_seconds
from penstock.urls import shown, without_password

__all__ = ["PATIENCE", "Finding", "Severity", "examine"]

PATIENCE = 10.0
"""Seconds after which a check that has not ended is a finding itself."""
EXAMINATIONS: dict[str, Callable[[Visit], Iterable[Finding]]] = {
    "sqlite": examine_sqlite,
    "vsqs": examine_folder,
    "spool": examine_folder,
    "postgresql": examine_postgresql,
    "mysql": examine_mysql,
    "memcached": examine_memcached,
    **dict.fromkeys(REMOTE, examine_service),
}


class _Check(Thread):
    """One check. What it has found before it hangs is kept; nobody waits for its end."""

    def __init__(self, name: str, run: Callable[[], Iterable[Finding]]) -> None:
        super().__init__(name=f"penstock doctor: {name}", daemon=True)
        self.subject = name
        self.found: list[Finding] = []
        self.defect: Exception | None = None
        self._run = run
        self.start()

    def run(self) -> None:
        try:
            for finding in self._run():
                self.found.append(finding)
        except (PenstockError, OSError) as error:
            self.found.append(wrong(self.subject, str(error), "mend this first, and ask the doctor again"))
        except Exception as error:
            self.defect = error

    def result(self, give_up_at: float, patience: float) -> list[Finding]:
        self.join(max(0.0, give_up_at - time.monotonic()))
        if self.defect is not None:
            raise self.defect
        found = list(self.found)
        if self.is_alive():
            found.append(wrong(self.subject, f"no answer within {patience:g} s", "is the host up, and is its disk there?"))
        return found


def examine(url: str, *, patience: float = PATIENCE, wall: Clock = system_clock) -> list[Finding]:
    """Look at this machine, this Python and the store at ``url``, and return what was found, good and bad.

    It takes at most ``patience`` seconds, whatever hangs. ``wall`` is this machine's wall clock."""
    check_seconds(patience, "timeout", 1, BadInput)
    give_up_at = time.monotonic() + patience
    visit = Visit(url, patience / 2, wall)
    checks = [
        _Check("python", examine_python),
        _Check("libraries", examine_libraries),
        _Check("clock", lambda: examine_clock(wall)),
        _Check("java", examine_java),
        _Check("store", lambda: _examine_store(visit)),
    ]
    return [finding for check in checks for finding in check.result(give_up_at, patience)]


def _examine_store(visit: Visit) -> Iterable[Finding]:
    kind = visit.url.partition(":")[0]
    if kind in EXAMINATIONS:
        return EXAMINATIONS[kind](visit)
    if kind in STORES:
        return [Finding("store", Severity.NOTE, "a store in memory: its messages end with its process")]
    known = ", ".join(f"{name}:" for name in sorted(EXAMINATIONS))
    what = f"{shown(visit.url)} is no store that the doctor knows: {known}"
    return [wrong("store", without_password(what), "give its URL with --store, or in PENSTOCK_STORE")]

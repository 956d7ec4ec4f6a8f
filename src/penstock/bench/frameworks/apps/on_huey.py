"""Huey on a file of SQLite."""

from __future__ import annotations

from huey import SqliteHuey

from penstock.bench.frameworks.apps.surroundings import address, note

huey = SqliteHuey("bench", filename=address(), fsync=True)


@huey.task()  # type: ignore[untyped-decorator]
def empty() -> None:
    note()


def send() -> None:
    empty()

"""Procrastinate on PostgreSQL. Its worker has asyncio; the sender is a plain program."""

from __future__ import annotations

import procrastinate

from penstock.bench.frameworks.apps.surroundings import address, note

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address()))


@app.task(name="empty")
async def empty() -> None:
    note()


class Sender:
    """Opens the application, and makes its tables, when the first task is sent."""

    def __init__(self) -> None:
        self._opened = False

    def send(self) -> None:
        if not self._opened:
            app.open()
            app.schema_manager.apply_schema()
            self._opened = True
        empty.defer()


send = Sender().send

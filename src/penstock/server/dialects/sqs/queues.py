"""Queues: create, list, delete, purge, and what they are asked about."""

from __future__ import annotations

from typing import Any

from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.names import Names


class Queues:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.names = Names(core.settings)

    def __getattr__(self, name: str) -> Any:
        async def later(call: Call) -> dict[str, Any]:
            raise SqsError("UnsupportedOperation", f"not yet: {call.operation}")

        return later

"""The server itself, as the page shows it: what it holds, how fast it answers, what it stores where, and who else is there."""

from __future__ import annotations

import platform
from typing import Any

import penstock
from penstock.message import SECOND
from penstock.server.dialects.base import Core
from penstock.server.page.history import SHOW_EVERY, QueueHistory
from penstock.server.page.past import Past

HERE = int((2 * SHOW_EVERY) * SECOND)
"""Microseconds after which a server that writes nothing is not there any more."""


class Machine:
    """Tells about this process, and about others as far as they have written something down."""

    def __init__(self, core: Core, history: QueueHistory, past: Past) -> None:
        self._core = core
        self._history = history
        self._past = past

    async def tell(self, *, place: bool) -> dict[str, Any]:
        """``place``: with paths and addresses, which are for those who may change all queues."""
        core, node = self._core, self._history.node
        now = core.broker.clock()
        others = [each for each in await self._past.nodes(now - HERE) if each["name"] != node["name"]]
        metrics = core.metrics
        return {
            "at": now,
            "version": penstock.__version__,
            "python": platform.python_version(),
            "store": self._store(place=place),
            "started_at": node["started_at"],
            "pid": node["pid"],
            "workers": core.settings.workers,
            "connections": core.activity.connections,
            "resting_polls": core.polls.resting,
            "pending_operations": core.commits.pending,
            "memory": {"used": core.budget.used, "max": core.settings.max_memory},
            "commit_sizes": {"buckets": metrics.commit_sizes.buckets(), **metrics.commit_sizes.percentiles()},
            "commit_seconds": metrics.commit_seconds.percentiles(),
            "latencies": {dialect: found.percentiles() for dialect, found in sorted(metrics.latencies.items())},
            "nodes": [{**node, "seen_at": now, "here": True}, *others],
            "audit": core.audit.lines(),
        }

    def _store(self, *, place: bool) -> dict[str, Any]:
        """Without secrets: what a store says of itself names no password."""
        store = self._core.broker.store
        told = str(store)
        return {
            "kind": self._core.broker.kind,
            "place": told if place and not told.startswith("<") else None,
            "durable": store.durable,
            "ordered": store.ordered,
            "groups": store.groups,
        }

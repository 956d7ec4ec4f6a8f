"""Put a test's own function around a verb of a store's queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import LocalBroker
from penstock.stores.ports import StoredQueue


def wrap_verb(monkeypatch: pytest.MonkeyPatch, broker: LocalBroker, verb: str, around: Callable[..., Any]) -> None:
    """From now on, ``around(act, name, *arguments)`` is called instead of the verb; ``act(*arguments)`` is the verb itself."""
    make = broker.store.queue
    done: list[StoredQueue] = []

    def wrap(stored: StoredQueue, name: str) -> StoredQueue:
        if not any(stored is each for each in done):  # a store may give out the same object again
            done.append(stored)
            act = getattr(stored, verb)
            monkeypatch.setattr(stored, verb, lambda *arguments, **how: around(act, name, *arguments, **how))
        return stored

    monkeypatch.setattr(broker.store, "queue", lambda name: wrap(make(name), name))
    for name, queue in broker._queues.items():
        wrap(queue._opened.stored, name)

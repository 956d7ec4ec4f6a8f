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

    def wrapped(name: str) -> StoredQueue:
        stored = make(name)
        _wrap(monkeypatch, stored, name, verb, around)
        return stored

    monkeypatch.setattr(broker.store, "queue", wrapped)
    for name, queue in broker._queues.items():
        for stored in {id(each): each for each in (queue._opened.stored, queue._opened.retention._stored)}.values():
            _wrap(monkeypatch, stored, name, verb, around)


def _wrap(monkeypatch: pytest.MonkeyPatch, stored: StoredQueue, name: str, verb: str, around: Callable[..., Any]) -> None:
    act = getattr(stored, verb)
    monkeypatch.setattr(stored, verb, lambda *arguments, **how: around(act, name, *arguments, **how))

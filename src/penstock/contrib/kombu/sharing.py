"""The store that all connections of kombu in a process share: one of Celery's processes has several, and closes them often."""

from __future__ import annotations

from threading import Lock
from typing import Any

import penstock
from penstock.broker import Broker, LocalBroker
from penstock.contrib.keeping import Keeper
from penstock.contrib.kombu.bindings import Bindings
from penstock.forking import watch
from penstock.queue.protocol import Queue

VISIBILITY = 30.0
MOST_QUEUES = 1000


class SharedStore:
    """Owns the broker, and a keeper for each queue whose messages are held here."""

    def __init__(self, broker: Broker, visibility: float) -> None:
        self.broker = broker
        self.visibility = visibility
        self.bindings = Bindings(broker)
        self.users = 0
        self._queues: dict[str, Queue] = {}
        self._keepers: dict[str, Keeper] = {}

    def queue(self, name: str) -> Queue:
        """Without a question to the store about a queue that was there before: its next verb tells if it has gone."""
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= MOST_QUEUES:  # each command that waits for replies has a queue of its own
                self._queues.clear()
            found = self._queues[name] = self.broker.queue(name)
        return found

    def keeper(self, name: str) -> Keeper:
        found = self._keepers.get(name)
        if found is None:
            found = self._keepers.setdefault(name, Keeper(self.queue(name), self.broker.clock, self.visibility))
        return found

    def wake(self, name: str) -> None:
        """Have those of this process look who wait for messages of a queue."""
        if isinstance(self.broker, LocalBroker):
            self.broker.waiting.notify(name)

    def flush(self) -> None:
        for keeper in list(self._keepers.values()):
            keeper.flush()

    def close(self) -> None:
        for keeper in self._keepers.values():
            keeper.close()
        self.broker.close()


class SharedStores:
    """By URL and options. A memory store stays until the process ends, or its messages would go with a connection."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], SharedStore] = {}
        self._lock = Lock()
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        self._lock.release()

    def enter(self, url: str, visibility: float, options: dict[str, Any]) -> SharedStore:
        key = (url, visibility, *sorted(options.items()))
        with self._lock:
            shared = self._open.get(key)
            if shared is None:
                shared = SharedStore(penstock.open(url, **options), visibility)
                _ = shared.broker.store.durable  # is the server there?
                self._open[key] = shared
            shared.users += 1
        return shared

    def leave(self, shared: SharedStore) -> None:
        with self._lock:
            shared.users -= 1
            keys = [key for key, each in self._open.items() if each is shared and not key[0].startswith("memory:")]
            ended = bool(keys) and shared.users <= 0
            if ended:
                self._open.pop(keys[0])
        if ended:
            shared.close()


SHARED = SharedStores()

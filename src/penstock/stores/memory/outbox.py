"""What writers stage and publish, in memory. Any store that lives in one process can use it: `memory_outbox`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from penstock.guarded import guarded
from penstock.message import Entry, Settings
from penstock.stores.marked import Unmark, insert_marked
from penstock.stores.ports import Ledger, Outbox, Published, Staged, Staging, Step, Store


def memory_outbox(store: Store, unmark: Unmark | None = None) -> Outbox:
    """The outbox of this store. If its batches are not atomic, it must be able to forget marks."""
    return Outbox(MemoryStaging(store), MemoryLedger(store, unmark))


class MemoryStaging(Staging):
    """Owns the segments."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._staged: dict[tuple[str, int, str], tuple[bytes, int]] = {}

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        with self._store.batch():
            self._staged[writer, batch, name] = segment, now

    def staged(self, writer: str | None = None) -> list[Staged]:
        with self._store.batch():
            return [Staged(*key, now) for key, (_, now) in self._staged.items() if writer in (None, key[0])]

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        with self._store.batch():
            return self._staged.get((writer, batch, name), (None, 0))[0]

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        with self._store.batch():
            for found in self.staged(writer):
                if found.batch <= batch if names is None else found.batch == batch and found.name in names:
                    del self._staged[found[:3]]


class MemoryLedger(Ledger):
    """Owns the last batch of each writer."""

    def __init__(self, store: Store, unmark: Unmark | None) -> None:
        self._store = store
        self._unmark = unmark
        self._writers: dict[str, tuple[Published, int]] = {}

    @guarded
    def publishing(self, writer: str) -> Generator[Published | None]:
        with self._store.batch():
            before = self._writers
            try:
                yield before.get(writer, (None, 0))[0]
            except BaseException:
                self._writers = before  # the batch is undone as well
                raise

    def note(self, writer: str, published: Published, keep_until: int) -> None:
        with self._store.batch():
            self._writers = {**self._writers, writer: (published, keep_until)}

    def forget(self, now: int) -> None:
        with self._store.batch():
            self._writers = {writer: noted for writer, noted in self._writers.items() if noted[1] > now}

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        assert self._unmark is not None
        return insert_marked(self._store, self._unmark, step, queue, entries, now, settings)

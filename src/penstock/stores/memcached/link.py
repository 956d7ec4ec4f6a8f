"""The connections of one process to its memcached servers: commands, batches and locks.

If an answer is lost, `cas` returns None and `add` False, as if another process had been faster, and the caller looks again. A
command that is safe to repeat is retried once, as the server may have dropped the connection long ago.

    PREFIX:lock:NAME      a lock: a token and an expiry
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from types import FrameType
from typing import Any
from zlib import crc32

from penstock.errors import MissingExtra, StoreBusy, StoreClosed, StoreError, StoreFull, StoreUnreachable
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.patience import Patience
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.memcached.formats import digest

try:
    from pymemcache.client.base import Client
    from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError
except ImportError as error:
    raise MissingExtra("the memcached store", "memcached") from error

Items = dict[str, tuple[bytes, bytes]]
GONE_AT_ONCE = -1
"""An expiry time in the past: a value stored with it is deleted."""
MAX_PIECE = 500_000
ITEM_OVERHEAD = 512
"""What an item takes besides its value: key, header, flags."""
LOCK_SECONDS = 5
"""A lock whose holder died expires after this. Holders write by compare-and-swap, so being late does no harm."""
LOCK_POLL = 0.003


class Link:
    """The connection to one server: the few commands that we use, with its errors as Penstock errors."""

    def __init__(self, host: str, port: int, patience: Patience) -> None:
        self.name = f"{host}:{port}"
        self.patience = patience
        timeout = patience.timeout
        self._client = Client((host, port), connect_timeout=timeout, timeout=timeout, no_delay=True, default_noreply=False)
        self._piece = 0
        self._closed = False

    def __str__(self) -> str:
        return f"memcached at {self.name}"

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(keys)
        return self._ask(self._client.get_many, wanted, again=True) if wanted else {}

    def gets(self, keys: Iterable[str]) -> Items:
        """Values with their tokens for `cas`. The server reads them in the order of the keys."""
        wanted = list(keys)
        return self._ask(self._client.gets_many, wanted, again=True) if wanted else {}

    def add(self, key: str, value: bytes, expire: int = 0) -> bool:
        return bool(self._ask(self._client.add, key, value, expire, unsure=False))

    def cas(self, key: str, value: bytes, token: bytes | None, expire: int = 0) -> bool | None:
        """False: another process was faster; None: the key is missing, or we cannot know. No token: the key must be new."""
        if token is None:
            return self.add(key, value, expire)
        return self._ask(self._client.cas, key, value, token, expire, unsure=None)  # type: ignore[no-any-return]

    def put(self, values: Mapping[str, bytes], expire: int = 0) -> None:
        """Write to keys that only we use."""
        if values:
            self._ask(self._client.set_many, dict(values), expire, again=True)

    def incr(self, key: str, by: int) -> int | None:
        return self._ask(self._client.incr, key, by, again=True)  # type: ignore[no-any-return]

    def forget(self, keys: Iterable[str]) -> None:
        """Delete what nobody can reach any more, without waiting for an answer."""
        keys = list(keys)
        if keys:
            self._ask(self._client.delete_many, keys, True, unsure=None)

    def nudge(self, key: str) -> None:
        self._ask(self._client.incr, key, 1, True, unsure=None)

    def delete_if(self, key: str, is_ours: Callable[[bytes], bool]) -> bool:
        """Compare and delete."""
        value, token = self.gets([key]).get(key, (b"", b""))
        return bool(token) and is_ours(value) and self.cas(key, b"", token, GONE_AT_ONCE) is True

    def piece(self) -> int:
        """How many bytes fit into one item."""
        if not self._piece:
            limit = 1024 * 1024
            with suppress(StoreError):  # a different server may not tell; then use the usual limit
                limit = int(self._ask(self._client.stats, "settings", again=True).get(b"item_size_max", limit))
            self._piece = min(MAX_PIECE, limit - ITEM_OVERHEAD)
        return self._piece

    def drop_connection(self) -> None:
        self._client.close()

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _ask(self, verb: Callable[..., Any], *arguments: Any, again: bool = False, unsure: Any = ...) -> Any:
        if self._closed:
            raise StoreClosed(f"{self} was closed")
        try:
            return self._send(verb, *arguments)
        except TimeoutError as error:
            if unsure is not ...:
                return unsure
            raise StoreUnreachable(f"{self} did not answer within {self.patience.timeout} s") from error
        except (OSError, MemcacheUnexpectedCloseError) as error:
            if again:
                return self._ask(verb, *arguments)
            if unsure is not ...:
                return unsure
            raise StoreUnreachable(f"{self} cannot be reached: {error or 'it closed the connection'}") from error
        except MemcacheError as error:
            raise self._translate(str(error)) from error
        except BaseException:
            self._client.close()  # the rest of this answer would be read as the next one
            raise

    def _send(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        """Every command passes through here."""
        return verb(*arguments)

    def _translate(self, error: str) -> StoreError:
        if "out of memory" in error:
            return StoreFull(f"{self} is full: it has no memory left, and was told not to evict")
        if "too large" in error:
            needed = "8 KB at least, and more for many queues with long labels"
            return StoreFull(f"{self}: its items are too small for us (-I); they must hold {needed}")
        return StoreError(f"{self}: {error}")


class Servers:
    """Owns the connections, the batch that is open, and the locks that it has taken."""

    def __init__(self, servers: Sequence[tuple[str, int]], prefix: str, patience: Patience) -> None:
        self.prefix = prefix
        self.links = [Link(host, port, patience) for host, port in servers]
        self.patience = patience
        self._lock = RLock()
        self._depth = 0
        self._opener: FrameType | None = None
        self._locks: dict[str, tuple[Link, bytes]] = {}
        self._closed = False
        watch(self)

    def __str__(self) -> str:
        return f"memcached at {','.join(link.name for link in self.links)}"

    def link(self, name: str) -> Link:
        """The server that keeps a queue, or a writer."""
        return self.links[crc32(name.encode()) % len(self.links)]

    @guarded
    def batch(self) -> Generator[None]:
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self} was closed")
            depth = self._depth
            if depth:
                refuse_handlers(self, self._opener)
            try:
                self._depth = depth + 1
                if not depth:
                    self._opener = find_caller()  # from here on, signal handlers are refused: they would read our answers
                yield
            finally:
                try:
                    if not depth:
                        self._unlock()
                finally:
                    self._depth = depth
                    if not depth:
                        self._opener = None

    def lock(self, name: str) -> None:
        """SimpleMessageQueue's lock, until the batch ends. It keeps other processes out of the same steps. Each of their writes
        is a compare-and-swap all the same."""
        key = self._lock_key(name)
        if key in self._locks or not self._depth:
            return
        link, token = self.link(name), secrets.token_bytes(16)
        timeout = LOCK_SECONDS + self.patience.timeout
        for _ in self.patience.tries(LOCK_POLL, timeout=timeout):
            # If the answer was lost, the lock may be ours all the same.
            if link.add(key, token, LOCK_SECONDS) or link.get([key]).get(key) == token:
                self._locks[key] = link, token
                return
        raise StoreBusy(f"{self}: queue {name!r} was locked by others for {timeout:g} s")

    def renew(self, name: str) -> None:
        """Extend a lock, if we have it. Raises `StoreBusy` if it had expired, since another process may have it."""
        key = self._lock_key(name)
        if key not in self._locks:
            return
        link, token = self._locks[key]
        found, seen = link.gets([key]).get(key, (b"", b""))
        if found != token or not link.cas(key, token, seen, LOCK_SECONDS):
            raise StoreBusy(f"{self}: the lock {name!r} expired after {LOCK_SECONDS} s, and another process may have it")

    def _unlock(self) -> None:
        while self._locks:
            key, (link, token) = self._locks.popitem()
            with suppress(StoreError):  # it expires
                link.delete_if(key, token.__eq__)  # if it is still ours

    def _lock_key(self, name: str) -> str:
        return f"{self.prefix}:lock:{digest(name.encode())}"

    def close(self) -> None:
        self._closed = True
        for link in self.links:
            link.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        for link in self.links:
            link.drop_connection()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()

"""What differs between the file formats: the folders of a store, and the names of one queue's files.

A message is a file. Each of its states is a path, and one rename takes it from one state to the next. A rename whose source is
gone means that another process was faster.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from penstock.stores.files.sidecar import Sidecar
from penstock.stores.ids import Uuids

Stamp = tuple[int, ...]
"""The mtimes (ns) of the folders with a queue's files."""


def stamp_of(folders: Sequence[str]) -> Stamp:
    """A value that changes whenever a name in one of these folders does."""
    return tuple([os.stat(folder).st_mtime_ns for folder in folders])


class Layout(ABC):
    """The files of one queue. ``hidden`` is the instant until which a message is hidden, 0 if it is ready."""

    folder: Path
    """It exists as long as the queue does."""
    watched: tuple[str, ...]
    """The folders that messages are in: ``folder``, then those that all queues share."""
    drafts_in: tuple[str, ...]
    """Those of them that drafts are in."""
    undated = 0
    """Numbers below this come from ids without a sending time."""
    peers = 0
    """How many other programs claim from the queue. With any, messages are not ordered, to lose fewer races."""
    unfinished = False
    """Whether another program is still writing a message: when it is done, `stamp` stays the same."""

    def stamp(self) -> Stamp:
        """A value that changes whenever a message comes, goes or changes its state."""
        return stamp_of(self.watched)

    @abstractmethod
    def scan(self, foreign: list[str]) -> Iterator[tuple[str, int]]:
        """Every message: its id, and until when it is hidden. The paths of other files are added to ``foreign``."""

    @abstractmethod
    def path(self, id: str, hidden: int) -> str: ...

    @abstractmethod
    def places(self, id: str, hidden: int) -> list[str]:
        """The possible paths of a message that has just been published."""

    @abstractmethod
    def locate(self, id: str, hidden: int) -> int:
        """Until when a message is hidden that should be at the path for ``hidden``. Raises `FileNotFoundError` if it is not."""

    @abstractmethod
    def draft(self, id: str) -> str:
        """The path where a message is written before it is published."""

    @abstractmethod
    def drafts(self) -> list[str]:
        """The paths of all drafts, including those of senders that died."""

    def writable(self, instant: int) -> int:
        """The instant, rounded as the format stores it."""
        return instant

    @abstractmethod
    def publish(self, id: str, hidden: int) -> None:
        """Make a draft a message."""

    @abstractmethod
    def rename(self, source: str, id: str, hidden: int) -> None:
        """Make a message ready (0) or hidden."""

    @abstractmethod
    def remove(self, path: str, id: str) -> None: ...

    @abstractmethod
    def touched(self) -> list[str]:
        """The folders to sync so that all name changes since the last call become durable."""

    @abstractmethod
    def take_ids(self, count: int, now: int) -> list[str]:
        """Reserve ids, under the lock. No draft with any of them may exist yet."""

    def check_drafts(self, ids: Collection[str]) -> None:  # noqa: B027
        """After the drafts are made, still under the lock: raises `FileExistsError` if another program has one of these ids."""

    def arrive(self, id: str) -> None:  # noqa: B027
        """A message of another queue was moved here with its id, which no send may take from now on."""

    def begin(self, stamp: Stamp) -> None:  # noqa: B027
        """The queue's lock was taken."""

    def end(self, stamp: Stamp) -> None:  # noqa: B027
        """All went well, and the queue's lock is about to be released."""

    def seal(self, id: str, hidden: int) -> int:  # noqa: ARG002
        """A value that distinguishes our hiding of a message from another program's; 0 if its path does."""
        return 0

    @abstractmethod
    def number(self, id: str) -> int:
        """The id as a number, in the order of delivery; 0 if it is not an id."""

    @abstractmethod
    def sent_at(self, id: str, status: os.stat_result) -> int:
        """When a message without a sidecar record was sent."""


class Format(ABC):
    """The folders of one store."""

    queues: Path
    """It contains a folder for each queue."""

    def prepare(self) -> None:  # noqa: B027
        """Make the folders that all queues share."""

    @abstractmethod
    def layout(self, queue: str, sidecar: Sidecar) -> Layout: ...

    def clear(self, queue: str) -> None:  # noqa: B027
        """Remove a queue's messages that are outside its folder."""

    @abstractmethod
    def uuids(self, ids: Callable[[str], list[str]]) -> Uuids:
        """``ids`` lists the messages of a queue."""

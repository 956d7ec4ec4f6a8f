"""What the parts of a queue share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import QueueNotFound
from penstock.guarded import guarded
from penstock.message import Held, Settings, State
from penstock.policy import settlement
from penstock.queue.retention import Retention, Tender
from penstock.queue.waiting import Waiting
from penstock.stores.ports import Store

Answer = TypeVar("Answer")


class OpenQueue:
    """A queue of a store, as one broker uses it. Owns the settings as last read."""

    def __init__(
        self, name: str, store: Store, waiting: Waiting, clock: Clock, tender: Tender, known: Settings | None = None
    ) -> None:
        self.name = name
        self.store = store
        self.stored = store.queue(name)
        self.waiting = waiting
        self.clock = clock
        self.retention = Retention(name, store, self.stored, waiting, clock)
        self.known = known
        """The settings as last read. A caller acts on these, and the store says so if they have changed."""
        self._tender = tender

    def read_settings(self) -> Settings:
        settings = self.known = self.store.load(self.name)
        if settings is None:
            raise QueueNotFound(self.name)
        return settings

    def due(self) -> int | None:
        """When there is, or was, a message to look for; None if there is nothing to wait for, or the queue is paused."""
        due = self.stored.due()
        return None if due is None or self.is_paused() else due

    def is_paused(self) -> bool:
        """A paused queue is asked again each time, as another process may resume it. That a queue was paused is seen by the
        claim, which the store refuses."""
        return self.known is not None and self.known.paused and self.read_settings().paused

    def decide(self, act: Callable[[Settings], Answer | None]) -> tuple[Answer, Settings]:
        """Act on the settings we know, and again on new ones if the store answers None: they have changed. Returns the answer
        and the settings that it is for."""
        settings = self.known or self.read_settings()
        while (answer := act(settings)) is None:
            settings = self.read_settings()
        return answer, settings

    def settle(self, held: Sequence[Held], settings: Settings, state: State, reason: str | None, now: int) -> list[bool]:
        """Settle messages inside a batch, where the settings cannot change."""
        gone = self.stored.delete(held, settlement(settings, state, reason, now))
        assert gone is not None
        return gone

    def tell(self, settings: Settings | None = None) -> None:
        """Wake those who wait here; with ``settings``, also those who wait for dead letters of this queue."""
        redrive = None if settings is None else settings.redrive
        if redrive is None:
            self.waiting.notify(self.name)
        else:
            self.waiting.notify(self.name, redrive.dead_letter_queue)

    def tend(self) -> None:
        """Have the queue cleared. Call this when `Retention.due_at` has passed."""
        self._tender.ask(self.retention, self.clock())

    def tend_for_space(self, now: int) -> None:
        """Call this when a send has found no space: clearing makes some, and perhaps nobody receives any more."""
        if now >= self.retention.due_at:
            self.tend()

    def tend_after_settling(self) -> None:
        self._tender.ask_after_settling(self.retention, self.clock())

    @guarded
    def joining(self, connection: object) -> Generator[OpenQueue]:
        """This queue, inside the caller's open transaction."""
        with self.store.joining(connection) as store:
            yield OpenQueue(self.name, store, self.waiting, self.clock, self._tender)

"""A consumer takes its share of a queue and hands each message to a callback, whose outcome settles it (gq).

    callback returns      processed: settled within a few milliseconds, independently of its batch
    callback raises       by the message's retry policy, else its queue's, else our back-off: queued again, or given up;
                          past its deadline, failed. `penstock.Retry` and `penstock.Reject` say it themselves
    too late to start     its lease or deadline has passed: left to others; at most once, failed
    the consumer dies     its leases lapse, and other consumers take what it held (at least once)

In the mode at_most_once a message is settled when it is taken, and never runs again, whatever happens to the callback.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Event, Lock, current_thread, main_thread
from typing import Any

from penstock import policy
from penstock.errors import BadInput, PenstockError, QueueNotFound
from penstock.message import MAX_NUMBER, SECOND, Curve, Message, Mode, Retried, RetryPolicy
from penstock.policy import Failed
from penstock.queue.protocol import Queue
from penstock.stores.ports import Roster
from penstock.workers.executors import KINDS, Ended, MessageHandler, Outcome, Runner, TooLate, make_runner, reads
from penstock.workers.heartbeat import Heartbeat
from penstock.workers.settler import Settler

logger = logging.getLogger("penstock")
NOTHING = nullcontext()
GivenUpHandler = Callable[[Message, str], object]
IDLE_WAIT = 1.0
ERROR_PAUSE = 1.0
NEAR = SECOND
"""Microseconds before its deadline within which a processed message does not wait for others to share its commit."""


@dataclass(slots=True)
class Tally:
    """What happened to the messages that a consumer took. ``lost``: the lease had lapsed before the callback could start, or
    another consumer held the message when it was to be settled."""

    processed: int = 0
    retried: int = 0
    failed: int = 0
    lost: int = 0
    given_back: int = 0


class Consumer:
    """Made by `Broker.consumer`. `process` registers a callback; `run` works until `stop` is called or SIGTERM arrives."""

    def __init__(
        self,
        queue: Queue,
        roster: Roster,
        clock: Callable[[], int],
        *,
        batch_size: int = 10,
        mode: Mode | str | None = None,
        visibility: float | None = None,
        workers: int = 1,
        kind: str = "threads",
        helping: bool = True,
        heartbeat: float = 2,
        check_every: int = 2,
        max_missed: int = 2,
        back_off: float = 1,
        max_back_off: float = 300,
        beside: AbstractContextManager[object] = NOTHING,
    ) -> None:
        policy.check_count(batch_size, "batch_size", 1, policy.MAX_BATCH, BadInput)
        policy.check_count(workers, "workers", 1, 1000, BadInput)
        policy.check_count(check_every, "check_every", 1, MAX_NUMBER, BadInput)
        policy.check_count(max_missed, "max_missed", 1, MAX_NUMBER, BadInput)
        policy.check_seconds(heartbeat, "heartbeat", 0.01, BadInput)
        policy.check_seconds(back_off, "back_off", 0, BadInput)
        policy.check_seconds(max_back_off, "max_back_off", 0, BadInput)
        if visibility is not None:
            policy.check_seconds(visibility, "visibility", 0.1, BadInput)
        if kind not in KINDS:
            raise BadInput(f"kind {kind!r:.200} is not one of {', '.join(KINDS)}")
        settings = queue.settings
        try:
            self._mode = Mode(mode or settings.mode)
        except ValueError:
            raise BadInput(f"mode {mode!r:.200} is not one of {', '.join(Mode)}") from None
        self.queue = queue
        self.tally = Tally()
        self._clock = clock
        self._batch_size = batch_size
        self._visibility = settings.visibility if visibility is None else visibility
        self._workers = workers
        self._kind = kind
        self._helping = helping
        self._beside = beside
        self._retry = RetryPolicy(None, back_off, Curve.EXPONENTIAL, max_back_off, 0)
        self._handler: MessageHandler | None = None
        self._given_up: GivenUpHandler | None = None
        self._stopping = Event()
        self._counting = Lock()
        self._settler = Settler(self._settle)
        held = self._visibility if self._mode is Mode.AT_LEAST_ONCE else None
        self._heart = Heartbeat(
            queue, roster, clock, interval=heartbeat, check_every=check_every, max_missed=max_missed, visibility=held
        )

    def process(self, handler: MessageHandler, *, given_up: GivenUpHandler | None = None) -> MessageHandler:
        """Register the callback, which gets the payload and the message; usable as a decorator. ``given_up`` gets each message
        that has failed for good, and why."""
        if not callable(handler):
            raise BadInput(f"a callback is a function of payload and message, not {handler!r:.200}")
        self._handler = handler
        self._given_up = given_up
        return handler

    @property
    def place(self) -> int:
        """This consumer's rank by age among the live consumers (gq's consumer ID)."""
        return self._heart.share[0]

    def stop(self) -> None:
        """Make `run` return: it finishes what has begun, and gives back the rest. Safe to call from any thread or signal
        handler."""
        self._stopping.set()

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping.is_set()

    def run(self, *, until_empty: bool = False) -> Tally:
        """Work until stopped; with ``until_empty``, stop when there is nothing to take."""
        if self._handler is None:
            raise BadInput("the consumer has no callback: decorate one with @consumer.process")
        runner = make_runner(self._kind, self._handler, self._check, self._workers)
        flying: dict[Outcome, Message] = {}
        try:
            self._heart.start()
            if type(runner) is Runner:  # callbacks run in this thread, so another thread settles while a slow one runs
                self._settler.start()
            with self._signals(), NOTHING if until_empty else self._beside:
                while not self._stopping.is_set():
                    taken = self._fill(runner, flying, 0 if until_empty else IDLE_WAIT)
                    if until_empty and not taken and not flying:
                        break
                    self._land(runner, flying)
                if self._mode is Mode.AT_LEAST_ONCE:  # at most once, a taken message that does not run is lost
                    runner.cancel()
                while flying:
                    self._settle(self._settler.take())
                    self._land(runner, flying)
        finally:
            runner.close()
            self._settle(self._settler.stop())
            self._heart.stop()
        return self.tally

    def _check(self, message: Message) -> None:
        """Called right before a callback starts, in any thread: the message may have waited long behind others."""
        if late := policy.too_late(message, self._mode, self._clock()):
            raise TooLate(f"its {late} has passed")

    def _fill(self, runner: Runner, flying: dict[Outcome, Message], patience: float) -> int:
        """Settle what was processed, take as many messages as there is room for, and start their callbacks."""
        room = max(self._batch_size, self._workers) - len(flying)
        limit = min(room, self._batch_size)
        messages: list[Message] = []
        try:
            self._heart.confirm()
            if processed := self._settler.take():
                messages = self._exchange(processed, limit)
            if room > 0 and not messages:
                messages = self._take(limit, 0 if flying else patience)
        except QueueNotFound:
            raise
        except PenstockError as error:
            logger.warning("queue %r cannot be consumed for now: %s", self.queue.name, error)
            self._settle(self._settler.take())
            self._stopping.wait(ERROR_PAUSE)
            return 0
        at_once = self._mode is Mode.AT_MOST_ONCE
        if self._heart.leases is not None:
            self._heart.leases.hold(messages)
        for message in messages:
            # At most once, a taken message is already settled: run it even when we are told to stop, or it would be lost.
            if self._stopping.is_set() and not at_once:
                self._give_back(message)
                continue
            outcome = runner.submit(message)
            if type(outcome) is Ended:
                self._end(runner, outcome, message)
            else:
                flying[outcome] = message
        return len(messages)

    def _exchange(self, processed: list[Message], limit: int) -> list[Message]:
        """Settle, and take from our own share, in one commit. If that fails, there are no messages either."""
        if self._mode is Mode.AT_LEAST_ONCE:
            share = self._heart.share if self._heart.share[1] > 1 else None
            self._let_go(*processed)
            try:
                answers, messages = self.queue.exchange(
                    processed, limit, visibility=self._visibility, share=share, holder=self._heart.name
                )
            except PenstockError:
                pass  # the next attempt reports the error
            else:
                self._count_settled(answers)
                return messages
        self._settle(processed)
        return []

    def _take(self, limit: int, wait: float) -> list[Message]:
        """The oldest messages of our own share; if it is empty, of any share."""
        share = self._heart.share
        options: dict[str, Any] = {"visibility": self._visibility, "mode": self._mode, "holder": self._heart.name}
        options["unfinished"] = True
        if share[1] > 1:
            messages = self.queue.receive(limit, share=share, wait=0 if self._helping else wait, **options)
            if messages or not self._helping:
                return messages
        return self.queue.receive(limit, wait=wait, **options)

    def _land(self, runner: Runner, flying: dict[Outcome, Message]) -> None:
        """Handle callbacks that have ended in another thread or process."""
        done = runner.ended(flying)
        for outcome in [outcome for outcome in flying if outcome in done]:
            self._end(runner, outcome, flying.pop(outcome))

    def _end(self, runner: Runner, outcome: Outcome, message: Message) -> None:
        if outcome.cancelled():
            self._give_back(message)
        elif (error := outcome.exception()) is None:
            self._settler.add(message, outcome.took if type(outcome) is Ended else 0.0)
            at_least_once = self._mode is Mode.AT_LEAST_ONCE
            if at_least_once and message.deadline_at is not None and message.deadline_at - self._clock() < NEAR:
                self._settle(self._settler.take())
        elif isinstance(error, TooLate):
            self._leave(message, error)
        elif runner.broke(error):
            self._broke(message)
        else:
            self._after(message, reads(error))

    def _settle(self, messages: list[Message]) -> None:
        """Called from the consumer's own thread or the settler's."""
        self._let_go(*messages)
        if self._mode is Mode.AT_MOST_ONCE or not messages:
            self._finish(messages)
            self._count(processed=len(messages))
            return
        try:
            answers = self.queue.delete_many(messages)
        except Exception as error:  # whatever the error, go on with the other messages
            logger.warning("%d processed messages of queue %r could not be settled: %s", len(messages), self.queue.name, error)
            answers = [False] * len(messages)
        self._count_settled(answers)

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, count in more.items():
                setattr(self.tally, name, getattr(self.tally, name) + count)

    def _count_settled(self, answers: list[bool]) -> None:
        self._count(processed=sum(answers), lost=len(answers) - sum(answers))

    def _leave(self, message: Message, late: TooLate) -> None:
        """It was too late to start: another consumer may already hold the message."""
        logger.warning("message %s of queue %r was not started: %s", message.id, self.queue.name, late)
        self._let_go(message)
        if self._mode is Mode.AT_MOST_ONCE:
            self._fail(message, "deadline")
        else:
            self._count(lost=1)

    def _fail(self, message: Message, reason: str) -> None:
        """At most once: the message was settled when it was taken."""
        self._finish([message], reason)
        self._count(failed=1)
        self._tell_given_up(message, reason)

    def _finish(self, messages: list[Message], failed: str | None = None) -> None:
        """At most once: record the outcomes in the history, if there is one."""
        told = [message for message in messages if message.reason == policy.UNFINISHED]
        try:
            if told:
                self.queue.finish(told, failed)
        except Exception as error:
            logger.warning("the history of queue %r has %d messages as unfinished: %s", self.queue.name, len(told), error)

    def _broke(self, message: Message) -> None:
        """The callback's process died. Nobody knows how far the callback came: without a policy, its lease lapses."""
        logger.error("the process that handled message %s of queue %r died", message.id, self.queue.name)
        try:
            counts = self._mode is Mode.AT_MOST_ONCE or bool(message.retry or self.queue.settings.retry)
        except PenstockError:  # the next call reports it
            counts = False
        if counts:
            self._after(message, Failed("took its process down"))
        else:
            self._let_go(message)

    def _after(self, message: Message, failed: Failed) -> None:
        logger.warning("message %s of queue %r: %s", message.id, self.queue.name, failed.error)
        self._let_go(message)
        reason = policy.rejected(failed.error) if failed.rejects else failed.error
        if self._mode is Mode.AT_MOST_ONCE:  # it cannot come again
            self._fail(message, reason)
            return
        try:
            done = self.queue.retry(message, failed, otherwise=self._retry)
        except PenstockError as trouble:
            logger.warning("message %s could not be given back: %s", message.id, trouble)
            done = Retried.STALE
        self._count(lost=done is Retried.STALE, failed=done is Retried.GIVEN_UP, retried=done is Retried.AGAIN)
        if done is Retried.GIVEN_UP:
            self._tell_given_up(message, reason)

    def _tell_given_up(self, message: Message, reason: str) -> None:
        try:
            if self._given_up is not None:
                self._given_up(message, reason)
        except Exception:  # whatever the error, go on with the other messages
            logger.exception("message %s of queue %r was given up, and whom to tell failed", message.id, self.queue.name)

    def _let_go(self, *messages: Message) -> None:
        if self._heart.leases is not None:
            self._heart.leases.let_go(*messages)

    def _give_back(self, message: Message) -> None:
        self._let_go(message)
        try:
            self._count(given_back=self.queue.release(message))
        except PenstockError as error:
            logger.warning("message %s could not be given back: %s", message.id, error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if current_thread() is not main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

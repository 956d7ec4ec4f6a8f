"""The contract's chapter on retries: what becomes of a message whose handler has failed, and what can be seen of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import BadMessage, Broker, Consumer, Draft, Message, Queue, Redrive, Reject, Retry, RetryPolicy
from penstock.message import Curve, Retried
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies

PROMPT = RetryPolicy(3, delay=0, jitter=0)
FAILURES = 3
KILLED = 40
"""Messages of the test that kills consumers."""
PATIENCE = 300


def slow(attempts: int | None = 5, delay: float = 10) -> RetryPolicy:
    return RetryPolicy(attempts, delay, Curve.LINEAR, 25, jitter=0)


def failing(broker: Broker, error: Callable[[], BaseException], **options: Any) -> Consumer:
    """A consumer of `orders` whose callback raises this."""
    consumer = broker.consumer("orders", **options)

    @consumer.process
    def handle(payload: bytes, message: Message) -> None:
        raise error()

    return consumer


class Retrying:
    def test_a_message_keeps_the_error_with_which_it_was_released_and_counts_it(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", history=60)
        queue.send(b"x")
        (first,) = queue.receive()
        assert (first.failures, first.error) == (0, None)
        assert first.release(5, "OSError: no") is True
        (waiting,) = queue.peek()
        assert (waiting.state.name, waiting.visible_at, waiting.receives) == ("QUEUED", clock.now + 5_000_000, 1)
        assert (waiting.failures, waiting.error, waiting.intact) == (1, "OSError: no", True)
        clock.advance(5)
        (second,) = queue.receive()
        assert (second.failures, second.error, second.receives) == (1, "OSError: no", 2)
        assert [(held.failures, held.error) for held in queue.peek(state="consumed")] == [(1, "OSError: no")]
        long = "ö" * 2047 + "\n\\"
        assert second.release(0, long) is True
        (third,) = queue.receive()
        assert third.release() is True
        (fourth,) = queue.receive()
        assert (third.failures, third.error) == (fourth.failures, fourth.error) == (2, long)
        assert fourth.delete() is True
        assert [(each.state.name, each.failures, each.error) for each in queue.settled()] == [("PROCESSED", 2, long)]

    def test_whatever_characters_an_error_has_its_message_is_given_up(self, broker: Broker) -> None:
        queue = broker.create("orders", history=60, retry=RetryPolicy(1))
        queue.send_many([b"1", b"2"])
        rejected, failed = queue.receive(2)
        assert queue.retry(rejected, Reject("embedded \0 null, \x1f \U0001f4e7")) is Retried.GIVEN_UP
        assert queue.retry(failed, ValueError("\0\ud800")) is Retried.GIVEN_UP
        assert queue.peek() == []
        reasons = ["rejected: embedded \ufffd null, \x1f \U0001f4e7", "attempts: ValueError: \ufffd?"]
        assert sorted(str(each.reason) for each in queue.settled()) == sorted(reasons)

    def test_a_reason_that_not_every_store_can_keep_is_refused(self, queue: Queue) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        for verb in (queue.fail, queue.bury, lambda held, reason: queue.release(held, 0, reason)):
            with pytest.raises(BadMessage, match=r"reason 'a\\x00b' has a null character"):
                verb(message, "a\0b")
        assert message.delete() is True

    def test_a_stale_receipt_notes_no_error(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (stale,) = queue.receive(visibility=5)
        clock.advance(5)
        (held,) = queue.receive(visibility=5)
        assert stale.release(0, "late") is False
        assert held.release(0, "first") is True
        assert held.release(0, "again") is False
        assert queue.bury("no-such-message", "why") is False
        assert [(message.failures, message.error) for message in queue.peek()] == [(1, "first")]

    def test_an_error_changes_nothing_else_of_a_message(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", deduplicate=True)
        draft = Draft(b"x" * 5000, "text/plain", {"n": 1, "b": b"\0"}, visibility=7, deadline=60, key="k", retry=slow())
        queue.send_many([draft, b"other"])
        (message, _) = queue.receive(2, visibility=30)
        before = queue.peek(2, state="consumed")[0]
        message.release(0, "no")
        after = queue.peek(2, state="queued")[0]
        for name in ("id", "body", "content_type", "attributes", "visibility", "deadline_at", "key", "retry", "expires_at"):
            assert getattr(after, name) == getattr(before, name), name
        assert after.intact is True
        assert queue.send(b"other", key="k").duplicate is True
        assert bodies(queue.receive()) == [b"x" * 5000]

    @pytest.mark.parametrize("error", [5, "x" * 5000, "\udcff"])
    def test_an_error_that_is_no_reason_is_refused_and_changes_nothing(self, queue: Queue, error: Any) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        with pytest.raises(BadMessage):
            queue.release(message, 0, error)
        with pytest.raises(BadMessage):
            queue.bury(message, error)
        with pytest.raises(BadMessage, match="without a reason"):
            queue.bury(message, None)  # type: ignore[arg-type]
        assert [(each.state.name, each.failures) for each in queue.peek()] == [("CONSUMED", 0)]

    # policies

    def test_the_message_s_own_policy_comes_before_its_queue_s_and_that_before_its_consumer_s(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        queue = broker.create("orders", retry=slow(delay=10))
        queue.send(b"own", retry=slow(delay=3))
        queue.send(b"queue's")
        failing(broker, lambda: OSError("no"), back_off=100).run(until_empty=True)
        assert {each.body: each.visible_at - clock.now for each in queue.peek(2)} == {b"own": 3_000_000, b"queue's": 10_000_000}
        queue.update(retry=None)
        clock.advance(10)
        failing(broker, lambda: OSError("no"), back_off=100).run(until_empty=True)
        assert {each.body: each.visible_at - clock.now for each in queue.peek(2)} == {
            b"own": 6_000_000,
            b"queue's": 200_000_000,
        }

    def test_a_policy_stays_as_it_was_given(self, broker: Broker) -> None:
        own = RetryPolicy(None, 0.5, Curve.FIXED, 7.25, 0.125)
        queue = broker.create("orders", retry=own)
        assert queue.settings.retry == broker["orders"].settings.retry == own
        assert queue.update(visibility=5).retry == own
        queue.send_many([Draft(b"x", retry=slow()), Draft(b"y", key="k", retry=own), b"z"])
        assert [message.retry for message in queue.receive(3)] == [slow(), own, None]
        queue.update(retry=None)
        assert queue.settings == broker.create("plain", visibility=5).settings

    def test_jitter_is_what_the_caller_s_chance_says(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x", retry=RetryPolicy(delay=100, jitter=0.5))
        (message,) = queue.receive()
        assert queue.retry(message, "no", chance=lambda: 0.5) is Retried.AGAIN
        assert queue.peek()[0].visible_at == clock.now + 75_000_000

    def test_after_its_last_attempt_a_message_is_a_dead_letter_with_the_error(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 9), retry=PROMPT)
        queue.send(b"x", attributes={"a": 1})
        clock.advance(1)
        tally = failing(broker, lambda: OSError("no")).run(until_empty=True)
        assert (tally.retried, tally.failed, queue.stats().messages) == (2, 1, 0)
        (letter,) = dead.peek()
        assert letter.death is not None
        assert (letter.death.queue, letter.death.reason, letter.death.receives) == ("orders", "attempts: OSError: no", 3)
        assert (letter.death.died_at, letter.attributes, letter.failures, letter.error) == (clock.now, {"a": 1}, 0, None)
        assert dead.redrive() == 1
        (again,) = queue.receive()
        assert (again.failures, again.error, again.death, again.receives) == (0, None, None, 1)

    def test_without_a_dead_letter_queue_it_has_failed(self, broker: Broker) -> None:
        queue = broker.create("orders", history=60, retry=PROMPT)
        queue.send(b"x")
        tally = failing(broker, lambda: OSError("no")).run(until_empty=True)
        assert (tally.retried, tally.failed) == (2, 1)
        (settled,) = queue.settled()
        assert (settled.state.name, settled.reason, settled.receives) == ("FAILED", "attempts: OSError: no", 3)
        assert (settled.failures, settled.error) == (2, "OSError: no")

    @pytest.mark.parametrize(
        ("attempts", "most", "reason"), [(2, 5, "attempts"), (5, 2, "max_receives"), (None, 2, "max_receives")]
    )
    def test_the_stricter_of_attempts_and_max_receives_counts(
        self, broker: Broker, clock: FakeClock, attempts: int | None, most: int, reason: str
    ) -> None:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", most), retry=slow(attempts))
        queue.send(b"x")
        consumer = failing(broker, lambda: OSError("no"))
        consumer.run(until_empty=True)
        clock.advance(10)
        tally = consumer.run(until_empty=True)
        assert (tally.retried, tally.failed) == (1, 1)
        assert [letter.death and letter.death.reason for letter in dead.peek()] == [f"{reason}: OSError: no"]

    def test_only_a_failed_attempt_counts_but_max_receives_counts_every_receive(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 5), retry=PROMPT, visibility=5)
        queue.send(b"x")
        queue.receive()[0].release()
        queue.retry(queue.receive()[0], OSError("no"))
        queue.receive()  # and dies
        clock.advance(5)
        (message,) = queue.receive()
        assert (message.receives, message.failures) == (4, 1)
        assert queue.retry(message, OSError("no")) is Retried.AGAIN  # the second of three
        queue.receive()
        clock.advance(5)
        assert queue.receive() == []
        (letter,) = dead.peek()
        assert letter.death is not None
        assert (letter.death.reason, letter.death.receives) == ("max_receives: OSError: no", 5)

    def test_a_message_is_retried_by_hand_as_by_a_consumer(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 9), history=60, visibility=60)
        queue.send_many([b"again", b"stale", Draft(b"late", deadline=5), b"no use", b"by id"])
        again, stale, late, useless, _ = sorted(queue.receive(5), key=lambda message: message.number)
        assert queue.retry(again, "later") is Retried.AGAIN
        stale.release(3600)
        assert queue.retry(stale, "too late") is Retried.STALE
        clock.advance(5)
        assert queue.retry(late, ValueError("slow")) is Retried.GIVEN_UP
        assert queue.retry(useless, Reject("no use")) is Retried.GIVEN_UP
        assert [each.reason for each in queue.settled()] == ["ValueError: slow"]
        assert queue.bury(next(each.id for each in queue.peek(9) if each.body == b"by id"), "an operator") is True
        deaths = {each.body: (each.death.reason, each.death.receives) for each in dead.peek(9) if each.death}
        assert deaths == {b"no use": ("rejected: no use", 1), b"by id": ("an operator", 1)}
        assert [(each.body, each.failures) for each in queue.receive(9)] == [(b"again", 1)]

    # what a handler raises

    @pytest.mark.parametrize("workers", [1, 2, 0])
    def test_a_callback_asks_for_another_attempt_or_for_none(self, broker: Broker, clock: FakeClock, workers: int) -> None:
        """In the consumer's thread, in several threads, and as a coroutine (0)."""
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 9), retry=slow(2))
        queue.send_many([b"after", b"policy", b"handled", b"reject"])
        consumer = broker.consumer("orders", workers=workers or 2)

        def handle(payload: bytes, message: Message) -> None:
            if payload == b"reject":
                raise Reject("no such customer")
            if payload == b"handled":
                try:
                    raise OSError("no")
                except OSError:
                    raise Retry(after=7)  # noqa: B904 (as users write it)
            raise Retry(after=300 if payload == b"after" else None, reason="busy")

        async def await_it(payload: bytes, message: Message) -> None:
            handle(payload, message)

        consumer.process(handle if workers else await_it)
        tally = consumer.run(until_empty=True)
        assert (tally.retried, tally.failed) == (3, 1)
        told = {each.body: (each.visible_at - clock.now, each.error) for each in queue.peek(9)}
        assert told == {
            b"after": (300_000_000, "busy"),
            b"policy": (10_000_000, "busy"),
            b"handled": (7_000_000, "OSError: no"),
        }
        assert [each.death and each.death.reason for each in dead.peek(9)] == ["rejected: no such customer"]
        clock.advance(300)
        assert consumer.run(until_empty=True).failed == 4
        reasons = Counter(each.death and each.death.reason for each in dead.peek(9))
        assert reasons == {"attempts: busy": 2, "attempts: OSError: no": 1, "rejected: no such customer": 1}

    def test_at_most_once_nothing_comes_again_and_the_reason_is_kept(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", history=60, mode="at_most_once", retry=PROMPT)
        queue.send_many([b"retry", b"reject"])
        consumer = broker.consumer("orders")

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            raise Retry(after=0, reason="busy") if payload == b"retry" else Reject("no use")

        assert consumer.run(until_empty=True).failed == 2
        clock.advance(10)
        assert (queue.receive(9), queue.stats().messages) == ([], 0)
        assert {each.body: (each.state.name, each.reason) for each in queue.settled()} == {
            b"retry": ("FAILED", "busy"),
            b"reject": ("FAILED", "rejected: no use"),
        }

    def test_a_task_that_fails_on_a_message_settles_it_by_the_policy(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as broker:
                dead = await broker.create("dead")
                queue = await broker.create("orders", redrive=Redrive("dead", 9), retry=PROMPT)
                await queue.send(b"x")
                await queue.send(b"y", retry=slow(delay=3600))
                for _ in range(FAILURES):
                    for message in await queue.receive(2):
                        with pytest.raises(OSError, match="no"):
                            async with message:
                                raise OSError("no")
                (waiting,) = await queue.peek(9)
                assert (waiting.body, waiting.failures, waiting.error) == (b"y", 1, "OSError: no")
                (letter,) = await dead.receive()
                assert letter.death and letter.death.reason == "attempts: OSError: no"
                assert await dead.bury(letter, "seen") is True
                assert (await dead.stats()).messages == 0

        asyncio.run(main())


class RetryingGroups:
    def test_a_message_that_comes_again_keeps_its_group_waiting_and_one_given_up_does_not(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create("dead")
        queue = broker.create("orders", groups=True, redrive=("dead", 9), retry=slow(2))
        queue.send_many([Draft(b"1", group="g"), Draft(b"2", group="g"), Draft(b"3", group="h")])
        first, other = queue.receive(9)
        assert queue.retry(first, "no") is Retried.AGAIN
        assert queue.retry(other, Reject("no")) is Retried.GIVEN_UP
        assert queue.receive(9) == []
        clock.advance(10)
        (again,) = queue.receive(9)
        assert (again.body, again.failures, again.group) == (b"1", 1, "g")
        assert queue.retry(again, "no") is Retried.GIVEN_UP
        assert bodies(queue.receive(9)) == [b"2"]


class RetryingAcross:
    def test_after_kill_9_between_attempts_each_message_is_given_up_once_after_all_of_them(
        self, url: str, tmp_path: Path
    ) -> None:
        """A killed attempt is no failed one: at least as many attempts as the policy has were begun for each message."""
        with penstock.open(url) as broker:
            dead = broker.create("dead")
            queue = broker.create("orders", visibility=1, redrive=Redrive("dead", 1000), retry=PROMPT)
            queue.send_many([b"%d" % number for number in range(KILLED)])
        log = tmp_path / "log"
        log.touch()
        for killed_after in (7, 25, 60):
            workers = [get_context("fork").Process(target=fail_each, args=(url, str(log)), daemon=True) for _ in range(2)]
            for worker in workers:
                worker.start()
            give_up_at = time.monotonic() + PATIENCE
            while len(log.read_bytes()) < killed_after * 4:
                assert time.monotonic() < give_up_at
                assert any(worker.is_alive() for worker in workers)
                time.sleep(0.005)
            for worker in workers:
                worker.kill()
                worker.join()
        give_up_at = time.monotonic() + PATIENCE
        with penstock.open(url) as broker:
            queue, dead = broker["orders"], broker["dead"]
            while queue.stats().messages:
                assert time.monotonic() < give_up_at, queue.peek(9)
                fail_each(url, str(log))
                time.sleep(0.1)  # until the leases of the dead lapse
            letters = dead.peek(1000)
        begun = Counter(map(int, log.read_text().split()))
        assert sorted(int(letter.body) for letter in letters) == sorted(begun) == list(range(KILLED))
        assert {letter.death and letter.death.reason for letter in letters} == {"attempts: OSError: no"}
        assert all(letter.death and letter.death.receives >= FAILURES for letter in letters)
        assert min(begun.values()) >= FAILURES


def fail_each(url: str, log: str) -> None:
    """Fail on every message that can be received, and log each attempt in four bytes."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)
    with penstock.open(url) as broker:
        consumer = broker.consumer("orders", batch_size=3)

        @consumer.process
        def handle_it(payload: bytes, message: Message) -> None:
            os.write(handle, b"%3d\n" % int(payload))
            raise OSError("no")

        consumer.run(until_empty=True)
    os.close(handle)

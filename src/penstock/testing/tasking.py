"""The contract's chapters on tasks: each that is sent runs, with the arguments that it was sent with, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import penstock
from penstock import Broker, Draft, Mode, NoResult, Task, TaskFailed
from penstock.message import SECOND
from penstock.testing.clock import FakeClock
from penstock.testing.races import wait_for

SENT = 40
KILLS = 3


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Item:
    name: str
    price: Decimal
    parts: list[Item] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    id: UUID
    items: tuple[Item, ...]
    sent: datetime | None = None


def run(broker: Broker, **options: Any) -> penstock.workers.consumer.Tally:
    """Run all tasks that can be taken now."""
    return broker.task_worker(**options).run(until_empty=True)


class Tasking:
    """What is true wherever the store is."""

    def test_each_task_that_is_sent_runs_once(self, broker: Broker) -> None:
        ran: list[tuple[str, int]] = []

        @broker.task(queue="mail", name="greet")
        def greet(name: str, number: int = 1) -> None:
            ran.append((name, number))

        @broker.task(queue="reports", name="report")
        def report(number: int) -> None:
            ran.append(("report", number))
            if number == 1:
                greet.send("from the report")

        greet("here", 0)
        assert ran == [("here", 0)], "calling it is a plain call"
        ran.clear()
        sent = [greet.send("ada"), greet.send("bob", number=2), report.send(1), report.send(number=2)]
        assert len({(each.task.queue, each.id) for each in sent}) == 4
        assert ran == []
        assert run(broker).processed == 5
        expected = [("ada", 1), ("bob", 2), ("report", 1), ("report", 2), ("from the report", 1)]
        assert sorted(ran) == sorted(expected)
        assert broker["mail"].stats().messages == broker["reports"].stats().messages == 0

    def test_arguments_arrive_as_they_were_sent(self, broker: Broker) -> None:
        got: list[Any] = []

        @broker.task(queue="q", name="take")
        def take(
            order: Order,
            when: datetime,
            *days: date,
            within: timedelta,
            colours: dict[str, Colour],
            raw: bytes | None = None,
            tags: frozenset[str] = frozenset(),
            anything: Any = None,
            **others: float,
        ) -> None:
            got.append((order, when, days, within, colours, raw, tags, anything, others))

        item = Item("pen", Decimal("1.10"), [Item("cap", Decimal(0))])
        order = Order(UUID(int=7), (item, item), datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
        given: dict[str, Any] = {"within": timedelta(hours=1, microseconds=1), "colours": {"x": Colour.RED, "y": Colour.BLUE}}
        given |= {"raw": b"\x00\xff", "tags": frozenset({"a", "b"}), "anything": {"é": [1, None, {"b": 1.5}]}, "more": 2.5}
        take.send(order, datetime(2026, 1, 2), date(2026, 1, 3), date(2026, 1, 4), **given)
        message = json.loads(broker["q"].peek()[0].body)
        assert (message["task"], message["args"][1:3]) == ("take", ["2026-01-02T00:00:00", "2026-01-03"])
        assert run(broker).processed == 1
        days = (date(2026, 1, 3), date(2026, 1, 4))
        expected = (given["within"], given["colours"], b"\x00\xff", given["tags"], given["anything"], {"more": 2.5})
        assert got == [(order, datetime(2026, 1, 2), days, *expected)]

    def test_the_options_of_a_send_are_those_of_a_message(self, broker: Broker) -> None:
        broker.create("q", deduplicate=True)

        @broker.task(queue="q", name="take")
        def take(number: int) -> None: ...

        first = take.send_with(delay=60, deadline=600, key="k", attributes={"a": 1}, visibility=5).send(1)
        again = take.send_with(key="k").send(2)
        assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
        (message,) = broker["q"].peek(9)
        assert [round((at - message.sent_at) / SECOND) for at in (message.visible_at, message.deadline_at or 0)] == [60, 600]
        assert message.visibility == 5
        assert (message.attributes, message.key, message.content_type) == ({"a": 1}, b"k", "application/json")
        broker["q"].send_many([take.draft(3), Draft(take.draft(4).body, delay=1)])
        assert broker["q"].stats().messages == 3

    def test_a_task_that_is_unique_is_sent_once_until_it_has_run(self, broker: Broker) -> None:
        task = broker.task(queue="q", name="task", results=60)(lambda number: number)
        unique = task.send_with(key="index", unique=True)
        first, again = unique.send(1), unique.send(2)
        assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
        assert run(broker).processed == 1
        assert (again.result(), unique.send(3).duplicate) == (1, False)

    def test_a_task_has_its_own_retry_policy_or_that_of_its_send(self, broker: Broker) -> None:
        own, other = penstock.RetryPolicy(attempts=2), penstock.RetryPolicy(attempts=3)

        @broker.task(queue="q", name="take", retry=own)
        def take() -> None: ...

        take.send()
        take.send_with(retry=other).send()
        assert [message.retry for message in broker["q"].peek(9)] == [own, other]

    def test_a_queue_is_made_for_its_first_task_and_keeps_it(self, broker: Broker) -> None:
        ran: list[int] = []
        task = broker.task(queue="new", name="task")(lambda: ran.append(1))
        task.send()
        assert broker["new"].settings.retention > 10 * 365 * 86400
        broker.delete("new")
        task.send()
        assert run(broker).processed == 1

    def test_coroutine_functions_share_one_event_loop(self, broker: Broker) -> None:
        loops: list[Any] = []
        met = threading.Barrier(2)

        @broker.task(queue="one", name="one", results=60)
        async def one(number: int) -> int:
            loops.append(asyncio.get_running_loop())
            await asyncio.to_thread(met.wait, 120)  # both run at the same time
            await asyncio.sleep(0)
            return number + 1

        broker.task(queue="two", name="two")(one.function)
        sent = one.send(1)
        broker.tasks.get("two").send(2)  # type: ignore[union-attr]
        assert run(broker).processed == 2
        assert len(loops) == 2
        assert loops[0] is loops[1]
        assert sent.result() == 2

    def test_at_most_once_a_task_that_fails_does_not_run_again(self, broker: Broker) -> None:
        broker.create("q", mode=Mode.AT_MOST_ONCE, history=600)
        ran: list[int] = []

        @broker.task(queue="q", name="fail", results=60)
        def fail(number: int) -> int:
            ran.append(number)
            if not number:
                raise ValueError("boom")
            return number

        sent = [fail.send(0), fail.send(1)]
        tally = run(broker)
        assert (tally.failed, tally.processed, ran) == (1, 1, [0, 1])
        assert sorted(str(each.reason) for each in broker["q"].settled()) == ["None", "ValueError: boom"]
        with pytest.raises(TaskFailed, match="task 'fail': ValueError: boom"):
            sent[0].result()
        assert sent[1].result() == 1

    # what cannot be run

    @pytest.mark.parametrize("redrive", [None, ("dead", 5)])
    def test_a_message_that_cannot_be_run_is_given_up_at_once_with_the_reason(
        self, broker: Broker, redrive: tuple[str, int] | None
    ) -> None:
        dead = broker.create("dead")
        queue = broker.create("q", redrive=redrive, history=600)

        @broker.task(queue="q", name="take")
        def take(number: int) -> None:
            raise AssertionError("it must not run")

        queue.send_many([b'{"task": "nobody"}', b'{"task": "take", "args": ["x"]}'])
        assert run(broker).failed == 2
        reasons = [str(each.reason) for each in queue.settled()]
        if redrive:
            reasons = [each.death.reason for each in dead.peek(9) if each.death]
        assert queue.stats().messages == 0
        assert "cannot be run as a task: this worker knows no task 'nobody'" in reasons[0]
        assert "the arguments do not fit task 'take': number: 'x' is not an int" in reasons[1]

    # results

    def test_what_a_task_returned_is_found_by_its_id(self, broker: Broker) -> None:
        @broker.task(queue="q", name="price", results=60)
        def price(name: str) -> Item:
            return Item(name, Decimal("9.99"))

        sent = price.send("pen")
        with pytest.raises(NoResult, match="has no result yet"):
            sent.result()
        with pytest.raises(NoResult):
            price.result("no-such-id")
        run(broker)
        assert sent.result() == price.result(sent.id) == Item("pen", Decimal("9.99"))
        assert sent.result(timeout=60) == sent.result()

    def test_only_who_wants_a_result_has_one(self, broker: Broker) -> None:
        @broker.task(queue="q", name="one")
        def one() -> int:
            return 1

        without, wanted = one.send(), one.send_with(results=60).send()
        run(broker)
        assert wanted.result() == 1
        with pytest.raises(NoResult):
            without.result()
        assert broker["q.results"].stats().messages == 1

    def test_a_task_that_failed_for_good_says_so_with_the_error(self, broker: Broker) -> None:
        policy = penstock.RetryPolicy(attempts=2, delay=0)
        ran: list[int] = []

        @broker.task(queue="q", name="fail", results=60, retry=policy)
        def fail(why: str) -> None:
            ran.append(1)
            if why == "rejected":
                raise penstock.Reject("no such customer")
            raise ValueError(why)

        sent, rejected = fail.send("boom é"), fail.send("rejected")
        run(broker)
        with pytest.raises(TaskFailed, match="task 'fail': ValueError: boom é"):
            sent.result()
        with pytest.raises(TaskFailed, match="no such customer"):
            rejected.result()
        assert len(ran) == 3

    def test_a_later_run_leaves_its_result_in_the_place_of_the_earlier(self, broker: Broker) -> None:
        numbers = iter(range(9))
        task = broker.task(queue="q", name="next", results=60)(lambda: next(numbers))
        sent = task.send()
        (message,) = broker["q"].peek()
        runner = broker.task_worker()._consumers[0]._handler
        assert runner is not None
        for number in range(3):
            runner(message.body, message)
            assert sent.result() == number
        assert broker["q.results"].stats().messages == 1


class TaskingInside:
    """What depends on the clock."""

    def test_a_result_expires(self, broker: Broker, clock: FakeClock) -> None:
        @broker.task(queue="q", name="one", results=60)
        def one() -> int:
            return 1

        short, long = one.send(), one.send_with(results=600).send()
        run(broker)
        clock.advance(59)
        assert (short.result(), long.result()) == (1, 1)
        clock.advance(1)
        with pytest.raises(NoResult):
            short.result()
        clock.advance(31)  # a queue is cleared now and then
        one.send()
        run(broker)
        assert broker["q.results"].stats().messages == 2, "what has expired takes no room"
        assert long.result() == 1, "but what is kept for longer stays"

    def test_a_schedule_sends_a_task(self, broker: Broker, clock: FakeClock) -> None:
        ran: list[str] = []
        task = broker.task(queue="q", name="nightly")(lambda who: ran.append(who))
        broker.create("q")
        broker.schedule("nightly", queue="q", every=10, body=task.draft("ada"))
        clock.advance(10)
        broker.scheduler().run_due()
        run(broker)
        assert ran == ["ada"]


class TaskingAcross:
    """For stores that several processes may open."""

    def test_a_killed_worker_loses_no_task(self, url: str, tmp_path: Path) -> None:
        log, chance = tmp_path / "log", random.Random(7)
        log.touch()
        with penstock.open(url) as broker:
            broker.create("q", visibility=1)
            task = define(broker, log)
            sent = [task.send(number) for number in range(SENT)]
            for turn in range(KILLS):
                worker = get_context("fork").Process(target=work, args=(url, log), daemon=True)
                worker.start()
                wait_for(log, "\n", (turn + 1) * chance.randrange(2, SENT // KILLS // 2), worker.is_alive)
                worker.kill()
                worker.join()
            worker = get_context("fork").Process(target=work, args=(url, log), daemon=True)
            worker.start()
            try:
                for number, each in enumerate(sent):
                    assert each.result(timeout=240) == number * 2
            finally:
                worker.kill()
                worker.join()
        ran = set(map(int, log.read_text().split()))
        assert ran == set(range(SENT)), "each ran at least once"


def define(broker: Broker, log: Path) -> Task[[int], int]:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @broker.task(queue="q", name="double", results=3600)
    def double(number: int) -> int:
        os.write(handle, b"%d\n" % number)
        return number * 2

    return double


def work(url: str, log: Path) -> None:
    with penstock.open(url) as broker:
        define(broker, log)
        broker.task_worker(visibility=1).run()

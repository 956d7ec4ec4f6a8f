"""The contract's chapter on asyncio: tasks use the store, and are cancelled at any ``await``, with an exact account."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import penstock
from penstock import AsyncBroker, AsyncMessage, AsyncQueue

CANCELLATIONS = 1000
ACTORS = 4
"""Tasks that are cancelled at the same time, so that their operations share commits."""
ROUND = 100
"""Cancellations between two checks of the account, which empty the queues."""
LONG = 3600.0
"""Seconds of a visibility that does not end during a test."""

Answer = TypeVar("Answer")


class Awaiting:
    cancellations: ClassVar = CANCELLATIONS

    def run_tasks(self, main: Coroutine[Any, Any, Answer]) -> Answer:
        """On the event loop under test."""
        return asyncio.run(main)

    def test_cancellations_at_random_awaits_lose_nothing_and_leave_nothing_claimed(self, url: str) -> None:
        seed = random.randrange(10**6)

        async def main() -> None:
            async with penstock.aopen(url) as broker:
                account = await Account.open(broker, random.Random(seed))
                while account.cancelled < self.cancellations:
                    await account.cancel_some(min(ROUND, self.cancellations - account.cancelled))
                    await account.check()

        try:
            self.run_tasks(main())
        except BaseException as error:
            error.add_note(f"the seed was {seed}")
            raise

    def test_tasks_that_send_at_the_same_time_are_each_told_of_their_own_message(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as broker:
                queue = await broker.create("orders")
                sent = await asyncio.gather(*(queue.send(b"%d" % number) for number in range(50)))
                messages = await queue.receive(100)
                assert {message.id: message.body for message in messages} == {
                    one.id: b"%d" % number for number, one in enumerate(sent)
                }
                assert await asyncio.gather(*(message.delete() for message in messages)) == [True] * 50
                assert (await queue.stats()).messages == 0
                assert await messages[0].delete() is False

        self.run_tasks(main())

    def test_one_of_many_that_is_refused_is_refused_alone(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as broker:
                queue = await broker.create("orders")
                bad: Any = "text"
                answers = await asyncio.gather(*(queue.send(body) for body in (b"1", bad, b"2")), return_exceptions=True)
                assert [type(answer) for answer in answers] == [penstock.Sent, penstock.BadMessage, penstock.Sent]
                assert sorted(message.body for message in await queue.peek(9)) == [b"1", b"2"]

        self.run_tasks(main())

    def test_a_task_that_waits_gets_what_another_sends(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as broker:
                queue = await broker.create("orders")
                waiting = [asyncio.create_task(queue.receive(wait=60)) for _ in range(3)]
                for number in range(3):
                    await queue.send(b"%d" % number)
                received = [message.body for messages in await asyncio.gather(*waiting) for message in messages]
                assert sorted(received) == [b"0", b"1", b"2"]
                assert await queue.receive(wait=0.01) == []

        self.run_tasks(main())

    def test_a_loop_over_messages_gives_back_those_that_it_has_not_come_to(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as broker:
                queue = await broker.create("orders", visibility=LONG)
                await queue.send_many([b"%d" % number for number in range(9)])
                seen: list[AsyncMessage] = []
                async for message in queue.messages(limit=6):
                    seen.append(message)
                    if len(seen) == 2:
                        break
                await until(lambda: in_flight(queue), 2)
                assert [await message.delete() for message in seen] == [True, True]
                rest = await queue.receive(9)
                assert len({message.body for message in (*rest, *seen)}) == 9

        self.run_tasks(main())

    def test_a_broker_that_is_closed_gives_back_what_its_loops_have_not_come_to(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as other:
                async with penstock.aopen(url) as broker:
                    queue = await broker.create("orders", visibility=LONG)
                    await queue.send_many([b"1", b"2", b"3"])
                    messages = queue.messages(limit=3)
                    first = await anext(messages)
                if await other.has("orders"):  # a store that this process alone has is gone
                    again = await other.queue("orders")
                    assert (await again.stats()).in_flight == 1
                    assert await again.delete(first)
                try:
                    await anext(messages)
                except (penstock.StoreClosed, StopAsyncIteration):
                    return
                raise AssertionError("a closed broker delivers nothing")

        self.run_tasks(main())

    def test_verbs_of_a_closed_broker_say_so(self, url: str) -> None:
        async def main() -> None:
            async with penstock.aopen(url) as broker:
                queue = await broker.create("orders")
                waiting = asyncio.create_task(queue.receive(wait=60))
                await asyncio.sleep(0.05)
            told = await asyncio.gather(waiting, queue.send(b"x"), broker.queues(), return_exceptions=True)
            assert [type(error) for error in told] == [penstock.StoreClosed] * 3

        self.run_tasks(main())


async def until(look: Callable[[], Awaitable[Answer]], expected: Answer) -> None:
    """Wait for what other tasks bring about."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + 30
    while (found := await look()) != expected:
        assert loop.time() < give_up_at, f"{found}, not {expected}"
        await asyncio.sleep(0.002)


async def in_flight(queue: AsyncQueue) -> int:
    return (await queue.stats()).in_flight


class Account:
    """What cancelled tasks have asked of a store, and what it answered."""

    def __init__(self, chance: random.Random, orders: AsyncQueue, once: AsyncQueue, members: AsyncQueue) -> None:
        self._chance = chance
        self._orders, self._once, self._members = orders, once, members
        self._number = 0
        self._known: dict[str, float] = {}
        self.cancelled = 0
        self.sent: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.held: list[AsyncMessage] = []
        self.leaving: list[AsyncMessage] = []
        """A task was cancelled while it deleted these."""
        self.returning: list[AsyncMessage] = []
        """A task was cancelled while it released these."""
        self.deleted: set[bytes] = set()
        self.sent_once: set[bytes] = set()
        self.seen_once: Counter[bytes] = Counter()
        self.added: set[bytes] = set()
        self.popped: Counter[bytes] = Counter()

    @classmethod
    async def open(cls, broker: AsyncBroker, chance: random.Random) -> Account:
        orders = await broker.create("orders", visibility=LONG)
        once = await broker.create("once", mode="at_most_once")
        return cls(chance, orders, once, await broker.create("members"))

    def _new(self) -> bytes:
        self._number += 1
        return b"%d" % self._number

    # what a task does

    async def send(self) -> None:
        body = self._new()
        self.tried.add(body)
        await self._orders.send(body)
        self.sent.add(body)

    async def send_many(self) -> None:
        bodies = [self._new() for _ in range(self._chance.randint(2, 4))]
        self.tried.update(bodies)
        await self._orders.send_many(bodies)
        self.sent.update(bodies)

    async def receive(self) -> None:
        messages = await self._orders.receive(self._chance.randint(1, 3), wait=self._chance.choice([0, 0, 60]))
        self.held += messages

    async def loop(self) -> None:
        async for message in self._orders.messages(limit=self._chance.randint(1, 5)):
            self.held.append(message)
            if self._chance.random() < 0.5:
                break

    async def delete(self) -> None:
        if self.held:
            message = self.held.pop()
            self.leaving.append(message)
            assert await message.delete()
            self.leaving.remove(message)
            self.deleted.add(message.body)

    async def release(self) -> None:
        if self.held:
            message = self.held.pop(0)
            self.returning.append(message)
            assert await message.release()
            self.returning.remove(message)

    async def extend(self) -> None:
        if self.held:
            await self.held[-1].extend(LONG)

    async def exchange(self) -> None:
        gone = self.held[:2]
        del self.held[:2]
        self.leaving += gone
        settled, taken = await self._orders.exchange(gone, 2)
        assert all(settled)
        self.held += taken
        for message in gone:
            self.leaving.remove(message)
            self.deleted.add(message.body)

    async def send_to_once(self) -> None:
        body = self._new()
        await self._once.send(body)
        self.sent_once.add(body)

    async def take_once(self) -> None:
        messages = await self._once.receive(2, wait=self._chance.choice([0, 60]))
        self.seen_once.update(message.body for message in messages)

    async def loop_once(self) -> None:
        async for message in self._once.messages(limit=3):
            self.seen_once[message.body] += 1
            await asyncio.sleep(0)

    async def add(self) -> None:
        member = self._new()
        await self._members.sadd(member)
        self.added.add(member)

    async def pop(self) -> None:
        member = await self._members.spop()
        if member is not None:
            assert isinstance(member, bytes)
            self.popped[member] += 1

    # cancelling

    async def cancel_some(self, count: int) -> None:
        goal = self.cancelled + count
        await asyncio.gather(*(self._cancel_until(goal) for _ in range(ACTORS)))

    async def _cancel_until(self, goal: int) -> None:
        loop = asyncio.get_running_loop()
        while self.cancelled < goal:
            name = self._chance.choices(list(VERBS), list(VERBS.values()))[0]
            began = loop.time()
            task = asyncio.create_task(getattr(self, name)())
            await self._pause(name)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                self.cancelled += 1
            else:
                self._known[name] = 0.8 * self._known.get(name, 0.001) + 0.2 * (loop.time() - began)

    async def _pause(self, name: str) -> None:
        """For a few turns of the event loop, or for a part of the time that the verb may take."""
        if self._chance.random() < 0.4:
            for _ in range(self._chance.randrange(12)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(self._chance.uniform(0, 1.5 * self._known.get(name, 0.001)))

    # checking

    async def check(self) -> None:
        await self._settle_what_is_unclear()
        await until(lambda: in_flight(self._orders), len(self.held))
        there = Counter(message.body for message in self.held)

        async def empty() -> int:
            """A cancelled send may still be on its way to the server, so look again while there is a message."""
            messages = await self._orders.receive(1000)
            there.update(message.body for message in messages)
            assert all(await self._orders.delete_many([*self.held, *messages]))
            self.held.clear()
            return (await self._orders.stats()).messages

        await until(empty, 0)
        assert not [body for body, count in there.items() if count > 1], "doubled"
        assert not self.sent - there.keys() - self.deleted, "lost"
        assert not there.keys() & self.deleted, "deleted, and there again"
        assert there.keys() <= self.tried
        self.deleted.update(there)
        await self._check_once()
        await self._check_set()

    async def _settle_what_is_unclear(self) -> None:
        leaving, self.leaving = self.leaving, []
        await self._orders.delete_many(leaving)  # nobody else can have these: they are gone now, one way or the other
        self.deleted.update(message.body for message in leaving)
        returning, self.returning = self.returning, []
        gone = await self._orders.delete_many(returning)
        self.deleted.update(message.body for message, deleted in zip(returning, gone, strict=True) if deleted)

    async def _check_once(self) -> None:
        async def take() -> int:
            messages = await self._once.receive(1000)
            self.seen_once.update(message.body for message in messages)
            return len(self.sent_once - self.seen_once.keys())

        await until(take, 0)
        assert set(self.seen_once.values()) <= {1}, "received twice in the mode at_most_once"

    async def _check_set(self) -> None:
        async def pop() -> int:
            while isinstance(member := await self._members.spop(), bytes):
                self.popped[member] += 1
            return len(self.added - self.popped.keys())

        await until(pop, 0)
        assert set(self.popped.values()) <= {1}, "popped twice"


VERBS = {
    "send": 4,
    "send_many": 2,
    "receive": 4,
    "loop": 3,
    "delete": 3,
    "release": 1,
    "extend": 1,
    "exchange": 2,
    "send_to_once": 2,
    "take_once": 2,
    "loop_once": 1,
    "add": 2,
    "pop": 2,
}
"""How often each of them is chosen."""

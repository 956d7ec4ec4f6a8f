"""A process that is the clients of one target: it reads commands from its input, lines of JSON, and answers each with one.

python -m penstock.bench.brokers.generator TARGET ADDRESS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from penstock.bench.brokers.sessions.base import Held, Session
from penstock.bench.brokers.targets import TARGETS, Target

Result = TypeVar("Result")
Act = Callable[[Session, Sequence[bytes]], Awaitable[None]]
FILL_BATCH, FILL_SESSIONS = 100, 8
LONG_WAIT = 50
STUCK = 20
"""Seconds without a message after which a cycle has lost it."""


async def send(session: Session, bodies: Sequence[bytes]) -> None:
    await session.send(bodies)


async def cycle(session: Session, bodies: Sequence[bytes]) -> None:
    await session.send(bodies)
    await session.settle(await take(session, STUCK))


async def take(session: Session, seconds: float) -> Held:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        if held := await session.receive(2):
            return held
    raise RuntimeError(f"no message came in {seconds:g} seconds")


ACTS: dict[str, Act] = {"send": send, "cycle": cycle}


async def repeat(
    session: Session, act: Act, bodies: Sequence[bytes], end: float, calls: int | None
) -> tuple[list[float], float]:
    """Act until the instant or the number of calls is reached, but at least once: on a busy machine a process may begin late.
    Returns how long each call took, and when the last ended."""
    took: list[float] = []
    now = time.perf_counter()
    while not took or (now < end and len(took) != calls):
        await act(session, bodies)
        took.append(-now + (now := time.perf_counter()))
    await session.rest()
    return took, now


class Clients:
    """The open sessions of a target. Owns them, and the threads of those that block."""

    def __init__(self, target: Target, address: str) -> None:
        self._open_one = target.opener()
        self._address = address
        self._sessions: list[Session] = []
        self._threads: ThreadPoolExecutor | None = None

    async def open(self, sessions: int) -> dict[str, Any]:
        """Have this many new sessions, instead of those of before."""
        for session in self._sessions:
            await session.close()
        if self._threads:
            self._threads.shutdown()
        self._sessions = [await self._open_one(self._address) for _ in range(sessions)]
        self._threads = ThreadPoolExecutor(sessions) if self._sessions[0].threaded else None
        return {}

    async def _all(self, work: Callable[[Session], Coroutine[Any, Any, Result]]) -> list[Result]:
        """Have all sessions work at once."""
        if self._threads is None:
            return list(await asyncio.gather(*map(work, self._sessions)))
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(self._threads, finish, work(s)) for s in self._sessions)))

    async def turn(self, verb: str, batch: int, size: int, seconds: float, calls: int | None = None) -> dict[str, Any]:
        bodies = [b"x" * size] * batch
        began, used = time.perf_counter(), time.process_time()
        done = await self._all(lambda session: repeat(session, ACTS[verb], bodies, began + seconds, calls))
        spent = max(end for _, end in done) - began
        used = time.process_time() - used
        took = sorted(one for many, _ in done for one in many)
        return {
            "count": len(took) * batch,
            "seconds": spent,
            "p50": took[len(took) // 2],
            "p99": took[len(took) * 99 // 100],
            "processor": used / spent,
        }

    async def empty(self) -> dict[str, Any]:
        await self._one(self._sessions[0].empty())
        return {}

    async def _one(self, work: Coroutine[Any, Any, Result]) -> Result:
        return finish(work) if self._threads else await work

    async def fill(self, messages: int, size: int, seconds: float) -> dict[str, Any]:
        """Send this many messages in batches, or as many as the time allows; returns how many there are."""
        await self.open(FILL_SESSIONS)
        share = max(1, messages // FILL_SESSIONS // FILL_BATCH)
        bodies, end = [b"x" * size] * FILL_BATCH, time.perf_counter() + seconds
        done = await self._all(lambda session: repeat(session, send, bodies, end, share))
        return {"count": sum(len(took) for took, _ in done) * FILL_BATCH}

    async def wakes(self, messages: int) -> dict[str, Any]:
        """Wait for messages that say when they were sent; returns the seconds that each took. Says when it begins to wait."""
        say({"waiting": True})

        async def listen(session: Session) -> list[float]:
            found = []
            for _ in range(messages):
                held = await take(session, STUCK)
                found.append((time.monotonic_ns() - int(held.body[:20])) / 1e9)
                await session.settle(held)
            await session.rest()
            return found

        (took,) = await self._all(listen)
        return {"took": took}

    async def pace(self, messages: int, size: int, gap: float) -> dict[str, Any]:
        """Send messages that say when they were sent, each after a pause."""
        for _ in range(messages):
            await asyncio.sleep(gap)
            await self._one(self._sessions[0].wake(b"%20d" % time.monotonic_ns() + b"x" * (size - 20)))
        return {}

    async def idle(self, sessions: int, settle: float, seconds: float) -> dict[str, Any]:
        """Have this many consumers wait on an empty queue, for good. Says when it has begun; returns its processor's share."""
        await self.open(sessions)

        async def wait(session: Session) -> None:
            while not await session.receive(LONG_WAIT):
                pass

        waiting = asyncio.create_task(self._all(wait))
        await asyncio.sleep(settle)
        say({"waiting": True})
        used = time.process_time()
        await asyncio.sleep(seconds)
        used = time.process_time() - used
        if waiting.done():
            raise RuntimeError(f"a consumer of an empty queue has ended: {waiting.exception()!r}")
        return {"processor": used / seconds}


def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run what never waits for a loop, because its calls block."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise RuntimeError("a session that blocks has waited for the event loop")


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


async def serve(target: Target, address: str) -> None:
    clients = Clients(target, address)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        act = getattr(clients, command.pop("do"))
        try:
            say(await act(**command))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"[:500]})


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve(TARGETS[sys.argv[1]], sys.argv[2]))

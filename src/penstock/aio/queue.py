"""A queue as tasks use it. `penstock.Queue` says what each verb does.

A task may be cancelled at any ``await``. What was not begun then is never done; what has begun is finished, and whatever it has
taken from the queue is given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import datetime
from random import random
from typing import Any

from penstock import policy
from penstock.aio.backend import Backend
from penstock.aio.message import AsyncMessage, adopt
from penstock.message import (
    OCTETS,
    SECOND,
    Attributes,
    Claim,
    Draft,
    MessageFields,
    Mode,
    Pulse,
    Receipt,
    Redriven,
    Retried,
    RetryPolicy,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.policy import check_seconds
from penstock.queue.arguments import as_draft, check_flag, check_many, check_mode, check_taking
from penstock.retries import plan_retry

LONGEST_WAIT = 20
"""Seconds of one long poll; a longer wait is several polls."""
HeldAsync = AsyncMessage | Receipt | str
"""What a receiver settles."""


class AsyncQueue:
    """One named queue; made by an `AsyncBroker`."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self._backend = backend

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r}>"

    async def settings(self) -> Settings:
        settings: Settings = await self._call("settings")
        return settings

    # sending

    async def send(
        self,
        body: bytes,
        *,
        content_type: str = OCTETS,
        attributes: Attributes | None = None,
        delay: float | None = None,
        visibility: float | None = None,
        deadline: float | datetime | None = None,
        key: str | bytes | None = None,
        group: str | None = None,
        retry: RetryPolicy | None = None,
        unique: bool = False,
    ) -> Sent:
        draft = as_draft(body, content_type, attributes, delay, visibility, deadline, key, group, retry, unique)
        return (await self.send_many([draft]))[0]

    async def send_many(self, drafts: Iterable[Draft | bytes], *, token: str | None = None) -> list[Sent]:
        batch = list(check_many(drafts, "send_many", "send"))
        sent: list[Sent] = await self._call("send_many", batch, token=token)
        return sent

    async def send_once(self, drafts: Sequence[Draft | bytes], token: str, *, remember: float = policy.TOKEN_WINDOW) -> None:
        batch = list(check_many(drafts, "send_once", "send"))
        await self._call("send_once", batch, token, remember=remember)

    # receiving

    async def receive(
        self,
        limit: int = 1,
        *,
        wait: float = 0,
        visibility: float | None = None,
        mode: Mode | str | None = None,
        holder: str | None = None,
        unfinished: bool = False,
        together: bool = False,
    ) -> list[AsyncMessage]:
        check_taking(limit, visibility, None, holder)
        check_seconds(wait, "wait")
        check_flag(together, "together")
        chosen = check_mode(mode)
        terms = {"visibility": visibility, "holder": holder, "unfinished": unfinished, "together": together}
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait
        while True:
            messages: Sequence[MessageFields] = self._backend.unseen.take(self.name, chosen, limit)
            if not messages:
                left = max(0.0, min(give_up_at - loop.time(), LONGEST_WAIT))
                messages = await self._backend.receive(self.name, limit, left, chosen, **terms)
            if messages or loop.time() >= give_up_at:
                return adopt(messages, self)

    async def messages(
        self,
        limit: int = 10,
        *,
        visibility: float | None = None,
        mode: Mode | str | None = None,
        holder: str | None = None,
        together: bool = False,
    ) -> AsyncGenerator[AsyncMessage, None]:
        """Messages for ever, one after the other; received by up to ``limit`` at a time, each hidden for ``visibility`` seconds
        from its receive on. Those that the loop has not come to when it ends are given back."""
        chosen, loop = check_mode(mode), asyncio.get_running_loop()
        left: deque[AsyncMessage] = deque()
        with self._backend.unseen.hold(self.name, chosen, left):
            while True:
                left.extend(
                    await self.receive(
                        limit, wait=LONGEST_WAIT, visibility=visibility, mode=chosen, holder=holder, together=together
                    )
                )
                came_at = loop.time()
                while left:
                    message = left.popleft()
                    if not _lapsed(message, loop.time() - came_at):
                        yield message

    async def exchange(
        self,
        messages: Sequence[HeldAsync],
        limit: int = 1,
        *,
        visibility: float | None = None,
        holder: str | None = None,
    ) -> tuple[list[bool], list[AsyncMessage]]:
        check_taking(limit, visibility, None, holder)
        held = _receipts(check_many(messages, "exchange", "delete"))
        settled, taken = await self._backend.exchange(self.name, held, limit, visibility=visibility, holder=holder)
        return settled, adopt(taken, self)

    # settling

    async def delete(self, message: HeldAsync) -> bool:
        return (await self.delete_many([message]))[0]

    async def delete_many(self, messages: Sequence[HeldAsync]) -> list[bool]:
        gone: list[bool] = await self._call("delete_many", _receipts(check_many(messages, "delete_many", "delete")))
        return gone

    async def fail(self, message: HeldAsync, reason: str | None = None) -> bool:
        return bool(await self._call("fail", _receipt(message), reason))

    async def finish(self, messages: Sequence[HeldAsync], failed: str | None = None) -> list[bool]:
        told: list[bool] = await self._call("finish", _receipts(check_many(messages, "finish", "finish([…])")), failed)
        return told

    async def extend(self, message: HeldAsync, visibility: float) -> bool:
        return bool(await self._call("extend", _receipt(message), visibility))

    async def extend_many(self, messages: Sequence[HeldAsync], visibility: float | Sequence[float]) -> list[bool]:
        held = _receipts(check_many(messages, "extend_many", "extend"))
        extended: list[bool] = await self._call("extend_many", held, visibility)
        return extended

    async def release(self, message: HeldAsync, delay: float = 0, error: str | None = None) -> bool:
        return bool(await self._call("release", _receipt(message), delay, error))

    async def bury(self, message: HeldAsync, reason: str) -> bool:
        return bool(await self._call("bury", _receipt(message), reason))

    async def retry(
        self,
        message: AsyncMessage,
        error: BaseException | str,
        *,
        otherwise: RetryPolicy = policy.BACK_OFF,
        chance: Callable[[], float] = random,
    ) -> Retried:
        now = 0 if message.deadline_at is None else (await self.pulse()).at
        verb, given, becomes = plan_retry(message, await self.settings(), otherwise, error, now, chance())
        return becomes if await getattr(self, verb)(message, *given) else Retried.STALE

    async def cancel(self, id: str | None = None, *, key: str | bytes | None = None) -> bool:
        return bool(await self._call("cancel", id, key=key))

    def let_go(self, message: HeldAsync) -> None:
        """`release`, as soon as possible; no caller waits for it, so that a task that is being cancelled can call it."""
        receipt = _receipt(message)
        self._backend.give_back(self.name, [Receipt(self.name, receipt, None) if isinstance(receipt, str) else receipt])

    # looking

    async def peek(
        self, limit: int = 1, *, state: State | str | None = None, after: tuple[int, int] | None = None
    ) -> list[AsyncMessage]:
        return adopt(await self._call("peek", limit, state=state, after=after), None)

    async def find(self, id: str | None = None, *, key: str | bytes | None = None) -> AsyncMessage | None:
        found = await self._call("find", id, key=key)
        return None if found is None else adopt([found], None)[0]

    async def settled(self, limit: int = 100, *, after: tuple[int, int] | None = None) -> list[AsyncMessage]:
        return adopt(await self._call("settled", limit, after=after), None)

    async def span(self, *, settled: bool = False) -> tuple[int, int, int]:
        count, first, last = await self._call("span", settled=settled)
        return count, first, last

    async def scan(
        self, start: int = 0, stop: int = 2**62, limit: int = policy.MAX_BATCH, *, settled: bool = False
    ) -> list[AsyncMessage]:
        return adopt(await self._call("scan", start, stop, limit, settled=settled), None)

    async def stats(self) -> Stats:
        stats: Stats = await self._call("stats")
        return stats

    # the whole queue

    async def update(self, **changes: Any) -> Settings:
        settings: Settings = await self._call("update", **changes)
        return settings

    async def pause(self) -> Settings:
        return await self.update(paused=True)

    async def resume(self) -> Settings:
        return await self.update(paused=False)

    async def purge(self) -> int:
        return int(await self._call("purge"))

    async def redrive(
        self,
        limit: int | None = None,
        *,
        to: str | None = None,
        ids: Iterable[str] | None = None,
        since_at: int | None = None,
    ) -> Redriven:
        redriven: Redriven = await self._call("redrive", limit, to=to, ids=ids, since_at=since_at)
        return redriven

    # a queue as a set

    async def sadd(self, member: str | bytes) -> bool:
        return bool(await self._call("sadd", member))

    async def spop(self) -> str | bytes | None:
        return await self._backend.pop(self.name)

    async def sismember(self, member: str | bytes) -> bool:
        return bool(await self._call("sismember", member))

    async def scard(self) -> int:
        return int(await self._call("scard"))

    # named claims

    async def pulse(self) -> Pulse:
        pulse: Pulse = await self._call("pulse")
        return pulse

    async def claim(
        self,
        reader: str,
        epoch: int,
        limit: int,
        *,
        ttl: float = 60,
        max_bytes: int | None = None,
        visible_by: int | None = None,
    ) -> Claim:
        limits = {"ttl": ttl, "max_bytes": max_bytes, "visible_by": visible_by}
        claim: Claim = await self._call("claim", reader, epoch, limit, **limits)
        return claim

    async def confirm(self, reader: str, epoch: int) -> Claim:
        claim: Claim = await self._call("confirm", reader, epoch)
        return claim

    async def read(
        self, reader: str, epoch: int, start: int = 0, stop: int | None = None, *, damaged: bool = False
    ) -> list[AsyncMessage]:
        return adopt(await self._call("read", reader, epoch, start, stop, damaged=damaged), None)

    async def settle(self, reader: str, epoch: int) -> int:
        return int(await self._call("settle", reader, epoch))

    async def give_up(self, reader: str) -> int:
        return int(await self._call("give_up", reader))

    async def readers(self) -> dict[str, list[Claim]]:
        readers: dict[str, list[Claim]] = await self._call("readers")
        return readers

    async def settled_epoch(self, reader: str) -> int | None:
        epoch: int | None = await self._call("settled_epoch", reader)
        return epoch

    async def _call(self, verb: str, *arguments: Any, **named: Any) -> Any:
        return await self._backend.call(self.name, verb, *arguments, **named)


def _receipts(messages: Sequence[HeldAsync]) -> list[Receipt | str]:
    return [_receipt(message) for message in messages]


def _receipt(message: HeldAsync) -> Receipt | str:
    return message.receipt if isinstance(message, AsyncMessage) else message


def _lapsed(message: AsyncMessage, seconds: float) -> bool:
    """Whether its lease is over, so many seconds after it came: others may have it by now."""
    return (
        message.settled_at is None
        and message.received_at is not None
        and (seconds * SECOND >= message.visible_at - message.received_at > 0)
    )

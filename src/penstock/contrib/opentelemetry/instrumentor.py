"""Puts spans around the verbs of queues, the callbacks of consumers and Spark's batches, and takes them off again.

The methods of the classes are exchanged. So a program that does not instrument pays nothing, not even the question whether it
does.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from penstock.aio.message import AsyncMessage
from penstock.aio.queue import AsyncQueue
from penstock.bridge.commits import Commits
from penstock.client.queue import RemoteQueue
from penstock.contrib.opentelemetry.spans import Method, Tracing, carrier_of, counted, place_of, stamp
from penstock.contrib.opentelemetry.spark import SparkTracing
from penstock.message import OCTETS, Draft, Message
from penstock.queue.queue import LocalQueue
from penstock.workers.consumer import Consumer
from penstock.workers.producer import Producer

_inside: ContextVar[bool] = ContextVar("penstock_inside_a_span", default=False)
"""A verb that is made of others has one span."""
_entered: ContextVar[tuple[Any, ...]] = ContextVar("penstock_entered_spans", default=())
"""The spans of the ``async with message:`` blocks that this task is in."""


class PenstockInstrumentor:
    """`instrument` begins, `uninstrument` ends. Both do nothing the second time."""

    _kept: list[tuple[type, str, Method]] = []  # noqa: RUF012 (of the process: the classes are)
    """What was there before."""
    _spark: SparkTracing | None = None

    def instrument(self, *, tracer_provider: trace.TracerProvider | None = None, **_: Any) -> None:
        """``tracer_provider``: of the program, if it is not given. (`opentelemetry-instrument` passes more.)"""
        if self._kept:
            return
        tracing = Tracing(tracer_provider)
        for queue in (LocalQueue, RemoteQueue):
            for verb in ("send_many", "send_once"):
                self._exchange(queue, verb, _sending(tracing))
            self._exchange(queue, "receive", _receiving(tracing, lambda answer: answer))
            self._exchange(queue, "exchange", _receiving(tracing, lambda answer: answer[1]))
        self._exchange(LocalQueue, "send", _send_by_many)
        for verb in ("send_many", "send_once"):
            self._exchange(AsyncQueue, verb, _sending_async(tracing))
        self._exchange(AsyncQueue, "receive", _receiving_async(tracing, lambda answer: answer))
        self._exchange(AsyncQueue, "exchange", _receiving_async(tracing, lambda answer: answer[1]))
        self._exchange(Commits, "_work", _working_for_others)
        self._exchange(AsyncMessage, "__aenter__", _entering(tracing))
        self._exchange(AsyncMessage, "__aexit__", _leaving)
        self._exchange(Producer, "push", _pushing)
        self._exchange(Consumer, "process", _registering(tracing))
        spark = type(self)._spark = SparkTracing(tracing, self._exchange)
        spark.begin()

    def uninstrument(self, **_: Any) -> None:
        if self._spark is not None:
            self._spark.end()
            type(self)._spark = None
        while self._kept:
            owner, name, method = self._kept.pop()
            setattr(owner, name, method)

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        return bool(self._kept)

    def instrumentation_dependencies(self) -> Iterable[str]:
        return ()

    def _exchange(self, owner: type, name: str, around: Callable[[Method], Method]) -> None:
        before = owner.__dict__[name]
        after = wraps(before)(around(before))
        if hasattr(before, "__wrapped__"):  # the client's plans are found there
            after.__wrapped__ = before.__wrapped__
        self._kept.append((owner, name, before))
        setattr(owner, name, after)


def _sending(tracing: Tracing) -> Callable[[Method], Method]:
    def around(send: Method) -> Method:
        def act(queue: Any, drafts: Any, *arguments: Any, **options: Any) -> Any:
            if _inside.get() or isinstance(drafts, str | bytes) or not isinstance(drafts, Iterable):
                return send(queue, drafts, *arguments, **options)
            batch = list(drafts)
            reset = _inside.set(True)
            try:
                with tracing.spanning(tracing.begin("send", queue.name, SpanKind.PRODUCER, **place_of(queue))) as span:
                    carrier = carrier_of()
                    answer = send(queue, [stamp(draft, carrier) for draft in batch], *arguments, **options)
                    span.set_attributes(_sent(batch, answer))
                    return answer
            finally:
                _inside.reset(reset)

        return act

    return around


def _working_for_others(work: Method) -> Method:
    """In the threads of the bridge, verbs are those of a task or of a client, which have the span."""

    def act(commits: Any) -> None:
        _inside.set(True)
        work(commits)

    return act


def _sending_async(tracing: Tracing) -> Callable[[Method], Method]:
    def around(send: Method) -> Method:
        async def act(queue: Any, drafts: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(drafts, str | bytes) or not isinstance(drafts, Iterable):
                return await send(queue, drafts, *arguments, **options)
            batch = list(drafts)
            with tracing.spanning(tracing.begin("send", queue.name, SpanKind.PRODUCER)) as span:
                carrier = carrier_of()
                answer = await send(queue, [stamp(draft, carrier) for draft in batch], *arguments, **options)
                span.set_attributes(_sent(batch, answer))
                return answer

        return act

    return around


def _sent(batch: list[Any], answer: Any) -> dict[str, Any]:
    """``answer``: None from the verbs that return no ids."""
    if len(batch) == 1 and answer:
        draft = batch[0]
        return counted([answer[0].id], len(draft.body if isinstance(draft, Draft) else draft))
    return {"messaging.batch.message_count": len(batch)}


def _send_by_many(_: Method) -> Method:
    """`LocalQueue.send` has a shorter way for plain messages, which has no room for a context."""

    def act(
        queue: LocalQueue,
        body: bytes,
        *,
        content_type: str = OCTETS,
        attributes: Any = None,
        connection: object = None,
        **options: Any,
    ) -> Any:
        draft = Draft(body, content_type, {} if attributes is None else attributes, **options)
        return queue.send_many([draft], connection=connection)[0]

    return act


def _receiving(tracing: Tracing, found: Callable[[Any], Any]) -> Callable[[Method], Method]:
    def around(receive: Method) -> Method:
        def act(queue: Any, *arguments: Any, **options: Any) -> Any:
            start = time.time_ns()
            answer = receive(queue, *arguments, **options)
            if not _inside.get():
                tracing.received(queue, found(answer), start)
            return answer

        return act

    return around


def _receiving_async(tracing: Tracing, found: Callable[[Any], Any]) -> Callable[[Method], Method]:
    def around(receive: Method) -> Method:
        async def act(queue: Any, *arguments: Any, **options: Any) -> Any:
            start = time.time_ns()
            answer = await receive(queue, *arguments, **options)
            tracing.received(queue, found(answer), start)
            return answer

        return act

    return around


def _entering(tracing: Tracing) -> Callable[[Method], Method]:
    def around(enter: Method) -> Method:
        async def act(message: Any) -> Any:
            block = tracing.spanning(tracing.begin_processing(message))
            block.__enter__()
            _entered.set((*_entered.get(), (message, block)))
            return await enter(message)

        return act

    return around


def _leaving(leave: Method) -> Method:
    async def act(message: Any, kind: Any, error: Any, trace: Any) -> Any:
        try:
            return await leave(message, kind, error, trace)
        finally:
            entered = _entered.get()
            if entered and entered[-1][0] is message:
                _entered.set(entered[:-1])
                try:
                    entered[-1][1].__exit__(kind, error, trace)
                except BaseException as again:
                    if again is not error:
                        raise

    return act


def _pushing(push: Method) -> Method:
    """A message that is gathered has the context of its own sender, not that of the batch."""

    def act(producer: Any, payload: Any, deadline: Any = None, **draft: Any) -> None:
        found = draft.get("attributes")
        made = stamp(Draft(payload, attributes={} if found is None else found), carrier_of())
        if isinstance(made, Draft) and made.attributes:
            draft["attributes"] = made.attributes
        push(producer, payload, deadline, **draft)

    return act


def _registering(tracing: Tracing) -> Callable[[Method], Method]:
    def around(process: Method) -> Method:
        def act(consumer: Any, handler: Any) -> Any:
            if callable(handler) and consumer._kind != "processes":  # another process has its own tracer
                process(consumer, _traced(tracing, handler))
                return handler
            return process(consumer, handler)

        return act

    return around


def _traced(tracing: Tracing, handler: Any) -> Any:
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):

        async def handle_async(payload: bytes, message: Message) -> Any:
            with tracing.spanning(tracing.begin_processing(message)):
                return await handler(payload, message)

        return handle_async

    def handle(payload: bytes, message: Message) -> Any:
        with tracing.spanning(tracing.begin_processing(message)):
            return handler(payload, message)

    return handle

"""Spans by the conventions for messaging, and the context of a sender in the attributes of its messages.

send      PRODUCER  of one call; its context goes into the attributes of its messages (traceparent, …)
receive   CLIENT    of a call that has received something; it links to the senders of what it has received
process   CONSUMER  of one message; a child of its sender, and linked to it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

import penstock
from penstock.message import Draft, MessageFields
from penstock.policy import MAX_ATTRIBUTES, MAX_MESSAGE

Method = Callable[..., Any]
MOST_LINKS = 128
"""Of one span: as many as the SDK keeps, unless it is told otherwise."""


class Tracing:
    """Makes spans for one provider."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("penstock", penstock.__version__, tracer_provider)

    def begin(
        self,
        operation: str,
        queue: str,
        kind: SpanKind,
        *,
        parent: context.Context | None = None,
        senders: Iterable[MessageFields] = (),
        start: int | None = None,
        **more: Any,
    ) -> Span:
        known = {
            "messaging.system": "penstock",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": queue,
        }
        links = [Link(sender) for sender in map(sender_of, senders) if sender is not None][:MOST_LINKS]
        return self._tracer.start_span(
            f"{operation} {queue}", parent, kind, attributes=known | more, links=links, start_time=start
        )

    @contextmanager
    def spanning(self, span: Span) -> Iterator[Span]:
        """The span is the current one in the block, fails with it, and ends with it."""
        try:
            with trace.use_span(span, record_exception=True, set_status_on_exception=False):
                yield span
        except BaseException as error:
            fail(span, error)
            raise
        finally:
            span.end()

    def received(self, queue: Any, messages: Sequence[MessageFields], start: int) -> None:
        """Tell of a receive that has found something. A long poll that finds nothing is no news."""
        if messages:
            more = place_of(queue) | counted([message.id for message in messages])
            self.begin("receive", queue.name, SpanKind.CLIENT, senders=messages, start=start, **more).end()

    def begin_processing(self, message: MessageFields) -> Span:
        more = counted([message.id], len(message.body))
        parent = propagate.extract(texts_of(message))
        return self.begin("process", message.queue, SpanKind.CONSUMER, parent=parent, senders=[message], **more)


@contextmanager
def processing(message: MessageFields, tracer_provider: trace.TracerProvider | None = None) -> Iterator[Span]:
    """``with processing(message):`` is the span of what a program without a consumer does with a message."""
    tracing = Tracing(tracer_provider)
    with tracing.spanning(tracing.begin_processing(message)) as span:
        yield span


def fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:1000]))


def texts_of(message: MessageFields) -> dict[str, str]:
    return {name: value for name, value in message.attributes.items() if isinstance(value, str)}


def sender_of(message: MessageFields) -> trace.SpanContext | None:
    """The span that has sent it."""
    if not message.attributes:
        return None
    found = trace.get_current_span(propagate.extract(texts_of(message), context.Context())).get_span_context()
    return found if found.is_valid else None


def place_of(queue: Any) -> dict[str, Any]:
    """Where a queue behind a server is."""
    calls = getattr(queue, "_calls", None)
    return {} if calls is None else {"server.address": calls.host, "server.port": calls.port}


def counted(ids: Sequence[str], size: int | None = None) -> dict[str, Any]:
    if len(ids) != 1:
        return {"messaging.batch.message_count": len(ids)}
    return {"messaging.message.id": ids[0]} | ({} if size is None else {"messaging.message.body.size": size})


def carrier_of(current: context.Context | None = None) -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, current)
    return carrier


def stamp(draft: Draft | bytes, carrier: Mapping[str, str]) -> Draft | bytes:
    """The draft with the context of its sender. One that has a context keeps it, and one without room for it stays as it is."""
    made = Draft(draft) if isinstance(draft, bytes) else draft
    if not isinstance(made, Draft) or not isinstance(made.body, bytes) or not isinstance(made.attributes, Mapping):
        return draft  # it will be refused
    if not carrier or made.attributes.keys() & carrier.keys() or len(made.attributes) + len(carrier) > MAX_ATTRIBUTES:
        return draft
    attributes = {**made.attributes, **carrier}
    if len(made.body) + sum(len(f"{name}") * 4 + _most(value) for name, value in attributes.items()) > MAX_MESSAGE:
        return draft
    return dataclasses.replace(made, attributes=attributes)


def _most(value: object) -> int:
    """Bytes that an attribute's value takes at most."""
    return len(value) if isinstance(value, bytes) else 4 * len(value) if isinstance(value, str) else 40

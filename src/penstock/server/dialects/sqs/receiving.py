"""ReceiveMessage."""

from __future__ import annotations

from typing import Any

from penstock.message import Message
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.attempts import Attempts
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError, invalid
from penstock.server.dialects.sqs.handles import handle_of
from penstock.server.dialects.sqs.in_flight import InFlight
from penstock.server.dialects.sqs.message_attributes import Filter, body_of, md5, recall, show
from penstock.server.dialects.sqs.names import Names
from penstock.server.dialects.sqs.rules import Rulebook, Rules
from penstock.server.dialects.sqs.sending import ID, sequence

MOST_MESSAGES = 10
LONGEST_WAIT = 20
LONGEST_VISIBILITY = 43200
EARLY = 0.005
"""By this part of its time, and by at least twice so many seconds, a long poll ends early: then its client gives up."""


class ReceiveOperations:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._rules = Rulebook(core)
        self._names = Names(core.settings)
        self._attempts = Attempts(core)
        self._in_flight = InFlight(core)

    async def receive_message(self, call: Call) -> dict[str, Any]:
        assert call.queue is not None
        given, request, queue = call.given, call.request, call.queue
        rules = self._rules.known(queue) or await self._rules.load(queue)
        limit = _whole(
            given, "MaxNumberOfMessages", 1, 1, MOST_MESSAGES, f"Must be between 1 and {MOST_MESSAGES}, if provided."
        )
        visibility = _whole(
            given, "VisibilityTimeout", None, 0, LONGEST_VISIBILITY, f"Must be >= 0 and <= {LONGEST_VISIBILITY}, if provided."
        )
        wait = _whole(given, "WaitTimeSeconds", None, 0, LONGEST_WAIT, f"Must be >= 0 and <= {LONGEST_WAIT}, if provided.")
        attempt = given.get("ReceiveRequestAttemptId")
        if attempt is not None and not ID.fullmatch(attempt):
            text = "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length."
            raise invalid("ReceiveRequestAttemptId", attempt, text)
        if attempt is not None and rules.fifo:
            messages = await self._attempts.repeat(call, attempt, visibility)
            if messages:
                return await self._answer(call, messages, rules)
        if await self._in_flight.is_full(queue):
            if rules.fifo:
                return {}
            raise SqsError("OverLimit", f"The queue has {self._in_flight.limit} messages in flight, the limit.")
        seconds = min(rules.wait if wait is None else wait, self.core.settings.max_wait)
        messages = await self.core.receive(
            request, queue, limit or 1, _shortened(seconds), visibility=visibility, together=rules.fifo
        )
        if not messages:
            return {}
        self._in_flight.received(queue, len(messages))
        call.undo = lambda: self.core.polls.give_back(messages)
        if attempt is not None and rules.fifo:
            self._attempts.keep(call, attempt, messages)
        try:
            return await self._answer(call, messages, rules)
        except BaseException:
            call.undo()
            raise

    async def _answer(self, call: Call, messages: list[Message], rules: Rules) -> dict[str, Any]:
        wanted = Filter(call.given.get("MessageAttributeNames"))
        system = frozenset(_system_names(call))
        size = sum(len(message.body) for message in messages)
        shown = await self.core.offload.run(
            size, lambda: [self._show(call, message, wanted, system, rules) for message in messages]
        )
        return {"Messages": shown}

    def _show(self, call: Call, message: Message, wanted: Filter, system: frozenset[str], rules: Rules) -> dict[str, Any]:
        text, raw, encoded = body_of(message)
        sent_to = message.queue if message.death is None else message.death.queue
        shown: dict[str, Any] = {
            "MessageId": self.core.broker.store.uuids.of(sent_to, message.id),
            "ReceiptHandle": handle_of(call.request.grant, message),
            "MD5OfBody": md5(raw).hexdigest(),
            "Body": text,
        }
        if not system and wanted.nothing:
            return shown
        known = recall(message) if message.attributes else {}
        if system:
            attributes = self._system_attributes(call, message, known, rules)
            shown["Attributes"] = (
                attributes if "All" in system else {name: text for name, text in attributes.items() if name in system}
            )
            if not shown["Attributes"]:
                del shown["Attributes"]
        if not wanted.nothing:
            values, digest = show(message, known, wanted, encoded)
            if digest is not None:
                shown["MD5OfMessageAttributes"] = digest
                shown["MessageAttributes"] = values
        return shown

    def _system_attributes(self, call: Call, message: Message, known: dict[str, Any], rules: Rules) -> dict[str, str]:
        death = message.death
        attributes = {
            "SenderId": _text(known.get("sender")) or self.core.settings.sqs_account,
            "SentTimestamp": str(message.sent_at // 1000),
            "ApproximateReceiveCount": str(message.receives + (0 if death is None else death.receives)),
            "ApproximateFirstReceiveTimestamp": str((message.first_received_at or message.sent_at) // 1000),
        }
        if message.group is not None:
            attributes["MessageGroupId"] = message.group
        if rules.fifo:
            attributes["SequenceNumber"] = sequence(message.number)
            if deduplication := _text(known.get("deduplication")) or _key(message):
                attributes["MessageDeduplicationId"] = deduplication
        if trace := _text(known.get("trace")):
            attributes["AWSTraceHeader"] = trace
        if death is not None and call.request.grant.knows(death.queue):
            attributes["DeadLetterQueueSourceArn"] = self._names.arn(death.queue)
        return attributes


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _key(message: Message) -> str | None:
    """The key of a message, if it can be a deduplication id."""
    key = message.key.decode("latin-1") if message.key is not None else ""
    return key if ID.fullmatch(key) else None


def _whole(given: dict[str, Any], name: str, default: int | None, least: int, most: int, reason: str) -> int | None:
    value: int | None = given.get(name, default)
    if value is not None and not least <= value <= most:
        raise invalid(name, value, reason)
    return value


def _shortened(wait: float) -> float:
    return max(0.0, wait - max(2 * EARLY, wait * EARLY))


def _system_names(call: Call) -> list[str]:
    """Which system attributes a receiver wants, under the old name of the parameter or the new one. If it gives both, AWS looks
    at the new one in the JSON protocol and at the old one in the other."""
    new, old = call.given.get("MessageSystemAttributeNames") or [], call.given.get("AttributeNames") or []
    return new or old if "x-amz-target" in call.request.headers else old or new

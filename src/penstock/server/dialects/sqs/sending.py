"""SendMessage and SendMessageBatch."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from penstock.message import Draft, Sent
from penstock.policy import TEXT
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.batches import entries_of, failure
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError, invalid, missing
from penstock.server.dialects.sqs.message_attributes import (
    Attached,
    attach,
    invalid_value,
    md5,
    read_text,
    read_trace,
    remember,
)
from penstock.server.dialects.sqs.rules import LONGEST_MESSAGE, Rulebook, Rules
from penstock.server.offload import SMALL
from penstock.stores.ids import number_of

LONGEST_DELAY = 900
ID = re.compile(r"[!-~]{1,128}")
TRACE_HEADER = "x-amzn-trace-id"
NOT_HERE = "The request include parameter that is not valid for this queue type."


class PreparedMessage(NamedTuple):
    """A message that may be sent, and the digests of the answer."""

    draft: Draft
    size: int
    digests: dict[str, str]


class SendOperations:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._rules = Rulebook(core)

    async def send_message(self, call: Call) -> dict[str, Any]:
        assert call.queue is not None
        rules = self._rules.known(call.queue) or await self._rules.load(call.queue)
        size = len(call.request.body)
        if size <= SMALL:  # mostly, and without a call more
            prepared = self._prepare(call, call.given, rules)
        else:
            prepared = await self.core.offload.run(size, lambda: self._prepare(call, call.given, rules))
        if prepared.size > rules.longest:
            raise _too_long("are invalid", rules)
        (sent,) = await self.core.send(call.request, call.queue, [prepared.draft])
        return self._answer(call.queue, prepared, sent, rules)

    async def send_message_batch(self, call: Call) -> dict[str, Any]:
        assert call.queue is not None
        rules = self._rules.known(call.queue) or await self._rules.load(call.queue)
        entries = entries_of(call)
        if rules.fifo:
            for entry in entries:
                _check_fifo(entry, rules, "InvalidParameterValueException")
        found = await self.core.offload.run(
            len(call.request.body), lambda: [self._prepare_entry(call, entry, rules) for entry in entries]
        )
        total = sum(_weigh(entry) if isinstance(one, SqsError) else one.size for entry, one in zip(entries, found, strict=True))
        if total > LONGEST_MESSAGE:
            text = f"Batch requests cannot be longer than {LONGEST_MESSAGE} bytes. You have sent {total} bytes."
            raise SqsError("BatchRequestTooLong", text)
        checked = [
            _too_long("cannot be validated", rules) if not isinstance(one, SqsError) and one.size > rules.longest else one
            for one in found
        ]
        drafts = [one.draft for one in checked if not isinstance(one, SqsError)]
        sent = iter(await self.core.send(call.request, call.queue, drafts) if drafts else ())
        successful, failed = [], []
        for entry, one in zip(entries, checked, strict=True):
            if isinstance(one, SqsError):
                failed.append(failure(entry, one))
            else:
                successful.append({"Id": entry["Id"], **self._answer(call.queue, one, next(sent), rules)})
        return {"Successful": successful, "Failed": failed}

    def _prepare_entry(self, call: Call, entry: dict[str, Any], rules: Rules) -> PreparedMessage | SqsError:
        if not entry.get("MessageBody"):
            return SqsError("EmptyValue", missing("MessageBody").text)  # as AWS calls it here
        try:
            return self._prepare(call, entry, rules)
        except SqsError as error:
            error.__traceback__ = None  # its frames have the whole request
            return error

    def _prepare(self, call: Call, given: dict[str, Any], rules: Rules) -> PreparedMessage:
        """Check a message against every limit but that of its size."""
        body = given.get("MessageBody")
        if not body:
            raise missing("MessageBody")
        try:
            raw = read_text(body, "message body")
        except ValueError as error:
            raise SqsError("InvalidMessageContents", str(error)) from None
        digests = {"MD5OfMessageBody": md5(raw).hexdigest()}
        attached = attach(given.get("MessageAttributes"))
        if attached.digest is not None:
            digests["MD5OfMessageAttributes"] = attached.digest
        trace, digest = read_trace(given.get("MessageSystemAttributes"))
        if digest is not None:
            digests["MD5OfMessageSystemAttributes"] = digest
        delay = _read_delay(given, rules)
        draft = self._draft(call, given, rules, raw, attached, trace)
        draft.delay = delay
        return PreparedMessage(draft, len(raw) + attached.size, digests)

    def _draft(
        self, call: Call, given: dict[str, Any], rules: Rules, raw: bytes, attached: Attached, trace: str | None
    ) -> Draft:
        group = given.get("MessageGroupId")
        deduplication = given.get("MessageDeduplicationId")
        if group is not None:
            _check_id("MessageGroupId", group)
        if deduplication is not None:
            if not rules.fifo:
                raise invalid("MessageDeduplicationId", deduplication, NOT_HERE)
            _check_id("MessageDeduplicationId", deduplication)
        key = None
        if rules.fifo:
            _check_fifo(given, rules, "MissingRequiredParameterException")
            if rules.deduplicates:
                deduplication = deduplication or hashlib.sha256(raw).hexdigest()
                key, told = rules.key(group or "", deduplication, self.core.broker.clock())
                deduplication = None if told else deduplication
        trace = trace or _read_trace_header(call)
        sender = call.request.grant.name or (None if call.account == self.core.settings.sqs_account else call.account)
        attributes = attached.attributes
        if attached.types or trace or sender or deduplication:
            attributes = remember(attached, trace=trace, sender=sender, deduplication=deduplication)
        return Draft(raw, TEXT, attributes, key=key, group=group)

    def _answer(self, queue: str, prepared: PreparedMessage, sent: Sent, rules: Rules) -> dict[str, Any]:
        answer = {"MessageId": self.core.broker.store.uuids.of(queue, sent.id), **prepared.digests}
        if rules.fifo:
            answer["SequenceNumber"] = sequence(number_of(sent.id) or 0)
        return answer


def _read_trace_header(call: Call) -> str | None:
    """AWS takes the trace from the request's own header, too."""
    given = call.request.headers.get(TRACE_HEADER)
    return given if given is not None and given.isascii() and given.isprintable() and given else None


def sequence(number: int) -> str:
    """A SequenceNumber: its 20 digits rise with the order of sending."""
    return f"{number:020d}"


def _check_id(name: str, value: str) -> None:
    if not ID.fullmatch(value):
        raise invalid(name, value, f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.")


def _check_fifo(given: dict[str, Any], rules: Rules, shape: str) -> None:
    """What a message needs in a FIFO queue. ``shape``: the error's name if it has no group."""
    if given.get("MessageGroupId") is None:
        raise SqsError(shape, "The request must contain the parameter MessageGroupId.")
    if rules.deduplicates and not rules.by_content and given.get("MessageDeduplicationId") is None:
        raise invalid_value(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
        )


def _read_delay(given: dict[str, Any], rules: Rules) -> int | None:
    """None: the queue's."""
    delay: int | None = given.get("DelaySeconds")
    if delay is None or (rules.fifo and delay == 0):
        return None
    if rules.fifo:
        raise invalid("DelaySeconds", delay, NOT_HERE)
    if not 0 <= delay <= LONGEST_DELAY:
        raise invalid("DelaySeconds", delay, f"DelaySeconds must be >= 0 and <= {LONGEST_DELAY}.")
    return delay


def _too_long(words: str, rules: Rules) -> SqsError:
    return invalid_value(f"One or more parameters {words}. Reason: Message must be shorter than {rules.longest} bytes.")


def _weigh(given: dict[str, Any]) -> int:
    """The size of a message that is refused for another reason."""
    size = len(given.get("MessageBody", "").encode(errors="replace"))
    for name, value in (given.get("MessageAttributes") or {}).items():
        texts = (name, value.get("DataType") or "", value.get("StringValue") or "")
        size += sum(len(text.encode(errors="replace")) for text in texts) + len(value.get("BinaryValue") or b"")
    return size

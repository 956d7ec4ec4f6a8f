"""DeleteMessage, ChangeMessageVisibility, and their batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from penstock.clock import Clock
from penstock.errors import QueueNotFound
from penstock.message import SECOND, Message, Receipt, State
from penstock.queue.queue import LocalQueue
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.batches import entries_of, failure
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError, invalid, missing
from penstock.server.dialects.sqs.handles import read_handle
from penstock.server.dialects.sqs.receiving import LONGEST_VISIBILITY
from penstock.server.dialects.sqs.rules import Rulebook

EXPIRED = "The receipt handle has expired."
NOT_AVAILABLE = "Message does not exist or is not available for visibility timeout change."
BEYOND = f"Total VisibilityTimeout for the message is beyond the limit [{LONGEST_VISIBILITY} seconds]"
SPARSE = 4
"""Messages are looked up in one go if there are at most so many times as many numbers between the first and the last."""


class Wish(NamedTuple):
    """What a client wants: to delete a message, or to hide it for so many seconds."""

    receipt: Receipt
    number: int
    handle: str
    seconds: int = 0


EntryOutcome = SqsError | bool
"""Why a wish is refused, or whether it has changed anything."""
Perform = Callable[[list[Wish]], Awaitable[Sequence[EntryOutcome]]]


class SettleOperations:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._rules = Rulebook(core)

    async def delete_message(self, call: Call) -> dict[str, Any]:
        fifo = await self._is_fifo(call)
        return _answer(await self._delete(call, fifo, [_read(call, call.given)]))

    async def delete_message_batch(self, call: Call) -> dict[str, Any]:
        fifo = await self._is_fifo(call)
        return await _each(call, _read, partial(self._delete, call, fifo))

    async def change_message_visibility(self, call: Call) -> dict[str, Any]:
        fifo = await self._is_fifo(call)
        return _answer(await self._change(call, fifo, [_read_change(call, call.given)]))

    async def change_message_visibility_batch(self, call: Call) -> dict[str, Any]:
        fifo = await self._is_fifo(call)
        return await _each(call, _read_change, partial(self._change, call, fifo))

    async def _is_fifo(self, call: Call) -> bool:
        """First of all: that there is no such queue counts more than what is wrong with the rest of the request."""
        queue = call.queue or ""
        return (self._rules.known(queue) or await self._rules.load(queue)).fifo

    async def _delete(self, call: Call, fifo: bool, wishes: list[Wish]) -> Sequence[EntryOutcome]:
        queue = call.queue or ""
        act = partial(self._settle, queue, partial(_delete_from_fifo, self.core.broker.clock) if fifo else _delete)
        outcomes: Sequence[EntryOutcome] = await self.core.commits.share(f"sqs delete {queue}", act, wishes)
        self.core.count_deleted(call.request, queue, sum(outcome is True for outcome in outcomes))
        return outcomes

    async def _change(self, call: Call, fifo: bool, wishes: list[Wish]) -> Sequence[EntryOutcome]:
        queue = call.queue or ""
        act = partial(self._settle, queue, partial(_hide, self.core.broker.clock, fifo))
        outcomes: Sequence[EntryOutcome] = await self.core.commits.share(f"sqs hide {queue}", act, wishes)
        return outcomes

    def _settle(
        self, queue: str, act: Callable[[LocalQueue, list[Wish]], Sequence[EntryOutcome]], asked: list[list[Wish]]
    ) -> list[list[EntryOutcome]]:
        """In a thread of commits: what several requests wish, in one call."""
        try:
            home = self.core.commits.queue(queue)
            outcomes = iter(act(home, [wish for wishes in asked for wish in wishes]))
        except QueueNotFound:
            self.core.commits.forget(queue)
            raise
        return [list(islice(outcomes, len(wishes))) for wishes in asked]


def _delete(home: LocalQueue, wishes: list[Wish]) -> Sequence[EntryOutcome]:
    """In a standard queue, an old handle deletes nothing, and its holder is told of success."""
    return home.delete_many([wish.receipt for wish in wishes])


def _delete_from_fifo(clock: Clock, home: LocalQueue, wishes: list[Wish]) -> Sequence[EntryOutcome]:
    """In a FIFO queue, a message that is visible again keeps its place: its old receiver must not delete it."""
    found, now = _look_up(home, wishes), clock()
    held = [
        wish.receipt
        for wish in wishes
        if (message := found.get(wish.receipt.id)) is not None
        and _is_in_flight(message, now)
        and message.delivery == wish.receipt.delivery
    ]
    deleted = {receipt.id for receipt, done in zip(held, home.delete_many(held), strict=True) if done}
    outcomes: list[EntryOutcome] = []
    for wish in wishes:
        id = wish.receipt.id
        refused = id in found and id not in deleted
        outcomes.append(invalid("ReceiptHandle", wish.handle, EXPIRED) if refused else id in deleted)
    return outcomes


def _hide(clock: Clock, fifo: bool, home: LocalQueue, wishes: list[Wish]) -> Sequence[EntryOutcome]:
    """Hide messages that are in flight.

    As at AWS, an old handle is good for that in a standard queue, and the handle of a message that is visible again gets no
    error there: if nobody has received the message since, it is hidden again; otherwise nothing changes."""
    found, now = _look_up(home, wishes), clock()
    outcomes = [_judge(wish, found.get(wish.receipt.id), now, fifo) for wish in wishes]
    chosen = [place for place, outcome in enumerate(outcomes) if outcome is True]
    receipts = [wishes[place].receipt for place in chosen]
    if not fifo:
        # Of a message in flight, whichever receiver has it now.
        receipts = [
            Receipt(home.name, receipt.id, None) if _is_in_flight(found[receipt.id], now) else receipt for receipt in receipts
        ]
    hidden = home.extend_many(receipts, [wishes[place].seconds for place in chosen])
    for place, receipt, done in zip(chosen, receipts, hidden, strict=True):
        if not done:
            gone = fifo or receipt.delivery is None
            outcomes[place] = invalid("ReceiptHandle", wishes[place].handle, NOT_AVAILABLE) if gone else False
    return outcomes


def _judge(wish: Wish, message: Message | None, now: int, fifo: bool) -> EntryOutcome:
    """Whether a message, as it is now, may be hidden for so long."""
    if message is None or (fifo and message.delivery != wish.receipt.delivery):
        return invalid("ReceiptHandle", wish.handle, NOT_AVAILABLE)
    if fifo and not _is_in_flight(message, now):
        return SqsError("MessageNotInflight", "The specified message isn't in flight.")
    beyond = (now - message.delivery) // SECOND + wish.seconds > LONGEST_VISIBILITY
    return invalid("VisibilityTimeout", wish.seconds, BEYOND) if beyond else True


def _is_in_flight(message: Message, now: int) -> bool:
    return message.state is State.CONSUMED and message.visible_at > now


def _look_up(home: LocalQueue, wishes: list[Wish]) -> dict[str, Message]:
    """The messages as they are now, by their ids, without those that are gone."""
    wanted = {wish.number: wish.receipt.id for wish in wishes}
    if not wanted:
        return {}
    first, last = min(wanted), max(wanted)
    if last - first < SPARSE * len(wanted):
        found = home.scan(first, last + 1, last - first + 1)
    else:
        found = [message for number in sorted(wanted) for message in home.scan(number, number + 1, 1)]
    return {message.id: message for message in found}


def _read(call: Call, given: dict[str, Any]) -> Wish:
    handle = given.get("ReceiptHandle")
    if not handle:
        raise missing("ReceiptHandle")
    return Wish(*read_handle(call.request.grant, call.queue or "", handle), handle)


def _read_change(call: Call, given: dict[str, Any]) -> Wish:
    seconds = given.get("VisibilityTimeout")
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not 0 <= seconds <= LONGEST_VISIBILITY:
        text = f"VisibilityTimeout must be an integer between 0 and {LONGEST_VISIBILITY}."
        raise invalid("VisibilityTimeout", seconds, text)
    return _read(call, given)._replace(seconds=seconds)


def _answer(outcomes: Sequence[EntryOutcome]) -> dict[str, Any]:
    (outcome,) = outcomes
    if isinstance(outcome, SqsError):
        raise outcome
    return {}


async def _each(call: Call, read: Callable[[Call, dict[str, Any]], Wish], perform: Perform) -> dict[str, Any]:
    """A batch: what is wrong with one entry fails only that."""
    entries = entries_of(call)
    outcomes: list[Wish | EntryOutcome] = []
    for entry in entries:
        try:
            outcomes.append(read(call, entry))
        except SqsError as error:
            error.__traceback__ = None  # its frames have the whole request
            outcomes.append(error)
    wishes = [wish for wish in outcomes if isinstance(wish, Wish)]
    done = iter(await perform(wishes) if wishes else ())
    outcomes = [next(done) if isinstance(outcome, Wish) else outcome for outcome in outcomes]
    told = list(zip(entries, outcomes, strict=True))
    return {
        "Successful": [{"Id": entry["Id"]} for entry, outcome in told if not isinstance(outcome, SqsError)],
        "Failed": [failure(entry, outcome) for entry, outcome in told if isinstance(outcome, SqsError)],
    }

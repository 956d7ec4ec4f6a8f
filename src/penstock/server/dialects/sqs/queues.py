"""Queues: create, list, describe, change, purge and delete them, and their tags."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from penstock.errors import QueueExists
from penstock.message import SECOND, Redrive, Settings, Stats
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs import attributes, permissions
from penstock.server.dialects.sqs.attributes import CREATED, LABEL, MODIFIED, PURGED
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.dead_letters import RedrivePolicies
from penstock.server.dialects.sqs.errors import SqsError, invalid, missing, no_queue
from penstock.server.dialects.sqs.names import ACCOUNT, FIFO, NAME, Names, QueueAddress
from penstock.server.dialects.sqs.rules import change_scope
from penstock.server.http.request_response import Scope

TAG = "sqs.tag."
MOST_TAGS = 50
LONGEST_TAG, LONGEST_TAG_VALUE = 128, 256
MOST_LISTED = 1000
WAIT = 60
"""Seconds between purges of a queue, and from its deletion until its name is free, if the server keeps SQS's waits."""
MOST_DELETED = 10_000
NAME_RULE = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
FIFO_RULE = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix "
    "and be 1 to 80 in length."
)


class QueueOperations:
    """Owns the names of queues that were deleted in the last minute, if the server keeps SQS's waits."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.broker = core.broker
        self.names = Names(core.settings)
        self._policies = RedrivePolicies(core.broker, self.names)
        self._waits = core.settings.sqs_waits
        self._deleted: dict[str, int] = {}

    def _now(self) -> int:
        return self.broker.clock() // SECOND

    # a queue's life

    async def create_queue(self, call: Call) -> dict[str, Any]:
        given, tags = attributes.trimmed(call.given.get("Attributes", {})), call.given.get("tags", {})
        place = QueueAddress(call.account, call.region, call.given["QueueName"])
        fifo = _check_name(place.name, given)
        queue = call.request.queue = self.names.queue_of(place)
        call.request.grant.check(Scope.ADMIN, queue)
        labels = _tag_labels(place.name, tags, {})

        def act() -> None:
            changes = attributes.read(given, fifo, lambda text: self._redrive(call, text, place))
            if self._exists(queue, given, changes):
                return
            self._check_deleted(queue)
            attributes.settle(changes, Settings())
            now = str(self._now())
            settings: dict[str, Any] = {"groups": True, "deduplicate": attributes.WINDOW} if fifo else {}
            changes.labels |= {CREATED: now, MODIFIED: now, **labels}
            try:
                self.broker.create(queue, **settings, **changes.as_arguments())
            except QueueExists:  # another server was faster
                self._exists(queue, given, changes)

        await self.core.create(call.request, queue, act)
        return {"QueueUrl": self.names.url(call.base, queue)}

    def _exists(self, queue: str, given: dict[str, str], changes: attributes.Changes) -> bool:
        """Whether there is such a queue; an error if it has other attributes than those that are given."""
        settings = self.broker.store.load(queue)
        if settings is None:
            return False
        name = attributes.differing(given, changes, settings)
        if name is not None:
            text = f"A queue already exists with the same name and a different value for attribute {name}"
            raise SqsError("QueueNameExists", text)
        return True

    def _redrive(self, call: Call, text: str, place: QueueAddress) -> Redrive:
        redrive = self._policies.read(text, place)
        # Naming a dead letter queue needs the same right as redriving to it, because messages then move there.
        call.request.grant.check(Scope.ADMIN, redrive.dead_letter_queue)
        return redrive

    def _check_deleted(self, queue: str) -> None:
        if self._waits and self._now() - self._deleted.get(queue, 0) < WAIT:
            text = "You must wait 60 seconds after deleting a queue before you can create another with the same name."
            raise SqsError("QueueDeletedRecently", text)

    async def delete_queue(self, call: Call) -> dict[str, Any]:
        queue = _queue(call)
        await self.core.delete_queue(queue)
        if self._waits:
            now = self._now()
            self._deleted = {name: at for name, at in self._deleted.items() if now - at < WAIT}
            if len(self._deleted) < MOST_DELETED:
                self._deleted[queue] = now
        return {}

    async def purge_queue(self, call: Call) -> dict[str, Any]:
        queue = _queue(call)
        if self._waits:
            await self.core.run(lambda: self._begin_purge(queue))
        await self.core.purge(queue)
        return {}

    def _begin_purge(self, queue: str) -> None:
        home, now = self.broker.queue(queue), self._now()
        if now - attributes.instant(home.settings, PURGED) < WAIT:
            name = self._place(queue).name
            text = f"Only one PurgeQueue operation on {name} is allowed every {WAIT} seconds."
            raise SqsError("PurgeQueueInProgress", text)
        home.update(labels={PURGED: str(now)})

    # finding queues

    async def get_queue_url(self, call: Call) -> dict[str, Any]:
        account, name = call.given.get("QueueOwnerAWSAccountId") or call.account, call.given["QueueName"]
        if not NAME.fullmatch(name) or not ACCOUNT.fullmatch(account):
            raise no_queue()
        queue = call.request.queue = self.names.queue_of(QueueAddress(account, call.region, name))
        # Whoever may use a queue in any way may know its address.
        if not call.request.grant.knows(queue):
            raise no_queue()
        await self._settings(queue)
        return {"QueueUrl": self.names.url(call.base, queue)}

    async def _settings(self, queue: str) -> Settings:
        return await self.core.look(f"settings of {queue}", lambda: self.broker.queue(queue).settings)

    async def list_queues(self, call: Call) -> dict[str, Any]:
        prefix = call.given.get("QueueNamePrefix", "")
        names = await self.core.names(call.request, Scope.COUNT)

        def choose() -> list[str]:
            places = ((name, self.names.place_of(name)) for name in names)
            return [
                name
                for name, place in places
                if place is not None
                and (place.account, place.region) == (call.account, call.region)
                and place.name.startswith(prefix)
            ]

        return self._page(call, "QueueUrls", await self.core.offload.run(sum(map(len, names)), choose))

    async def list_dead_letter_source_queues(self, call: Call) -> dict[str, Any]:
        queue = _queue(call)
        await self.core.run(lambda: self.broker.queue(queue))
        names = await self.core.names(call.request, Scope.COUNT)

        def source(name: str) -> str | None:
            settings = self.broker.store.load(name)
            points = settings is not None and settings.redrive is not None and settings.redrive.dead_letter_queue == queue
            return name if points and self.names.place_of(name) is not None else None

        found = await self.core.each(names, source)
        return self._page(call, "queueUrls", [name for name in found if name is not None])

    def _page(self, call: Call, member: str, names: list[str]) -> dict[str, Any]:
        """The part of the queues that a request asks for, and where the next part begins."""
        most, token = call.given.get("MaxResults"), call.given.get("NextToken")
        if most is not None and not 1 <= most <= MOST_LISTED:
            raise invalid("MaxResults", most, f"Must be between 1 and {MOST_LISTED}, if provided.")
        names.sort()
        start = 0
        if token:
            try:
                start = bisect_right(names, urlsafe_b64decode(token.encode("ascii")).decode())
            except ValueError:
                raise invalid("NextToken", token, "The token is not one that this operation has returned.") from None
        part = names[start : start + (most or MOST_LISTED)]
        output: dict[str, Any] = {member: [self.names.url(call.base, name) for name in part]}
        if most is not None and start + len(part) < len(names):
            output["NextToken"] = urlsafe_b64encode(part[-1].encode()).decode()
        return output

    # attributes

    async def get_queue_attributes(self, call: Call) -> dict[str, Any]:
        queue, names = _queue(call), call.given.get("AttributeNames", [])
        everything = "All" in names
        counted = everything or any(name in attributes.COUNTERS for name in names)

        def act() -> tuple[Settings, Stats | None]:
            home = self.broker.queue(queue)
            return home.settings, home.stats() if counted else None

        settings, stats = await self.core.look(f"settings of {queue} and {'numbers' if counted else 'nothing'}", act)
        for name in names:
            if name not in attributes.KNOWN:
                raise attributes.unknown(name)
        redrive = settings.redrive
        knows = redrive is not None and call.request.grant.knows(redrive.dead_letter_queue)
        shown = attributes.show(
            settings, self.names.arn(queue), self.names.arn(redrive.dead_letter_queue) if redrive and knows else None
        )
        if stats is not None:
            counts = (stats.visible + stats.blocked, stats.in_flight, stats.delayed)
            shown |= dict(zip(attributes.COUNTERS, map(str, counts), strict=True))
        return {"Attributes": {name: shown[name] for name in (shown if everything else names) if name in shown}}

    async def set_queue_attributes(self, call: Call) -> dict[str, Any]:
        queue, given = _queue(call), attributes.trimmed(call.given["Attributes"])
        if not given:
            raise missing("Attribute.Name")
        place = self._place(queue)

        def change(settings: Settings) -> attributes.Changes:
            changes = attributes.read(given, settings.groups, lambda text: self._redrive(call, text, place))
            attributes.settle(changes, settings)
            if "DeduplicationScope" in given:
                changes.labels |= change_scope(settings, given["DeduplicationScope"], self.broker.clock())
            return changes

        return await self._update(queue, change)

    async def _update(
        self, queue: str, change: Callable[[Settings], attributes.Changes], *, modified: bool = True
    ) -> dict[str, Any]:
        """Change a queue's settings by what they are."""

        def act() -> None:
            with self.broker.store.batch():
                self.broker.store.reserve(queue)
                home = self.broker.queue(queue)
                changes = change(home.settings)
                if modified:
                    changes.labels[MODIFIED] = str(self._now())
                home.update(**changes.as_arguments())

        await self.core.run(act)
        return {}

    # permissions

    async def add_permission(self, call: Call) -> dict[str, Any]:
        permissions.check(call.given)
        return await self._edit_policy(call, lambda text, arn: permissions.add(text, arn, call.given))

    async def remove_permission(self, call: Call) -> dict[str, Any]:
        return await self._edit_policy(call, lambda text, arn: permissions.remove(text, arn, call.given["Label"]))

    async def _edit_policy(self, call: Call, edit: Callable[[str, str], str]) -> dict[str, Any]:
        queue, name = _queue(call), f"{LABEL}Policy"

        def change(settings: Settings) -> attributes.Changes:
            text = edit(settings.labels.get(name, ""), self.names.arn(queue))
            return attributes.Changes(labels={name: text or None})

        return await self._update(queue, change)

    # tags

    async def tag_queue(self, call: Call) -> dict[str, Any]:
        queue, tags = _queue(call), call.given["Tags"]
        if not tags:
            raise missing("Tags")
        name = self._place(queue).name
        return await self._update(
            queue, lambda settings: attributes.Changes(labels=_tag_labels(name, tags, settings.labels)), modified=False
        )

    async def untag_queue(self, call: Call) -> dict[str, Any]:
        keys = call.given["TagKeys"]
        if not keys:
            raise SqsError("InvalidParameterValueException", "Tag keys must be between 1 and 128 characters in length.")

        def change(settings: Settings) -> attributes.Changes:
            return attributes.Changes(labels={TAG + key: None for key in keys if TAG + key in settings.labels})

        return await self._update(_queue(call), change, modified=False)

    async def list_queue_tags(self, call: Call) -> dict[str, Any]:
        queue = _queue(call)
        labels = (await self._settings(queue)).labels
        tags = {name[len(TAG) :]: text for name, text in labels.items() if name.startswith(TAG)}
        return {"Tags": tags}

    def _place(self, queue: str) -> QueueAddress:
        return self.names.place_of(queue) or QueueAddress(self.names.account, self.names.region, queue)


def _queue(call: Call) -> str:
    assert call.queue is not None
    return call.queue


def _check_name(name: str, given: dict[str, str]) -> bool:
    """Whether the name is that of a FIFO queue, which must say so in its attributes."""
    fifo = given.get("FifoQueue", "").lower() == attributes.TRUE
    if fifo and not (name.endswith(FIFO) and NAME.fullmatch(name)):
        raise SqsError("InvalidParameterValueException", FIFO_RULE)
    if not fifo and (name.endswith(FIFO) or not NAME.fullmatch(name)):
        raise SqsError("InvalidParameterValueException", NAME_RULE)
    return fifo


def _tag_labels(name: str, tags: dict[str, str], labels: Any) -> dict[str, str | None]:
    """The labels of new tags, in a queue that has these labels already."""
    for key, value in tags.items():
        if not 1 <= len(key) <= LONGEST_TAG or not key.isprintable():
            raise SqsError("InvalidParameterValueException", "Tag keys must be between 1 and 128 characters in length.")
        if len(value) > LONGEST_TAG_VALUE:
            raise SqsError("InvalidParameterValueException", "Tag values must be between 0 and 256 characters in length.")
    new = {TAG + key: value for key, value in tags.items()}
    if len(new.keys() | {label for label in labels if label.startswith(TAG)}) > MOST_TAGS:
        raise SqsError("InvalidParameterValueException", f"Too many tags added for queue {name}.")
    return dict(new)

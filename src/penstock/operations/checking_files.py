"""What can be wrong in a folder of files. Its store sets a damaged file aside whenever it reads one, so a check reads them
all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from penstock.broker import LocalBroker
from penstock.file_times import is_orphaned
from penstock.message import FOREVER, Claim
from penstock.operations.places import StorePlace
from penstock.operations.problems import PAGE, Problem, few
from penstock.stores.files.queue import FileQueue
from penstock.stores.files.records import ASIDE
from penstock.stores.files.store import FileStore


def check_folder(place: StorePlace, broker: LocalBroker, repair: bool) -> Iterator[Problem]:  # noqa: ARG001
    store = cast(FileStore, broker.store)
    for name in broker.queues().names:
        queue, now = store.queue(name), broker.clock()
        yield from _never_visible(queue, now, repair)
        yield from _left_over(queue, now, repair)
        yield from _claims_without_messages(queue)
        if queue.sidecar.damaged():
            what = f"{queue.sidecar.damaged():,} damaged files were set aside in {queue.sidecar.folder / 'damaged'}"
            yield Problem(name, what, "look at them, and remove them")


def _never_visible(queue: FileQueue, now: int, repair: bool) -> Iterator[Problem]:
    """Messages that are hidden for ever, and that no claim has."""
    with queue.opening.visit(drains=True), queue.folder.changing():
        queue.folder.refresh()
        claimed = set(queue.readers.all_receipts())
        hidden = [id for id, until in queue.folder.index.items() if until >= FOREVER and _is_forgotten(queue, id, claimed)]
        if hidden and repair:
            queue.holding.free_unclaimed(claimed, now)
    if hidden:
        what = f"{len(hidden):,} messages are hidden for ever, and no claim has them: {few(hidden)}"
        yield Problem(queue.name, what, "they are visible now" if repair else "--repair makes them visible", repair)


def _is_forgotten(queue: FileQueue, id: str, claimed: set[tuple[str, int]]) -> bool:
    received = queue.folder.received(id)
    return received is None or (received.released != ASIDE and (id, received.delivery) not in claimed)


def _left_over(queue: FileQueue, now: int, repair: bool) -> Iterator[Problem]:
    """Records of messages that are gone, and drafts, of processes that died long ago."""
    left = _count_left(queue)
    if left and repair:
        while queue.sweep(now).more:
            pass
    if left:
        remedy = "they were removed" if repair else "they do no harm, and are cleared away bit by bit; --repair does it now"
        yield Problem(queue.name, f"{left:,} marks, records and drafts are left of messages that are gone", remedy, repair)


def _count_left(queue: FileQueue) -> int:
    with queue.opening.visit(durable=False):
        queue.folder.refresh()
        sidecar, index = queue.sidecar, queue.folder.index
        left = [path for path in queue.folder.layout.drafts() if is_orphaned(path)]
        for kind in ("head", "held"):
            gone = [id for id in sidecar.names(kind) if id not in index and not queue.folder.is_draft(id)]
            left += [path for id in gone if is_orphaned(path := f"{sidecar.folder}/{kind}/{id}")]
        for name in sidecar.names("mark"):
            record = sidecar.read_json("mark", name)
            if record and record["until"] == FOREVER and record["id"] not in index:
                left += [path for path in [f"{sidecar.folder}/mark/{name}"] if is_orphaned(path)]
        return len(left)


def _claims_without_messages(queue: FileQueue) -> Iterator[Problem]:
    for reader in queue.readers.names():
        for claim in queue.readers.held(reader)[1]:
            if claim.confirmed and claim.size and not _has_messages(queue, claim):
                what = f"the claim {claim.epoch} of reader {reader!r} has no message any more"
                remedy = f"its reader settles it; if that is gone: penstock readers {queue.name} --give-up {reader}"
                yield Problem(queue.name, what, remedy)


def _has_messages(queue: FileQueue, claim: Claim) -> bool:
    parts = range(0, claim.size, PAGE)
    return any(queue.readers.read(claim.reader, claim.epoch, start, start + PAGE) for start in parts)

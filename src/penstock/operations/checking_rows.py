"""What can be wrong with the rows of an SQL database, and with a SQLite file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

from penstock.broker import LocalBroker
from penstock.message import FOREVER, MAX_NUMBER, SECOND, Settings
from penstock.operations.places import StorePlace, database_of
from penstock.operations.problems import RESTORE, Problem, few
from penstock.stores.encoding import pack_settings
from penstock.stores.sql.database import Database
from penstock.stores.sql.groups import all_groups_have_a_first
from penstock.stores.sqlite.copies import integrity

MOST = 1000
"""How many problems SQLite's own check tells, and how many hidden messages are shown at a time."""
OF_AN_INDEX = ("missing from index", "entries in index", "non-unique entry in index")


def check_file(place: StorePlace, broker: LocalBroker, repair: bool) -> Iterator[Problem]:
    told = integrity(place.path, MOST)
    indexes = [line for line in told if any(words in line for words in OF_AN_INDEX)]
    others = [line for line in told if line not in indexes]
    if others:
        yield Problem(None, f"SQLite finds the file damaged: {few(others)}", RESTORE)
        return
    if indexes and repair:
        with broker.store.batch():
            database_of(broker).script("REINDEX")
    if indexes:
        remedy = "they were built again" if repair else "--repair builds them again"
        yield Problem(None, f"SQLite finds indexes damaged: {few(indexes)}", remedy, repair)
    yield from check_rows(place, broker, repair)


def check_rows(place: StorePlace, broker: LocalBroker, repair: bool) -> Iterator[Problem]:  # noqa: ARG001
    database = database_of(broker)
    yield from _without_queue(database, repair)
    yield from _beside_messages(database, repair)
    yield from _never_visible(database, broker.clock(), repair)
    yield from _groups_without_first(broker, database, repair)
    for queue, reader, epoch in database.rows("bad_claims", {}):
        what = f"the claim {epoch} of reader {reader!r} has no message any more"
        yield Problem(queue, what, f"its reader settles it; if that is gone: penstock readers {queue} --give-up {reader}")


def _without_queue(database: Database, repair: bool) -> Iterator[Problem]:
    """Messages of a queue that does not exist get a queue."""
    lost: Counter[int] = Counter()
    for statement in ("bad_places", "bad_settled"):
        lost.update(dict(database.rows(statement, {})))
    for number, count in sorted(lost.items()):
        name = f"recovered-{number}"
        if repair:
            settings = pack_settings(Settings(retention=MAX_NUMBER, history=MAX_NUMBER))
            with database.batch():
                database.many("load_queues", [(number, name, settings, -1, 0)])
        what = f"{count:,} messages are in a queue that does not exist"
        yield Problem(
            None, what, f"they {'are' if repair else 'can be'} in a new queue, {name}{'' if repair else ': --repair'}", repair
        )


def _beside_messages(database: Database, repair: bool) -> Iterator[Problem]:
    """What says something of messages that are gone."""
    for kind, what in (("marks", "marks of messages that are gone"), ("held", "messages are listed for claims that are gone")):
        fields = {"forever": FOREVER} if kind == "marks" else {}
        count = database.rows(f"bad_{kind}", fields)[0][0]
        if count and repair:
            with database.batch():
                database.run(f"drop_bad_{kind}", fields)
        if count:
            yield Problem(None, f"{count:,} {what}", "they were removed" if repair else "--repair removes them", repair)


def _never_visible(database: Database, now: int, repair: bool) -> Iterator[Problem]:
    """Messages that nobody holds and nobody will ever receive."""
    far = now + MAX_NUMBER * SECOND
    hidden: Counter[int] = Counter()
    while rows := database.rows("bad_hidden", {"far": far, "limit": MOST}):
        hidden.update(queue for queue, _ in rows)
        if not repair:
            break
        with database.batch():
            for _, number in rows:
                database.run("show_hidden", {"far": far, "now": now, "number": number})
    blocked: dict[int, int] = dict(database.rows("bad_blocked", {}))
    if blocked and repair:
        with database.batch():
            database.run("show_blocked", {"now": now})
    names = {number: name for number, name, *_ in database.rows("all_queues", {"after": 0, "limit": 2**31})}
    remedy = "they are visible now" if repair else "--repair makes them visible"
    for what, counts in (("hidden for ever, and no claim has them", hidden), ("blocked, though they have no group", blocked)):
        for queue, count in counts.items():
            least = "" if repair or count < MOST else "at least "
            yield Problem(names.get(queue), f"{least}{count:,} messages are {what}", remedy, repair)


def _groups_without_first(broker: LocalBroker, database: Database, repair: bool) -> Iterator[Problem]:
    for name in broker.queues().names:
        with database.batch() if repair else nullcontext():
            found = database.enter(name, alone=True) if repair else database.find(name)
            groups = (
                [group for (group,) in database.rows("leaderless", {"queue": found.number})] if found.settings.groups else []
            )
            if groups and repair:
                all_groups_have_a_first(database, found)
        if groups:
            shown = few([group.decode(errors="replace") for group in groups])
            remedy = "the first of each is visible now" if repair else "--repair makes the first of each visible"
            yield Problem(name, f"{len(groups):,} groups are blocked, and nobody is ahead of them: {shown}", remedy, repair)

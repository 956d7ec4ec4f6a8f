"""Checking a store: what is damaged, lost or stuck in it, and repairing what can be repaired without losing a message.

What is not a message (an index, a mark, a list of what a claim has) is put right. A message that is damaged is set aside, where
nobody receives it and everybody can look at it. Nothing that could be a message is removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker import LocalBroker, open_local
from penstock.errors import QueueNotFound, StoreCorrupt
from penstock.message import Message, Receipt, State
from penstock.operations.checking_files import check_folder
from penstock.operations.checking_rows import check_file, check_rows
from penstock.operations.places import FILES, SERVERS, find
from penstock.operations.problems import RESTORE, Problem, each, few
from penstock.stores.ports import StoredQueue

CHECKS = {"sqlite": check_file} | dict.fromkeys(SERVERS, check_rows) | dict.fromkeys(FILES, check_folder)
"""What is particular to each kind of store."""


def check(url: str, *, repair: bool = False) -> list[Problem]:
    """Look at everything in the store at ``url``, while others use it, and return what is wrong. With ``repair``, put right
    what can be put right without losing a message."""
    place = find(url, "check", kept=False)
    place.check_exists()
    found: list[Problem] = []
    try:
        with open_local(url) as broker:
            broker.store.on_damage = lambda damage: found.append(Problem(None, damage, "see there", True))
            if place.kind in CHECKS:
                found += CHECKS[place.kind](place, broker, repair)
            repair = repair and not any(problem.remedy == RESTORE for problem in found)
            for name in broker.queues().names:
                try:
                    found += _check_queue(broker, name, repair)
                except QueueNotFound:  # it was deleted meanwhile
                    continue
    except StoreCorrupt as error:
        found.append(Problem(None, str(error), RESTORE))
    return found


def _check_queue(broker: LocalBroker, name: str, repair: bool) -> Iterator[Problem]:
    """What every store can tell."""
    stored = broker.store.queue(name)
    damaged, aside = [], []
    for message in each(stored):
        if message.state is State.DAMAGED:
            aside.append(message.id)
        elif not message.intact:
            damaged.append(message)
    if damaged:
        yield _set_aside(broker, stored, name, damaged, repair)
    if aside:
        remedy = f"look at them (penstock peek {name} --state damaged), and delete them"
        yield Problem(name, f"{len(aside):,} damaged messages are set aside: {few(aside)}", remedy)
    settled = [message.id for message in each(stored.history) if not message.intact]
    if settled:
        remedy = "nothing: they leave the history when their time is over"
        yield Problem(name, f"{len(settled):,} messages of the history are damaged: {few(settled)}", remedy)
    counts = stored.count(broker.clock())
    if counts.lost:
        remedy = "start the server with more memory and with -M; what it has thrown away is gone"
        yield Problem(name, f"the server has thrown away {counts.lost:,} messages", remedy)
    if counts.foreign:
        what = f"{len(counts.foreign):,} files are no messages, and nobody can deliver them: {few(counts.foreign)}"
        yield Problem(name, what, "another program has left them: give them the name of a message, or move them away")


def _set_aside(broker: LocalBroker, stored: StoredQueue, name: str, damaged: list[Message], repair: bool) -> Problem:
    what = f"{len(damaged):,} messages are damaged, their checksums differ: {few([message.id for message in damaged])}"
    if not repair:
        return Problem(name, what, "--repair sets them aside, as the next receive would")
    now = broker.clock()
    free = [message for message in damaged if message.state is not State.CONSUMED or message.visible_at <= now]
    done = sum(stored.set_aside([Receipt(name, message.id, None) for message in free]))
    left = "" if done == len(damaged) else "; receivers hold the others"
    return Problem(name, what, f"{done:,} were set aside{left}: penstock peek {name} --state damaged", done == len(damaged))

"""What SQL databases compute themselves is what `penstock.message` and `penstock.policy` say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import policy
from penstock.broker import LocalBroker, open_local
from penstock.message import FOREVER, OCTETS, Death, Entry, Message, Mode, State
from penstock.policy import Verdict, judge
from penstock.stores import messages
from penstock.stores.requests import Claiming, Deleting, Moving
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.testing import FakeClock

NOW = 1_000_000_000_000
SECOND = 1_000_000
AROUND = st.integers(NOW - 2, NOW + 2)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "visible_at": st.integers(NOW - 3, NOW + 1),
            "state": st.sampled_from([int(State.QUEUED), int(State.CONSUMED)]),
            "receives": st.integers(0, 4),
            "delivery": st.one_of(st.just(0), AROUND),
            "first_received_at": st.one_of(st.none(), AROUND),
            "expires_at": st.one_of(AROUND, st.just(FOREVER)),
            "moved_at": st.one_of(st.none(), st.integers(NOW - SECOND - 2, NOW - SECOND + 2)),
            "sent_at": st.integers(NOW - SECOND - 2, NOW - SECOND + 2),
            "deadline_at": st.one_of(st.none(), AROUND),
        }
    ),
    min_size=3,
    max_size=5,
)
CLAIMS = st.fixed_dictionaries(
    {
        "limit": st.integers(1, 3),
        "until": st.sampled_from([None, NOW, NOW + 1, NOW + 60 * SECOND]),
        "knows": st.booleans(),
        "holder": st.sampled_from([None, "worker"]),
        "share": st.sampled_from([None, (0, 2), (1, 2)]),
        "visible_by": st.one_of(st.none(), st.integers(NOW - 2, NOW)),
        "exchanges": st.booleans(),
    }
)
EXAMPLES = settings(max_examples=60, deadline=None)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rules.db"
    found: str = request.getfixturevalue(request.param).new_url()
    return found


@pytest.fixture
def broker(url: str) -> Iterator[LocalBroker]:
    with open_local(url, clock=FakeClock(NOW)) as broker:
        yield broker


def run(store: SqlStore, text: str) -> None:
    database: Any = store.database
    if isinstance(database, SqliteDatabase):
        database.connect().execute(text)
    else:
        database.side.do(lambda side: database.driver.ask(side, text))


def fill(store: SqlStore, name: str, rows: list[dict[str, Any]]) -> list[Message]:
    """Insert messages that are in these states, and return them as they are."""
    known = store.load(name)
    assert known is not None
    for row in rows:
        entry = Entry(
            b"x", OCTETS, {}, row["sent_at"], row["visible_at"], row["expires_at"], row["deadline_at"], *[None] * 3, 0
        )
        sent = store.queue(name).insert([entry], NOW, known)
        assert sent is not None
        number = store.database.ids.number(sent[0].id)
        columns = ("state", "receives", "delivery", "first_received_at", "moved_at")
        changes = ", ".join(f"{column} = {'NULL' if row[column] is None else row[column]}" for column in columns)
        run(store, f"UPDATE penstock_message SET {changes} WHERE number = {number}")
    return store.queue(name).browse(100)


@EXAMPLES
@given(rows=ROWS, claim=CLAIMS, redrive=st.booleans())
def test_a_claim_takes_and_writes_what_the_rules_say_in_every_database(
    broker: LocalBroker, rows: list[dict[str, Any]], claim: dict[str, Any], redrive: bool
) -> None:
    """Such as PostgreSQL's claim_at_once, which picks, hides and counts in one statement."""
    name, store = str(uuid4()), broker.store
    assert isinstance(store, SqlStore)
    dead = broker.create(f"{name}.dead")
    known = broker.create(name, retention=1, redrive=(dead.name, 2) if redrive else None).settings
    before = fill(store, name, rows)
    exchanges = claim["exchanges"] and claim["until"] is not None
    deleting = Deleting([], policy.settlement(known, State.PROCESSED, None, NOW)) if exchanges else None
    asked = Claiming(
        claim["limit"],
        NOW,
        claim["until"],
        known if claim["knows"] or exchanges else None,
        claim["holder"],
        claim["share"],
        claim["visible_by"],
        deleting,
    )
    place, of = asked.share or (0, 1)
    visible = sorted(
        (message for message in before if message.visible_at <= asked.at and message.number % of == place),
        key=lambda message: (message.visible_at, message.number),
    )[: asked.limit]
    expected = [messages.answered(messages.claimed(message, asked), message) for message in visible]
    with store.batch():
        answer = store.queue(name).claim(asked)
        assert answer is not None
        for found, right in zip(answer.messages, expected, strict=True):
            right.holder = found.holder  # the answer may leave it out; the queue shows it, see below
            assert found == right
            for mode in Mode:
                assert judge(found, known, mode, NOW) == judge(right, known, mode, NOW)
        if asked.until is None:  # then a database need not write it
            store.queue(name).delete(answer.messages, policy.settlement(known, State.PROCESSED, None, NOW))
    left = {message.number: message for message in store.queue(name).browse(100)}
    for message, right in zip(visible, expected, strict=True):
        written = left.pop(message.number, None)
        if asked.until is not None:
            right.lapsed, right.holder = False, asked.holder
            assert written == right
    assert list(left.values()) == [message for message in before if message.number in left]
    store.drop(name)
    store.drop(dead.name)


@EXAMPLES
@given(rows=ROWS, dies=st.booleans())
def test_a_move_writes_what_the_rules_say_in_every_database(
    broker: LocalBroker, rows: list[dict[str, Any]], dies: bool
) -> None:
    name, store = str(uuid4()), broker.store
    assert isinstance(store, SqlStore)
    known, target = broker.create(name).settings, broker.create(f"{name}.there")
    before = fill(store, name, rows)
    death = Death(name, "max_receives", 3, NOW) if dies else None
    moving = Moving(target.name, NOW, NOW + 5, death, policy.readmit)
    with store.batch():
        store.queue(name).move(before, moving)
    expected = [
        messages.moved(message, moving, policy.readmit(message, None, death, known, target.settings, NOW)) for message in before
    ]
    found = store.queue(target.name).browse(100)
    assert found == sorted(expected, key=lambda message: message.number)
    for message in found:
        for mode in Mode:
            assert judge(message, target.settings, mode, NOW) == (Verdict.DELIVER, "")
    store.drop(name)
    store.drop(target.name)


def test_several_reads_see_one_state_whatever_others_commit_meanwhile(broker: LocalBroker, url: str) -> None:
    """MariaDB takes a snapshot at one isolation level alone, and ignores the wish for one at the others."""
    queue, store = broker.create("jobs"), broker.store
    assert isinstance(store, SqlStore)
    queue.send(b"first")
    number = store.database.find("jobs").number
    with store.database.reading():
        seen = [store.database.rows("span", {"queue": number})]
        with open_local(url, clock=FakeClock(NOW)) as other:
            other["jobs"].send(b"second")
        seen.append(store.database.rows("span", {"queue": number}))
    assert seen[0] == seen[1]
    assert queue.span()[0] == 2

"""What SQL databases compute themselves is what `penstock.message` and `penstock.policy` say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Draft, policy
from penstock.broker import LocalBroker, open_local
from penstock.message import FOREVER, OCTETS, Death, Entry, Message, Mode, State
from penstock.policy import Verdict, judge
from penstock.stores import messages
from penstock.stores.ports import ClaimingReaders
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


def counted(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements run from now on, and how many rows they give to the process."""
    database: Any = broker.store.database  # type: ignore[attr-defined]
    counts = [0, 0]

    def count(name: str) -> None:
        real = getattr(database, name)

        def ask(*arguments: Any) -> Any:
            answer = real(*arguments)
            counts[0] += 1
            counts[1] += len(answer) if name == "rows" else 0
            return answer

        monkeypatch.setattr(database, name, ask)

    for name in ("rows", "run", "many"):
        count(name)
    return counts


@pytest.mark.parametrize("kept", [{}, {"history": 60}, {"deduplicate": True}, {"redrive": ("dead", 3)}])
def test_a_named_claim_costs_its_owner_the_same_whatever_its_size(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any]
) -> None:
    broker.create("dead")
    queue = broker.create("orders", **kept)
    counts = counted(broker, monkeypatch)
    seen = []
    for epoch, size in enumerate((1, 2, 300)):  # the first adds the reader
        queue.send_many([b"%d" % number for number in range(size)])
        counts[:] = 0, 0
        assert queue.claim("spark", epoch, 1000).size == size
        assert queue.confirm("spark", epoch).size == size
        assert queue.settle("spark", epoch) == size
        seen.append(list(counts))
    assert seen[1][0] == seen[2][0] < 60
    assert max(seen[1][1], seen[2][1]) < 60


def test_what_is_confirmed_is_not_written_again(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker.create("orders")
    queue.send_many([b"x"] * 5)
    queue.claim("spark", 1, 5)
    before = broker.store.queue("orders").browse(9, state=State.CONSUMED)
    written: list[str] = []
    database: Any = broker.store.database  # type: ignore[attr-defined]
    run = database.run
    monkeypatch.setattr(database, "run", lambda name, *rest: written.append(name) or run(name, *rest))
    queue.confirm("spark", 1)
    assert written == ["confirm"]
    assert {message.visible_at for message in before} == {NOW + 60 * SECOND}
    assert {message.visible_at for message in queue.read("spark", 1)} == {FOREVER}


@pytest.mark.parametrize("history", [0, 60])
def test_a_damaged_message_of_a_claim_is_left_out_and_stays(broker: LocalBroker, history: float) -> None:
    """The claim does not look at bodies; whoever reads them does, each time."""
    queue, store = broker.create("orders", history=history), broker.store
    assert isinstance(store, SqlStore)
    sent = queue.send_many([b"0", b"1", b"2"])
    run(store, f"UPDATE penstock_message SET checksum = checksum + 1 WHERE number = {store.database.ids.number(sent[1].id)}")
    assert queue.claim("spark", 1, 9).size == 3
    queue.confirm("spark", 1)
    for _ in range(2):
        assert [message.body for message in queue.read("spark", 1)] == [b"0", b"2"]
        assert [message.state.name for message in queue.read("spark", 1, 1, 2, damaged=True)] == ["DAMAGED"]
    assert (queue.stats().damaged, queue.settle("spark", 1)) == (1, 2)
    assert [message.id for message in queue.peek(9, state="damaged")] == [sent[1].id]
    assert queue.stats().settled == (2 if history else 0)


@EXAMPLES
@given(rows=ROWS, limit=st.integers(1, 5), since=st.one_of(st.none(), st.integers(NOW - 2, NOW)), redrive=st.booleans())
def test_what_a_named_claim_takes_at_once_is_what_the_rules_deliver(
    broker: LocalBroker, rows: list[dict[str, Any]], limit: int, since: int | None, redrive: bool
) -> None:
    """It takes the first messages, up to the first that the rules might refuse; SQLite takes all or none."""
    name, store = str(uuid4()), broker.store
    assert isinstance(store, SqlStore)
    dead = broker.create(f"{name}.dead")
    known = broker.create(name, retention=1, redrive=(dead.name, 2) if redrive else None).settings
    before, visible_by = fill(store, name, rows), NOW if since is None else since
    visible = sorted(
        (each for each in before if each.visible_at <= visible_by), key=lambda each: (each.visible_at, each.number)
    )
    bounds = policy.certain(known, NOW)
    certain = [
        each.receives < bounds.max_receives
        and each.expires_at > NOW
        and policy.came_at(each) > bounds.came_after
        and (each.deadline_at is None or each.deadline_at > NOW)
        for each in visible[:limit]
    ]
    first = certain.index(False) if False in certain else len(certain)
    readers = store.queue(name).readers
    assert isinstance(readers, ClaimingReaders)
    with store.batch():
        store.reserve(name)
        held = readers.hold_visible("r", 1, limit, NOW, visible_by, NOW + SECOND, bounds)
    if isinstance(store.database, SqliteDatabase):
        assert held == ((first, False) if first == len(certain) > 0 else (0, True))
    else:
        assert held == (first, False in certain)
    found = readers.read("r", 1, 0, 9) if held.size else []
    assert [each.number for each in found] == [each.number for each in visible[: held.size]]
    for each, old in zip(found, visible, strict=False):
        assert (each.receives, each.delivery, each.received_at) == (old.receives + 1, max(old.delivery + 1, NOW), NOW)
        assert judge(each, known, Mode.AT_LEAST_ONCE, NOW) == (Verdict.DELIVER, "")
    assert [claim.size for claim in readers.held("r")[1]] == ([held.size] if held.size else [])
    left = {each.number: each for each in store.queue(name).browse(100)}
    assert all(left[each.number] == each for each in before if each.number not in {each.number for each in found})
    store.drop(name)
    store.drop(dead.name)


def test_what_becomes_doubtful_meanwhile_is_not_claimed_at_once(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may change a message after the claim has looked at it, and before the claim locks it."""
    queue, database = broker.create("orders"), broker.store.database  # type: ignore[attr-defined]
    if isinstance(database, SqliteDatabase):
        return  # one process writes at a time
    queue.send_many([b"1", Draft(b"2", deadline=0), b"3"])
    rows = database.rows
    monkeypatch.setattr(database, "rows", lambda name, params: [] if name == "first_doubtful" else rows(name, params))
    assert queue.claim("spark", 1, 9).size == 2
    assert [message.body for message in queue.read("spark", 1)] == [b"1", b"3"]
    assert [message.body for message in queue.peek(9, state="queued")] == [b"2"]


@pytest.mark.parametrize("kept", [{}, {"history": 60, "deduplicate": True}])
def test_a_large_claim_is_changed_in_parts_of_statements(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any]
) -> None:
    for module in ("sql.claims", "dbserver.sleepers"):
        monkeypatch.setattr(f"penstock.stores.{module}.AT_ONCE", 3)
    clock = broker.clock
    assert isinstance(clock, FakeClock)
    queue = broker.create("orders", **kept)
    sent = [b"%d" % number for number in range(10)]
    queue.send_many(sent)
    assert queue.claim("spark", 1, 8, ttl=10).size == 8
    clock.advance(10)
    assert queue.stats().visible == 10
    assert [message.receives for message in queue.receive(10, visibility=0)] == [1] * 2 + [2] * 8
    clock.advance(1)
    assert queue.claim("spark", 1, 10, ttl=10).size == 10
    queue.confirm("spark", 1)
    clock.advance(100)
    assert queue.receive(10) == []
    claimed = queue.read("spark", 1)
    assert sorted(message.body for message in claimed) == sent
    assert queue.give_up("spark") == 10
    clock.advance(1)
    assert queue.claim("spark", 1, 10).size == 10
    assert {message.receives for message in queue.read("spark", 1)} == {3, 4}
    assert queue.settle("spark", 1) == 10
    assert (queue.stats().messages, queue.stats().settled) == (0, 10 if kept else 0)
    assert not any(again.duplicate for again in queue.send_many(sent))

"""A backup has everything that a store had at one instant, however busy that is, and a restored store is a whole one."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import penstock
from penstock import BadInput, Draft, Message, PenstockError, StoreCorrupt, StoreFull, StoreVersion, Unsupported
from penstock.broker import LocalBroker, open_local
from penstock.operations import backup, backups, folders, read_backup, restore
from penstock.operations.backups import CONTENTS, DATABASE, WHOLE, write_record
from penstock.stores.ids import number_of
from penstock.stores.sql import whole
from penstock.stores.sql.statements import parameters_of
from penstock.stores.sql.whole import JUMP
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.testing.faults import Fault, run_child, unsynced
from penstock.testing.power import need_mounts
from penstock.testing.servers import DatabaseServer
from penstock.testing.serving import until

EMBEDDED = ["sqlite", "vsqs", "spool"]
SERVERS = ["postgresql", "mariadb"]
ANYTHING = {"jobs", "dead", "grouped", "empty"}
MakeUrl = Callable[[], str]


@pytest.fixture(params=[*EMBEDDED, *SERVERS])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    """Gives the URLs of new stores."""
    if request.param in EMBEDDED:
        count = iter(range(99))
        return lambda: f"{request.param}:///{tmp_path}/{request.param}{next(count)}"
    server: DatabaseServer = request.getfixturevalue(request.param)
    return server.new_url


def fill(broker: penstock.Broker) -> list[Message]:
    """Messages in every state. Returns those that were received."""
    broker.create("empty")
    broker.create("dead", labels={"team": "ünicode"})
    jobs = broker.create("jobs", deduplicate=True, history=600, redrive=("dead", 2), retention=5000, visibility=600)
    jobs.send_many(
        [b"poison", Draft(b"typed", "text/plain", {"i": 1, "f": 0.5, "b": b"\0\xff", "t": "ü"}), Draft(b"k", key="k")]
    )
    jobs.send_many([b"%d" % number for number in range(20)])
    jobs.send(b"later", delay=300)
    for _ in range(3):  # the third time, it is buried
        poison = jobs.peek(1)[0].id
        for message in jobs.receive():
            if message.id == poison:
                message.release()
    held = jobs.receive(3, holder="worker")
    jobs.delete(held.pop(next(place for place, message in enumerate(held) if message.key is None)))
    jobs.claim("reader", 1, 2)
    jobs.confirm("reader", 1)
    jobs.claim("reader", 2, 1, ttl=5000)
    if broker.store.groups:
        grouped = broker.create("grouped", groups=True)
        grouped.send_many([Draft(b"%d" % number, group="a") for number in range(3)])
        held += grouped.receive(2, together=True, visibility=5000)
    return held


def look(broker: penstock.Broker, names: Iterable[str] | None = None) -> dict[str, Any]:
    """What does not change by a restore."""
    seen: dict[str, Any] = {}
    for queue in broker if names is None else map(broker.queue, names):
        messages = [*queue.scan(), *queue.scan(settled=True)]
        seen[queue.name] = (
            queue.settings,
            sorted((m.body, m.id, sorted(m.attributes.items()), m.content_type, m.group, m.key, m.death) for m in messages),
            sorted((m.body, m.receives, m.sent_at, m.expires_at, m.settled_at, m.reason) for m in messages),
            {
                reader: [(claim.epoch, claim.size, claim.confirmed) for claim in queue.readers()[reader]]
                for reader in queue.readers()
            },
            [
                m.body
                for reader in queue.readers()
                for claim in queue.readers()[reader]
                for m in queue.read(reader, claim.epoch)
            ],
        )
    return seen


def change(folder: Path, **fields: Any) -> None:
    """Change what a backup says of itself."""
    write_record(dataclasses.replace(read_backup(folder), **fields))


def test_a_restored_store_has_what_the_store_had(new_url: MakeUrl, tmp_path: Path) -> None:
    url, target = new_url(), new_url()
    with penstock.open(url) as broker:
        fill(broker)
        before = look(broker)
        (later,) = (message for message in broker["jobs"].peek(100) if message.body == b"later")
        made = backup(url, tmp_path / "backup")
        broker["jobs"].purge()
    assert set(made.queues) <= ANYTHING
    assert restore(tmp_path / "backup", target) == read_backup(tmp_path / "backup") == made
    with penstock.open(target) as broker:
        assert look(broker) == before
        jobs = broker["jobs"]
        assert jobs.send(b"5").duplicate
        assert jobs.send(b"other", key="k").duplicate
        assert not jobs.send(b"another").duplicate
        assert later.visible_at in [message.visible_at for message in jobs.peek(100) if message.body == b"later"]
        assert jobs.settle("reader", 1) == 2
        assert jobs.confirm("reader", 2).size == 1
        assert jobs.settled_epoch("reader") == 1


def test_no_receipt_from_before_is_valid_after_a_restore(new_url: MakeUrl, tmp_path: Path) -> None:
    url, target = new_url(), new_url()
    with penstock.open(url) as broker:
        held = fill(broker)
        plain = broker.create("plain")
        plain.send_many([b"1", b"2"])
        plain.claim("run", 1, 2)
        read = [*broker["jobs"].read("reader", 1), *plain.read("run", 1)]
        backup(url, tmp_path / "backup")
        late = broker["jobs"].receive(2)
    restore(tmp_path / "backup", target)
    with penstock.open(target) as broker:
        for message in (*held, *read, *late):
            queue = broker[message.queue]
            assert (queue.delete(message.receipt), queue.extend(message.receipt, 5), queue.release(message.receipt)) == (
                False,
            ) * 3
        for name in broker.queues().names:
            came = {message.id for message in broker[name].receive(100, together=True)}
            assert {message.id for message in held if message.queue == name} <= came  # at once: nobody holds them any more
        assert not any(message.holder == "worker" for message in broker["jobs"].peek(100))
        kept = [*broker["jobs"].read("reader", 1), *broker["plain"].read("run", 1)]
        assert [message.id for message in kept] == [message.id for message in read]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_restored_store_gives_no_number_a_second_time(kind: str, tmp_path: Path) -> None:
    url, target = f"{kind}:///{tmp_path}/from", f"{kind}:///{tmp_path}/to"
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        queue.send(b"first")
        backup(url, tmp_path / "backup")
        lost = {sent.id for sent in queue.send_many([b"%d" % number for number in range(500)])}
    restore(tmp_path / "backup", target)
    with penstock.open(target) as broker:
        again = [sent.id for sent in broker["jobs"].send_many([b"%d" % number for number in range(500)])]
        assert lost.isdisjoint(again)
    restore(tmp_path / "backup", target, over=True)
    with penstock.open(target) as broker:
        assert {*lost, *again}.isdisjoint(sent.id for sent in broker["jobs"].send_many([b"x"] * 500))


def test_numbers_are_left_out_for_each_hour_since_the_backup(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open(url) as broker:
        broker.create("jobs")
        backup(url, tmp_path / "backup")
    change(tmp_path / "backup", taken_at=read_backup(tmp_path / "backup").taken_at - 3 * 3600 * 1_000_000)
    restore(tmp_path / "backup", f"sqlite:///{tmp_path}/new.db")
    with penstock.open(f"sqlite:///{tmp_path}/new.db") as broker:
        number = number_of(broker["jobs"].send(b"x").id)
        assert number is not None
        assert 4 * JUMP < number < 5 * JUMP


@pytest.mark.parametrize("source", ["sqlite", *SERVERS])
@pytest.mark.parametrize("target", ["sqlite", *SERVERS])
def test_a_backup_of_an_sql_store_can_be_restored_into_any_other(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Though only SQLite keeps claims as runs, and lets them sleep."""

    def url_of(kind: str, name: str) -> str:
        return f"sqlite:///{tmp_path}/{name}" if kind == "sqlite" else request.getfixturevalue(kind).new_url()

    url, new = url_of(source, "from.db"), url_of(target, "to.db")
    with penstock.open(url) as broker:
        fill(broker)
        before = look(broker)
        plain = broker.create("plain")
        plain.send_many([b"%d" % number for number in range(9)])
        plain.claim("settled", 1, 2)
        plain.settle("settled", 1)
        plain.claim("run", 1, 2)
        plain.confirm("run", 1)
        plain.claim("sleeper", 1, 2, ttl=0.01)
        backup(url, tmp_path / "backup")
    restore(tmp_path / "backup", new)
    with penstock.open(new) as broker:
        assert look(broker, [*before]) == before
        plain = broker["plain"]
        assert [message.body for message in plain.read("run", 1)] == [b"2", b"3"]
        assert sorted(message.body for message in plain.receive(9)) == [b"4", b"5", b"6", b"7", b"8"]
        assert plain.settle("run", 1) == 2
        assert plain.stats().messages == 5
        broker.create("later").claim("reader", 1, 1)  # rows that the database numbers itself


def test_a_backup_of_a_busy_store_has_each_message_once(
    new_url: MakeUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are moved to and fro between two queues, settled into the history, and sent: a backup that looked at one place
    after the other would have some of them twice, or not at all."""
    monkeypatch.setattr(whole, "BODIES", 3)
    monkeypatch.setattr(folders, "TRIES", 1)
    url, count = new_url(), 40
    sent: list[bytes] = []
    stop = Event()
    failed: list[BaseException] = []
    with penstock.open(url) as broker:
        broker.create("a").send_many([b"%d" % number for number in range(count)])
        broker.create("b")
        broker.create("sent")
        broker.create("kept", history=600).send_many([b"%d" % number for number in range(500)])

    def work(step: Callable[[LocalBroker], object]) -> None:
        try:
            with open_local(url) as broker:
                while not stop.is_set():
                    step(broker)
        except BaseException as error:
            failed.append(error)

    def move(broker: LocalBroker) -> None:
        broker["a"].redrive(25, to="b")
        broker["b"].redrive(to="a")

    def send(broker: LocalBroker) -> None:
        body = b"%d" % len(sent)
        broker["sent"].send(body)
        sent.append(body)
        broker["kept"].delete_many(broker["kept"].receive(2))

    threads = [Thread(target=work, args=(step,)) for step in (move, send)]
    for thread in threads:
        thread.start()
    try:
        known = []
        for number in range(2):
            until(lambda wanted=5 * (number + 1): len(sent) >= wanted or failed)
            before = sent.copy()
            backup(url, tmp_path / str(number))
            known.append((before, sent.copy()))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    for number, (before, after) in enumerate(known):
        target = new_url()
        restore(tmp_path / str(number), target)
        with penstock.open(target) as broker:
            moved = Counter(message.body for name in "ab" for message in broker[name].receive(1000))
            assert moved == Counter(b"%d" % number for number in range(count))
            kept = [*broker["kept"].scan(), *broker["kept"].scan(settled=True)]
            assert sorted(int(message.body) for message in kept) == list(range(500))
            came = [message.body for message in broker["sent"].receive(10_000)]
            assert len(came) == len(set(came))
            assert set(before) <= set(came)
            assert len(came) <= len(after) + 1  # one more than its sender knows of


@pytest.mark.parametrize("kind", ["vsqs", "spool"])
def test_a_record_that_is_changed_while_a_backup_is_made_is_in_it_as_it_became(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{kind}:///{tmp_path}/store"
    look_ahead = folders.Copying.look_ahead
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        queue.send_many([b"1", b"2"])
        first, second = queue.receive(2)
        changes = iter([lambda: queue.extend(first, 5000), second.delete])

        def looking(copying: folders.Copying) -> int:
            found = look_ahead(copying)
            next(changes)()
            return found

        monkeypatch.setattr(folders, "is_recent", lambda _: False)
        monkeypatch.setattr(folders, "FEW", 1)
        monkeypatch.setattr(folders, "ROUNDS", 2)
        monkeypatch.setattr(folders.Copying, "look_ahead", looking)
        backup(url, tmp_path / "backup")
    record = Path(".penstock/jobs/held")
    (copy,) = (tmp_path / "backup/store" / record).iterdir()
    assert copy.read_bytes() == (tmp_path / "store" / record / copy.name).read_bytes()


def test_a_backup_has_every_column_of_the_schema(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/jobs.db") as broker:
        database: SqliteDatabase = broker.store.database  # type: ignore[attr-defined]
        for table in whole.TABLES:
            there = {name for _, name, *_ in database.connect().execute(f"PRAGMA table_info(penstock_{table})")}
            (load,) = (
                text for name, text in database.statements.items() if f"INTO penstock_{table} (" in text and "load_" in name
            )
            assert set(parameters_of(load)) == there


def test_staged_segments_and_what_was_published_are_in_a_backup(new_url: MakeUrl, tmp_path: Path) -> None:
    from penstock.publishing.segments import pack_drafts

    url, target = new_url(), new_url()
    with penstock.open(url) as broker:
        broker.create("jobs")
        for batch in (1, 2):
            broker.stage("writer", batch, f"s{batch}", pack_drafts("jobs", [Draft(b"%d" % batch)]))
        broker.publish("writer", 1, {"s1": 1})
        backup(url, tmp_path / "backup")
    restore(tmp_path / "backup", target)
    with penstock.open(target) as broker:
        assert broker.publish("writer", 1, {"s1": 1}) is None
        assert broker.publish("writer", 2, {"s2": 1}) == 1
        assert [message.body for message in broker["jobs"].receive(9)] == [b"1", b"2"]


def test_the_clock_of_a_restored_store_does_not_run_behind_the_backup(tmp_path: Path) -> None:
    for kind in EMBEDDED:
        url, new = f"{kind}:///{tmp_path}/{kind}", f"{kind}:///{tmp_path}/{kind}-new"
        with penstock.open(url) as broker:
            broker.create("jobs")
            backup(url, tmp_path / f"{kind}-backup")
        ahead = read_backup(tmp_path / f"{kind}-backup").taken_at + 3600 * 1_000_000
        change(tmp_path / f"{kind}-backup", taken_at=ahead)
        restore(tmp_path / f"{kind}-backup", new)
        with penstock.open(new) as broker:
            assert broker.clock() >= ahead


def test_a_store_that_has_queues_is_replaced_only_if_that_is_asked_for(new_url: MakeUrl, tmp_path: Path) -> None:
    url, target = new_url(), new_url()
    for each, name in ((url, "jobs"), (target, "others")):
        with penstock.open(each) as broker:
            broker.create(name).send(name.encode())
    backup(url, tmp_path / "backup")
    with pytest.raises(BadInput, match=r"has queues already \('others'\)"):
        restore(tmp_path / "backup", target)
    with penstock.open(target) as broker:
        assert [message.body for message in broker["others"].peek()] == [b"others"]
    restore(tmp_path / "backup", target, over=True)
    with penstock.open(target) as broker:
        assert broker.queues().names == ["jobs"]
        assert [message.body for message in broker["jobs"].peek()] == [b"jobs"]
    kept = list(tmp_path.glob("*.until-*"))
    if kept:  # a folder that was replaced
        with penstock.open(f"{target.partition(':')[0]}:///{kept[0]}") as broker:
            assert [message.body for message in broker["others"].peek()] == [b"others"]


def test_a_store_without_queues_is_an_empty_place(new_url: MakeUrl, tmp_path: Path) -> None:
    url, target = new_url(), new_url()
    with penstock.open(url) as broker:
        broker.create("jobs").send(b"x")
    penstock.open(target).close()
    backup(url, tmp_path / "backup")
    restore(tmp_path / "backup", target)
    with penstock.open(target) as broker:
        assert broker["jobs"].stats().messages == 1


def test_a_process_that_has_the_replaced_file_open_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        queue.send(b"old")
        backup(url, tmp_path / "backup")
        queue.receive()[0].delete()
        queue.send_many([b"new"] * 100)
        restore(tmp_path / "backup", url, over=True)
        assert [message.body for message in queue.receive(9)] == [b"old"]
        queue.send(b"next")
        assert [message.body for message in queue.receive(9)] == [b"next"]


# what is no whole backup


@pytest.fixture
def made(tmp_path: Path) -> Path:
    with penstock.open(f"sqlite:///{tmp_path}/jobs.db") as broker:
        broker.create("jobs").send_many([b"x" * 1000] * 20)
    backup(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "backup")
    return tmp_path / "backup"


def refused(made: Path, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        restore(made, f"sqlite:///{made.parent}/new.db")
    assert not list(made.parent.glob("new.db*~"))
    assert not (made.parent / "new.db").exists()


def test_a_backup_that_was_not_finished_is_refused(made: Path) -> None:
    (made / WHOLE).unlink()
    refused(made, BadInput, "no backup, or one that was not finished")
    with pytest.raises(BadInput, match="a backup that was not finished is in it"):
        backup(f"sqlite:///{made.parent}/jobs.db", made)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (DATABASE, b"xxx", b"xyx", "its checksum differs"),
        (CONTENTS, b'"size": 1', b'"size": 2', f"{CONTENTS} is damaged"),
        (WHOLE, b'"penstock": "0', b'"penstock": "1', f"{WHOLE} is damaged"),
        (WHOLE, b"{", b"[", f"{WHOLE} is damaged"),
    ],
)
def test_a_damaged_backup_is_refused(made: Path, name: str, old: bytes, new: bytes, words: str) -> None:
    place = made / name
    content = place.read_bytes()
    place.write_bytes(content.replace(old, new, 1))
    assert place.read_bytes() != content
    refused(made, StoreCorrupt, words)
    place.unlink()
    with pytest.raises(PenstockError):
        restore(made, f"sqlite:///{made.parent}/new.db")


def test_a_backup_of_a_newer_penstock_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "FORMAT", 99)
    change(made)
    monkeypatch.undo()
    refused(made, StoreVersion, "made by a newer Penstock")


def test_a_path_that_leads_out_of_a_backup_is_refused(made: Path) -> None:
    contents = made / CONTENTS
    line = contents.read_text().replace(DATABASE, "../jobs.db")
    contents.write_text(line)
    change(made, contents=hashlib.sha256(line.encode()).hexdigest())
    refused(made, StoreCorrupt, "outside of the backup")


def test_a_log_that_is_left_over_does_not_become_part_of_the_new_file(made: Path) -> None:
    (made.parent / "new.db-wal").write_bytes(b"left")
    refused(made, BadInput, "is left over from another queue file")


def test_files_and_rows_cannot_become_each_other(made: Path) -> None:
    with pytest.raises(Unsupported, match="export and import queues"):
        restore(made, f"vsqs:///{made.parent}/new")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory:", "ends with its process"),
        ("memcached://localhost/x", "export its queues instead"),
        ("http://localhost:1", "do it where its store is"),
        ("other://x", "its own means"),
    ],
)
def test_stores_that_cannot_be_backed_up_say_what_to_do_instead(url: str, words: str, tmp_path: Path) -> None:
    for act in (lambda: backup(url, tmp_path / "backup"), lambda: restore(tmp_path, url)):
        with pytest.raises(Unsupported, match=words):
            act()
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_store_that_does_not_exist_is_not_created_by_its_backup(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no store at"):
        backup(f"{kind}:///{tmp_path}/typo", tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []


def test_a_backup_is_for_its_owner_alone(made: Path) -> None:
    assert made.stat().st_mode & 0o777 == 0o700
    assert (made / DATABASE).stat().st_mode & 0o777 == 0o600
    restore(made, f"sqlite:///{made.parent}/new.db")
    assert (made.parent / "new.db").stat().st_mode & 0o777 == 0o600


# killed, or without room, in the middle


def plain(url: str) -> list[bytes] | None:
    """All messages of a store; None if there is no store."""
    kind, _, path = url.partition(":///")
    if not (Path(path).is_file() if kind == "sqlite" else Path(path).is_dir()):
        return None
    with penstock.open(url) as broker:
        return sorted(message.body for queue in broker for message in queue.scan())


def sample(faults: list[Fault], most: int) -> list[Fault]:
    return faults[:: max(1, len(faults) // most)]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_backup_killed_at_any_call_is_whole_or_refused(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:///{tmp_path}/store"
    with unsynced(), penstock.open(url) as broker:
        fill(broker)
    with unsynced():
        everything = plain(url)

        def work(target: Path) -> Callable[[Callable[[str], None]], None]:
            def act(tell: Callable[[str], None]) -> None:
                try:
                    backup(url, target)
                except PenstockError as error:
                    tell(type(error).__name__)

            return act

        counted = run_child(work(tmp_path / "first"))
        faults = sample(counted.faults(), 12) + sample(counted.faults("ENOSPC", "EIO"), 8)
        for number, fault in enumerate(faults):
            target, new = tmp_path / f"backup{number}", f"{kind}:///{tmp_path}/new{number}"
            told = run_child(work(target), fault).told
            assert plain(url) == everything, fault
            if (target / WHOLE).exists():
                restore(target, new)
                assert plain(new) == everything, fault
            else:
                with pytest.raises(BadInput, match="not finished"):
                    restore(target, new)
                assert plain(new) is None
            if told:
                assert not (target / WHOLE).exists(), fault


@pytest.mark.parametrize(("kind", "over"), [("sqlite", False), ("sqlite", True), ("vsqs", True), ("spool", False)])
def test_a_restore_killed_at_any_call_has_replaced_all_or_nothing(kind: str, over: bool, tmp_path: Path) -> None:
    url, old = f"{kind}:///{tmp_path}/store", f"{kind}:///{tmp_path}/old"
    with unsynced():
        with penstock.open(url) as broker:
            fill(broker)
        with penstock.open(old) as broker:
            broker.create("before").send(b"before")
        backup(url, tmp_path / "backup")
        everything = plain(url)

        def work(new: str) -> Callable[[Callable[[str], None]], None]:
            def act(tell: Callable[[str], None]) -> None:
                try:
                    restore(tmp_path / "backup", new, over=over)
                except PenstockError as error:
                    tell(type(error).__name__)

            return act

        def place(name: str) -> str:
            if over:
                for path in tmp_path.glob("old*"):
                    new = tmp_path / path.name.replace("old", name, 1)
                    (shutil.copytree if path.is_dir() else shutil.copy)(path, new)
            return f"{kind}:///{tmp_path}/{name}"

        counted = run_child(work(place("first")))
        for number, fault in enumerate(sample(counted.faults(), 12) + sample(counted.faults("ENOSPC"), 4)):
            new = place(f"new{number}")
            run_child(work(new), fault)
            assert plain(new) in ([b"before"] if over else None, everything, None), fault
            if plain(new) is None and over:  # between the two names of a folder
                assert list(tmp_path.glob(f"new{number}.until-*")), fault
            restore(tmp_path / "backup", new, over=True)
            assert plain(new) == everything, fault


@pytest.mark.parametrize("kind", SERVERS)
def test_a_restore_killed_in_its_transaction_has_changed_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(kind).new_url()
    with penstock.open(url) as broker:
        broker.create("jobs").send(b"x")
        backup(url, tmp_path / "backup")
        broker.create("others")
    stopping = (
        "import sys, time\nfrom penstock.operations import restoring\n"
        "def stop(*_):\n    print('loaded', flush=True)\n    time.sleep(60)\n"
        "restoring.make_own = stop\nrestoring.restore(*sys.argv[1:], over=True)"
    )
    with subprocess.Popen([sys.executable, "-c", stopping, tmp_path / "backup", url], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"loaded\n"
        child.send_signal(signal.SIGKILL)
    with penstock.open(url) as broker:
        assert broker.queues().names == ["jobs", "others"]
    restore(tmp_path / "backup", url, over=True)
    with penstock.open(url) as broker:
        assert broker.queues().names == ["jobs"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    need_mounts()
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_full_disk_leaves_no_half_of_a_backup_or_of_a_restore(kind: str, small_disk: Path, tmp_path: Path) -> None:
    url = f"{kind}:///{tmp_path}/store"
    with penstock.open(url) as broker:
        broker.create("jobs").send_many([bytes(100_000)] * 20)
    with pytest.raises(StoreFull):
        backup(url, small_disk / "backup")
    backup(url, tmp_path / "backup")
    with pytest.raises(StoreFull):
        restore(tmp_path / "backup", f"{kind}:///{small_disk}/new")
    assert [path.name for path in small_disk.iterdir() if not path.name.endswith("-clock")] == []
    with penstock.open(url) as broker:
        assert broker["jobs"].stats().messages == 20

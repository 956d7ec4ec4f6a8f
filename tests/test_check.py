"""A check finds what is wrong with a store, and nothing else; a repair loses no message; a vacuum gives space back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw
import pytest

import penstock
from penstock import BadInput, Draft, StoreError, Unsupported
from penstock.broker import LocalBroker, open_local
from penstock.cli import main
from penstock.message import FOREVER
from penstock.operations import Problem, check, vacuum, vacuuming
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.testing.faults import run_child, unsynced
from penstock.testing.servers import DatabaseServer, MemcachedServer

EMBEDDED = ["sqlite", "vsqs", "spool"]
ROWS = ["sqlite", "postgresql", "mariadb"]
YEARS = 2**31 * 1_000_000


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind in EMBEDDED:
        return f"{kind}:///{tmp_path}/store"
    url: str = "memory:" if kind == "memory" else request.getfixturevalue(kind).new_url()
    return url


def run(broker: penstock.Broker, text: str) -> None:
    database: Any = broker.store.database  # type: ignore[attr-defined]
    if isinstance(database, SqliteDatabase):
        database.connect().execute(text)
    else:
        database.side.do(lambda side: database.driver.ask(side, text))


def fill(broker: penstock.Broker) -> None:
    """Messages in all states, and nothing wrong."""
    broker.create("dead")
    jobs = broker.create("jobs", deduplicate=True, history=600, redrive=("dead", 2))
    jobs.send_many([Draft(b"%d" % number, attributes={"n": number}) for number in range(20)])
    jobs.send(b"later", delay=2**31 - 1)
    jobs.receive(2)[0].delete()
    jobs.receive(visibility=0)
    jobs.receive(mode="at_most_once")
    jobs.claim("reader", 1, 3)
    jobs.confirm("reader", 1)
    jobs.claim("reader", 2, 1)
    plain = broker.create("plain")
    plain.send_many([b"%d" % number for number in range(9)])
    for epoch in (1, 2, 3):
        plain.claim("runner", epoch, 2)
    plain.settle("runner", 1)
    plain.confirm("runner", 2)
    if broker.store.groups:
        grouped = broker.create("grouped", groups=True)
        grouped.send_many([Draft(b"%d" % number, group=f"g{number % 2}") for number in range(6)])
        grouped.receive(2, together=True)


def whats(found: list[Problem]) -> list[str]:
    return sorted(f"{problem.queue}: {problem.what}" for problem in found)


@pytest.mark.parametrize("kind", [*EMBEDDED, "postgresql", "mariadb", "memcached"])
def test_nothing_is_wrong_with_a_store_in_use(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = url_of(kind, request, tmp_path)
    stop = Event()
    failed: list[BaseException] = []
    with penstock.open(url) as broker:
        fill(broker)
        broker.create("busy", deduplicate=True, groups=broker.store.groups, history=60)

    def work() -> None:
        try:
            with penstock.open(url) as broker:
                queue, number = broker["busy"], 0
                while not stop.is_set():
                    number += 1
                    queue.send_many([Draft(b"%d %d" % (number, each), group=f"{each % 2}") for each in range(4)])
                    for message in queue.receive(3, together=True):
                        queue.delete(message) if number % 2 else queue.release(message)
                    queue.claim("reader", number, 2)
                    queue.confirm("reader", number)
                    queue.settle("reader", number)
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=work)
    thread.start()
    try:
        for repair in (False, True, False):
            assert check(url, repair=repair) == []
    finally:
        stop.set()
        thread.join()
    assert not failed


@pytest.mark.parametrize("kind", ROWS)
def test_what_is_wrong_with_rows_is_found_and_put_right_without_losing_a_message(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    with penstock.open(url) as broker:
        queues = {name: broker.create(name, groups=name == "grouped") for name in ("a", "b", "c", "grouped", "old")}
        queues["c"].update(deduplicate=True)
        queues["grouped"].send_many([Draft(b"%d" % number, group="g") for number in range(3)])
        for name in ("a", "b", "c", "old"):
            queues[name].send_many([b"1", b"2", b"3"])
        queues["b"].claim("reader", 7, 1)
        queues["b"].confirm("reader", 7)
        queues["b"].delete(queues["b"].read("reader", 7)[0].id)
        known: Any = broker.store.database  # type: ignore[attr-defined]
        number = {name: known.find(name).number for name in queues}
        first = {name: queue.peek(9)[0].number for name, queue in queues.items()}
        assert check(url) == [
            Problem(
                "b",
                "the claim 7 of reader 'reader' has no message any more",
                "its reader settles it; if that is gone: penstock readers b --give-up reader",
            )
        ]
        for change in (
            f"UPDATE penstock_message SET checksum = checksum + 1 WHERE number = {first['a']}",
            f"UPDATE penstock_message SET visible_at = {FOREVER}, state = 1 WHERE number = {first['a'] + 1}",
            f"UPDATE penstock_message SET visible_at = visible_at + {2 * YEARS} WHERE number = {first['a'] + 2}",
            f"UPDATE penstock_message SET visible_at = -visible_at WHERE number = {first['b']}",
            f"UPDATE penstock_message SET visible_at = -visible_at WHERE queue = {number['grouped']} AND visible_at > 0",
            f"UPDATE penstock_message SET queue = 77 WHERE queue = {number['old']}",
            f"UPDATE penstock_mark SET number = number + 1000 WHERE queue = {number['c']} AND number = {first['c']}",
            "INSERT INTO penstock_held (claim, place, message, delivery) VALUES (4711, 0, 1, 1)",
        ):
            run(broker, change)
        before = known.rows("span", {"queue": number["a"]}), known.rows("span", {"queue": 77})
    expected = [
        "None: 1 marks of messages that are gone",
        "None: 1 messages are listed for claims that are gone",
        "None: 3 messages are in a queue that does not exist",
        "a: 1 messages are damaged, their checksums differ: ",
        "a: 2 messages are hidden for ever, and no claim has them",
        "b: 1 messages are blocked, though they have no group",
        "b: the claim 7 of reader 'reader' has no message any more",
        "grouped: 1 groups are blocked, and nobody is ahead of them: g",
    ]
    for repair in (False, False, True):
        found = check(url, repair=repair)
        assert [what.partition("differ: ")[0] for what in whats(found)] == [what.partition("differ: ")[0] for what in expected]
        assert [problem.queue for problem in found if not problem.repaired and repair] == (["b"] if repair else [])
    with penstock.open(url) as broker:
        known = broker.store.database  # type: ignore[attr-defined]
        assert (known.rows("span", {"queue": number["a"]}), known.rows("span", {"queue": 77})) == before
        assert sorted(message.body for message in broker["recovered-77"].receive(9)) == [b"1", b"2", b"3"]
        assert [message.body for message in broker["grouped"].receive(9)] == [b"0"]
        assert len(broker["b"].receive(9)) == 2
        assert len(broker["a"].receive(9)) == 2
        assert not broker["c"].send(b"1").duplicate
        broker["b"].settle("reader", 7)
    assert [problem.what.partition(":")[0] for problem in check(url)] == ["1 damaged messages are set aside"]
    with penstock.open(url) as broker:
        (aside,) = broker["a"].peek(9, state="damaged")
        broker["a"].delete(aside.id)
    assert check(url) == []


def test_a_message_that_is_damaged_in_the_hands_of_a_receiver_stays_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        queue.send(b"1")
        (message,) = queue.receive()
        run(broker, "UPDATE penstock_message SET checksum = checksum + 1")
        (problem,) = check(url, repair=True)
        assert (problem.repaired, "receivers hold the others" in problem.remedy) == (False, True)
        assert message.delete()


def test_an_index_of_sqlite_that_lacks_a_message_is_built_again(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/store", str(tmp_path / "store")
    with penstock.open(url) as broker:
        broker.create("jobs").send(b"1")
    where = "WHERE name = 'penstock_ready'"
    connection = apsw.Connection(path)
    connection.execute("PRAGMA writable_schema = ON")
    (row,) = connection.execute(f"SELECT * FROM sqlite_schema {where}").fetchall()
    connection.execute(f"DELETE FROM sqlite_schema {where}")
    connection.close()
    with penstock.open(url) as broker:  # whose inserts do not find the index
        broker["jobs"].send(b"2")
    connection = apsw.Connection(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", row)
    connection.close()
    with penstock.open(url) as broker:
        assert len(broker["jobs"].peek(9)) < 2
    for repair in (False, True):
        (problem,) = check(url, repair=repair)
        assert problem.what.startswith("SQLite finds indexes damaged: ")
        assert problem.repaired is repair
    assert check(url) == []
    with penstock.open(url) as broker:
        assert [message.body for message in broker["jobs"].receive(9)] == [b"1", b"2"]


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.7, 0.9])
def test_a_page_of_sqlite_that_is_damaged_is_told_and_nothing_is_changed(tmp_path: Path, place: float) -> None:
    path = tmp_path / "store"
    with penstock.open(f"sqlite:///{path}") as broker:
        broker.create("jobs").send_many([Draft(b"x" * 100, key=f"{number}") for number in range(500)])
    content = bytearray(path.read_bytes())
    start = int(len(content) * place) // 4096 * 4096
    content[start + 2 : start + 40] = b"\xa5" * 38
    path.write_bytes(content)
    found = check(f"sqlite:///{path}", repair=True)
    assert found
    assert not found[0].repaired
    assert "damaged" in found[0].what
    assert "restore a backup" in found[0].remedy
    assert path.read_bytes()[4096:] == bytes(content)[4096:]  # opening a file counts in its first page


# files


@pytest.fixture(params=["vsqs", "spool"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store of files, for which a minute is long ago."""
    monkeypatch.setattr("penstock.file_times.ORPHANED", -1)
    return f"{request.param}:///{tmp_path}/store"


def message_path(url: str, id: str) -> Path:
    kind, _, root = url.partition(":///")
    return Path(root, "jobs" if kind == "vsqs" else "queues/jobs", id)


def test_damaged_records_are_set_aside_and_told_until_somebody_has_looked(files: str) -> None:
    sidecar = Path(files.partition(":///")[2], ".penstock/jobs")
    with penstock.open(files) as broker:
        queue = broker.create("jobs", deduplicate=True)
        queue.send_many([b"1", b"2"])
        queue.receive()
    for kind in ("mark", "held"):
        next((sidecar / kind).iterdir()).write_bytes(b"nonsense")
    found = check(files)
    assert sum("is damaged; it was set aside" in problem.what for problem in found) == 2
    (told,) = check(files)
    assert told.what == f"2 damaged files were set aside in {sidecar / 'damaged'}"
    assert not told.repaired
    shutil.rmtree(sidecar / "damaged")
    assert check(files) == []


def test_a_damaged_head_is_a_damaged_message(files: str) -> None:
    sidecar = Path(files.partition(":///")[2], ".penstock/jobs")
    with penstock.open(files) as broker:
        broker.create("jobs").send_many([Draft(b"1", attributes={"a": 1}), b"2"])
    next((sidecar / "head").iterdir()).write_bytes(b"nonsense")
    for repair, remedy in ((False, "--repair sets them aside"), (True, "")):
        problem = next(problem for problem in check(files, repair=repair) if "checksums differ" in problem.what)
        assert problem.remedy.startswith(remedy)
        assert problem.repaired is repair
    (problem,) = check(files)
    assert problem.what.startswith("1 damaged messages are set aside")


def test_files_that_nobody_can_deliver_are_told_and_left_alone(files: str) -> None:
    with penstock.open(files) as broker:
        broker.create("jobs").send(b"1")
    stranger = message_path(files, "not a number ü\n")
    stranger.write_bytes(b"x")
    for repair in (False, True):
        (problem,) = check(files, repair=repair)
        assert problem.what.startswith("1 files are no messages, and nobody can deliver them")
        assert stranger.read_bytes() == b"x"


def test_files_that_are_hidden_for_ever_are_shown(files: str) -> None:
    with penstock.open(files) as broker:
        queue = broker.create("jobs")
        queue.send_many([b"1", b"2"])
        queue.claim("reader", 1, 1)
        queue.confirm("reader", 1)
    for place in Path(files.partition(":///")[2], ".penstock/jobs/reader").glob("*/1"):
        place.unlink()
    for repair in (False, True):
        (problem,) = check(files, repair=repair)
        assert problem.what.startswith("1 messages are hidden for ever, and no claim has them")
    assert check(files) == []
    with penstock.open(files) as broker:
        assert len(broker["jobs"].receive(9)) == 2


def test_what_is_left_of_messages_that_are_gone_is_removed(files: str) -> None:
    sidecar = Path(files.partition(":///")[2], ".penstock/jobs")
    with penstock.open(files) as broker:
        queue = broker.create("jobs", deduplicate=True)
        gone, _ = queue.send_many([Draft(b"1", attributes={"a": 1}), b"2"])
    message_path(files, gone.id).unlink()
    assert {path.name for path in (sidecar / "head").iterdir()} >= {gone.id}
    for repair in (False, True):
        (problem,) = check(files, repair=repair)
        assert problem.what == "2 marks, records and drafts are left of messages that are gone"
    assert check(files) == []
    assert len(list((sidecar / "mark").iterdir())) == 1


def test_a_claim_of_files_without_messages_is_told(files: str) -> None:
    with penstock.open(files) as broker:
        queue = broker.create("jobs")
        queue.send_many([b"1", b"2"])
        queue.claim("reader", 1, 1)
        queue.confirm("reader", 1)
        queue.delete(queue.read("reader", 1)[0].id)
    (problem,) = check(files, repair=True)
    assert problem.what == "the claim 1 of reader 'reader' has no message any more"


def test_what_memcached_has_thrown_away_is_told(memcached: MemcachedServer) -> None:
    url = memcached.new_url()
    with open_local(url) as broker:
        queue = broker.create("jobs")
        queue.send_many([b"1", b"2"])
        keys = broker.store._catalogue.get("jobs").keys  # type: ignore[attr-defined]
        keys.link.forget([keys.key("m", 1)])
        assert [message.body for message in queue.receive(9)] == [b"2"]
    (problem,) = check(url)
    assert problem.what == "the server has thrown away 1 messages"


def test_a_store_in_memory_has_nothing_to_check_and_a_service_is_checked_where_its_store_is(tmp_path: Path) -> None:
    assert check("memory:") == []
    for act in (check, vacuum):
        with pytest.raises(Unsupported, match="do it where its store is"):
            act("http://localhost:1")
        with pytest.raises(BadInput, match="there is no store"):
            act(f"sqlite:///{tmp_path}/typo")
    for url in ("memory:", "memcached://localhost/x"):
        with pytest.raises(Unsupported):
            vacuum(url)


# vacuum


def grow(broker: LocalBroker, count: int = 3000) -> None:
    queue = broker.create("jobs", exist_ok=True)
    queue.send(b"kept")
    backlog = queue.send_many([os.urandom(1000) for _ in range(count)])
    queue.delete_many([sent.id for sent in backlog])


def test_a_vacuum_gives_back_what_a_backlog_took_while_others_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = f"sqlite:///{tmp_path}/store", tmp_path / "store"
    monkeypatch.setattr("penstock.stores.sqlite.database.RECLAIM_PAGES", 10**9)  # what is given back is given back here
    monkeypatch.setattr(vacuuming, "SLICE", 50)
    with open_local(url) as broker:
        grow(broker)
        broker.store.close()
    big = path.stat().st_size
    with open_local(url) as other:
        slices = []
        give_back = SqliteDatabase.give_back

        def sending(database: SqliteDatabase, pages: int) -> bool:
            other["jobs"].send(b"between")
            slices.append(pages)
            return give_back(database, pages)

        monkeypatch.setattr(SqliteDatabase, "give_back", sending)
        done = vacuum(url)
        assert len(slices) > 10
        assert other["jobs"].stats().messages == 1 + len(slices)
    assert done.kept == 0
    assert path.stat().st_size < big / 5
    assert done.freed is not None
    assert done.freed > big / 2


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_vacuum_shrinks_the_tables_of_a_server(kind: str, request: pytest.FixtureRequest) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    url = server.new_url()

    def size() -> int:
        if kind == "mariadb":
            return (server.folder / "data" / url.rpartition("/")[2] / "penstock_message.ibd").stat().st_size
        with open_local(url) as broker:
            return vacuuming._ask(broker, "SELECT pg_relation_size('penstock_message')")

    with open_local(url) as broker:
        grow(broker)
    big = size()
    done = vacuum(url)
    assert size() < big / 2
    assert done.freed is None if kind == "mariadb" else done.freed
    with penstock.open(url) as broker:
        assert [message.body for message in broker["jobs"].receive()] == [b"kept"]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_vacuum_removes_old_history_and_what_was_removed_from_a_spool(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:///{tmp_path}/store"
    with penstock.open(url) as broker:
        queue = broker.create("jobs", history=0.001)
        queue.send_many([b"x"] * 300)
        queue.delete_many(queue.receive(250))
    removed = tmp_path / "store/remove/jobs:1"
    if kind == "spool":
        removed.write_bytes(b"removed by another program")
    vacuum(url)
    assert not removed.exists()
    with penstock.open(url) as broker:
        assert broker["jobs"].stats().settled == 0


def test_a_vacuum_that_is_killed_at_any_call_loses_nothing(tmp_path: Path) -> None:
    with unsynced():
        with open_local(f"sqlite:///{tmp_path}/store") as broker:
            grow(broker, 300)

        def copy(name: str) -> str:
            for path in tmp_path.glob("store*"):
                if path.is_file():
                    shutil.copy(path, tmp_path / path.name.replace("store", name, 1))
            return f"sqlite:///{tmp_path}/{name}"

        def work(url: str) -> Callable[[Callable[[str], None]], None]:
            def act(tell: Callable[[str], None]) -> None:
                try:
                    vacuum(url)
                except StoreError as error:
                    tell(str(error))

            return act

        counted = run_child(work(copy("first")))
        faults = counted.faults() + counted.faults("EIO", "ENOSPC")
        for number, fault in enumerate(faults[:: max(1, len(faults) // 20)]):
            url = copy(f"copy{number}")
            run_child(work(url), fault)
            assert check(url) == [], fault
            with penstock.open(url) as broker:
                assert [message.body for message in broker["jobs"].peek(9)] == [b"kept"], fault


def test_the_command_line_tells_what_is_wrong_and_its_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/store"
    with penstock.open(url) as broker:
        broker.create("jobs").send(b"1")
    assert main(["--store", url, "check"]) == 0
    with penstock.open(url) as broker:
        run(broker, "UPDATE penstock_message SET visible_at = 1 << 62, state = 1")
    assert main(["--store", url, "check"]) == 1
    told = capsys.readouterr()
    assert told.out.startswith(
        "queue 'jobs': 1 messages are hidden for ever, and no claim has them; --repair makes them visible\n"
    )
    assert told.err == "penstock: nothing is wrong\npenstock: 0 of 1 problems repaired\n"
    assert main(["--store", url, "--json", "check"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)
    assert (problem["queue"], problem["repaired"]) == ("jobs", False)
    assert main(["--store", url, "check", "--repair"]) == 0
    assert main(["--store", url, "check"]) == 0

"""A queue as JSON lines: what is exported can be imported, once, and a bad line is named."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadInput, BadMessage, Draft, OutcomeUnknown
from penstock.cli import main
from penstock.documents import to_document, to_draft
from penstock.message import SECOND
from penstock.operations import export_lines, import_lines, lines
from penstock.operations.lines import read_lines
from penstock.server import BackgroundServer
from penstock.testing import FakeClock
from penstock.testing.power import need_mounts
from penstock.testing.serving import until

EVERYTHING = [
    Draft("größe".encode(), "text/plain"),
    Draft(bytes(range(256)), attributes={"text": "ü", "whole": 2**100, "real": 0.5, "raw": b"\0\xff"}),
    Draft(b"", key="text key", group="g", visibility=90),
    Draft(b"x", key=b"\xff\0", deadline=3600.5),
    Draft(b'{"json": [1, 2]}', delay=500),
]


@pytest.fixture(params=["memory", "sqlite", "vsqs", "http"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Broker]:
    with ExitStack() as stack:
        url = f"{request.param}:///{tmp_path}/store" if request.param in ("sqlite", "vsqs") else "memory:"
        local = stack.enter_context(penstock.open(url))
        if request.param == "http":
            server = stack.enter_context(BackgroundServer(local))  # type: ignore[arg-type]
            yield stack.enter_context(penstock.open(server.url))
        else:
            yield local


def export(queue: penstock.Queue) -> list[bytes]:
    return [line.encode() + b"\n" for _, line in export_lines(queue) if line is not None]


def told(message: penstock.Message) -> tuple[Any, ...]:
    return message.body, message.content_type, dict(message.attributes), message.group, message.key, message.visibility


def test_an_imported_message_is_the_one_that_was_exported(broker: penstock.Broker) -> None:
    first, second = broker.create("first"), broker.create("second")
    first.send_many(EVERYTHING)
    exported = export(first)
    assert import_lines(second, [*exported, b"\n", b"  \n"]) == (5, 2)
    was, now = first.scan(), second.scan()
    assert list(map(told, now)) == list(map(told, was))
    assert now[3].deadline_at == was[3].deadline_at
    assert abs(now[4].visible_at - was[4].visible_at) < 5 * SECOND  # as late as the old one
    assert second.stats().delayed == 1


def test_messages_in_every_state_are_exported_with_what_became_of_them(broker: penstock.Broker) -> None:
    broker.create("dead")
    queue = broker.create("jobs", redrive=("dead", 1), visibility=600)
    queue.send_many([b"1", b"2", b"3"])
    queue.receive()[0].release()
    queue.receive(3, holder="worker")
    documents = [json.loads(line) for line in (*export(queue), *export(broker["dead"]))]
    assert sorted(document["body"] for document in documents) == ["1", "2", "3"]
    states = {document["body"]: (document["state"], document["receives"], document.get("holder")) for document in documents}
    assert set(states.values()) == {("consumed", 1, "worker"), ("queued", 0, None)}
    (letter,) = (document for document in documents if "death" in document)
    assert letter["death"] | {"died_at": 0} == {"queue": "jobs", "reason": "max_receives", "receives": 1, "died_at": 0}
    copy = broker.create("copy")
    import_lines(copy, (json.dumps(document).encode() for document in documents))
    assert copy.stats().visible == 3  # nobody holds them there


def test_an_interrupted_import_that_is_made_again_doubles_nothing(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BATCH", 3)
    queue = broker.create("jobs")
    given = [json.dumps({"body": str(number)}).encode() for number in range(10)]
    send = queue.send_once

    def failing(calls: Iterator[str]) -> Callable[..., None]:
        def act(*arguments: Any, **named: Any) -> None:
            match next(calls):
                case "lost":
                    send(*arguments, **named)
                    raise OutcomeUnknown("the answer was lost")
                case "down":
                    raise KeyboardInterrupt
            send(*arguments, **named)

        return act

    for outcome in ("lost", "down", "ok lost", "ok ok down", "ok ok ok lost", "ok ok ok ok"):
        monkeypatch.setattr(queue, "send_once", failing(iter(outcome.split())))
        if outcome != "ok ok ok ok":
            with pytest.raises((OutcomeUnknown, KeyboardInterrupt)):
                import_lines(queue, given)
        else:
            assert import_lines(queue, given).messages == 10
    assert sorted(message.body for message in queue.scan()) == [b"%d" % number for number in range(10)]


def test_lines_are_imported_again_by_another_token_and_after_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(lines, "BATCH", 2)
    with penstock.open("memory:", clock=clock) as broker:
        queue = broker.create("jobs", retention=10**7)
        given = [b'{"body": "1"}'] * 4
        for how, after, count in (({}, 86399, 4), ({}, 2, 4), ({}, 0, 8), ({"token": "b"}, 0, 12), ({"token": "b"}, 0, 12)):
            import_lines(queue, given, **how)
            assert queue.stats().messages == count
            clock.advance(after)
        import_lines(queue, given, token="c", remember=60)
        clock.advance(61)
        import_lines(queue, given, token="c", remember=60)
        assert queue.stats().messages == 20


def test_lines_that_were_imported_before_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BATCH", 2)
    given = [b'{"body": "%d"}' % number for number in range(5)]
    with penstock.open("memory:") as broker:
        queue = broker.create("jobs")
        with pytest.raises(BadInput, match="skip 3 ends within a batch of lines: skip 2, or 4"):
            import_lines(queue, given, skip=3)
        assert queue.stats().messages == 0
        import_lines(queue, given, skip=2)
        assert [message.body for message in queue.peek(9)] == [b"2", b"3", b"4"]
        for skip in (-1, True, "2"):
            with pytest.raises(BadInput):
                import_lines(queue, given, skip=skip)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "is no JSON"),
        (b'{"body": "x"', "is no JSON: .* at character 13"),
        (b"\xff", "line 4"),
        (b"[" * 100_000, "line 4"),
        (b"17", "must be an object"),
        (b"{}", "neither body nor body_base64"),
        (b'{"body": 17}', "body must be text, not int: 17"),
        (b'{"body": "\\ud800"}', "cannot be written in UTF-8"),
        (b'{"body_base64": "%"}', "body_base64 is not base64: '%'"),
        (b'{"body": "x", "body_base64": "AA=="}', "give one of them"),
        (b'{"body": "x", "atributes": {}}', "a message has no 'atributes'"),
        (b'{"body": "x", "attributes": {"a": [1]}}', "attribute 'a' must be text"),
        (b'{"body": "x", "attributes": {"a": {"hex": "00"}}}', "attribute 'a' must be text, a number, or"),
        (b'{"body": "x", "attributes": 1}', "attributes must be an object"),
        (b'{"body": "x", "delay": -1}', "delay -1 is not between"),
        (b'{"body": "x", "delay": NaN}', "delay nan is not between"),
        (b'{"body": "x", "visible_at": 1e9}', "visible_at must be microseconds since 1970"),
        (b'{"body": "x", "deadline_at": 4611686018427387903}', "beyond the calendar"),
        (b'{"body": "x", "group": 1}', "a group is text"),
        (b'{"body": "x", "key": ""}', "it must have 1 to 256"),
        (b'{"body": "%s"}' % (b"x" * 1048577), "the body has 1048577 bytes"),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_nothing_of_its_batch_is_sent(
    line: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BATCH", 2)
    with penstock.open("memory:") as broker:
        queue = broker.create("jobs")
        with pytest.raises(BadMessage, match=words) as refused:
            import_lines(queue, [b'{"body": "1"}', b"", b'{"body": "3"}', line])
        assert str(refused.value).startswith("line 4")
        assert refused.value.__notes__[0].startswith("the first 2 lines are safely imported")
        assert queue.stats().messages == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)
NAMES = st.sampled_from(["body", "body_base64", "key", "attributes", "delay", "deadline", "deadline_at", "visible_at", "group"])


@settings(max_examples=40)
@given(document=JSON | st.dictionaries(NAMES, JSON, max_size=6))
def test_any_document_is_a_message_or_a_refusal(document: Any) -> None:
    try:
        draft = to_draft(json.loads(json.dumps(document)), 0)
    except BadMessage:
        return
    with penstock.open("memory:") as broker:
        queue = broker.create("jobs")
        try:
            queue.send_many([draft])
        except BadMessage:
            return
        (message,) = queue.scan()
        assert to_draft(json.loads(json.dumps(to_document(message))), message.visible_at).body == draft.body


def test_neither_a_long_queue_nor_a_long_line_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open("memory:") as broker:
        queue = broker.create("jobs")
        queue.send_many([b"x"] * 200)
        asked: list[int] = []
        scan = queue.scan
        monkeypatch.setattr(queue, "scan", lambda start, *, limit: asked.append(limit) or scan(start, limit=limit))
        assert len(export(queue)) == 200
        assert max(asked) <= 64

    class Endless(io.RawIOBase):
        taken = 0

        def readinto(self, buffer: Any) -> int:
            self.taken += len(buffer)
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

        def readable(self) -> bool:
            return True

    endless = Endless()
    with penstock.open("memory:") as broker, pytest.raises(BadMessage, match="line 1: it has more than"):
        import_lines(broker.create("jobs"), read_lines(io.BufferedReader(endless)))
    assert endless.taken < 4 * lines.MAX_LINE
    sizes = [sum(map(len, batch)) for batch in lines._batches([b"x" * 1_000_000] * 20)]
    assert max(sizes) <= lines.BATCH_BYTES + 1_000_000


def test_a_killed_import_that_is_made_again_doubles_nothing(tmp_path: Path) -> None:
    url, count = f"sqlite:///{tmp_path}/jobs.db", 4000
    (tmp_path / "lines").write_text("".join(f'{{"body": "{number}"}}\n' for number in range(count)))
    command = [sys.executable, "-m", "penstock.cli", "--store", url, "import", "jobs", str(tmp_path / "lines")]
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        for least in (1, 1500):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as importing:
                until(lambda least=least, importing=importing: queue.span()[0] >= least or importing.poll() is not None)
                importing.send_signal(signal.SIGKILL)
        assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "imported 4,000 messages\n"
        found: list[penstock.Message] = []
        while part := queue.scan(found[-1].number + 1 if found else 0):
            found += part
        assert sorted(int(message.body) for message in found) == list(range(count))


def test_damaged_messages_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        queue.send_many([b"good", b"bad"])
        database: Any = broker.store.database  # type: ignore[attr-defined]
        database.connect().execute("UPDATE penstock_message SET body = x'00' WHERE body = CAST('bad' AS BLOB)")
    assert main(["--store", url, "export", "jobs"]) == 1
    printed = capsys.readouterr()
    assert [json.loads(line)["body"] for line in printed.out.splitlines()] == ["good"]
    assert "1 damaged messages are left out: " in printed.err


def test_a_file_has_its_name_once_it_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_mounts()
    url, disk = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "disk"
    with penstock.open(url) as broker:
        broker.create("jobs").send_many([b"x" * 1000] * 900)
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], check=True)
    try:
        assert main(["--store", url, "export", "jobs", "--output", str(disk / "lines")]) == 4
        assert "no space left" in capsys.readouterr().err
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert main(["--store", url, "export", "jobs", "--output", str(tmp_path / "lines")]) == 0
    assert (tmp_path / "lines").read_bytes().count(b"\n") == 900
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("~")] == []

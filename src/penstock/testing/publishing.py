"""The contract's chapters on exactly-once publishing: once a batch, all or nothing, and nothing left behind."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock import BadInput, BadMessage, Broker, Draft, Queue, QueueNotFound, SegmentLost, WriterSetBack, policy
from penstock.broker import LocalBroker
from penstock.message import Attribute, Entry, Message, from_datetime
from penstock.publishing.publishing import KEEP, MANIFEST, MAX_SEGMENT, REMEMBER
from penstock.publishing.segments import MAX_ROWS, pack, pack_drafts
from penstock.stores.requests import Alike
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies
from penstock.testing.verbs import wrap_verb


def pack_twice(*segments: bytes) -> bytes:
    """One segment with the batches of several."""
    return pack([batch for segment in segments for batch in pa.ipc.open_stream(segment)])


def stage(
    broker: Broker, batch: int, name: str, *sent: bytes | Draft, queue: str = "orders", writer: str = "w"
) -> dict[str, int]:
    drafts = [draft if isinstance(draft, Draft) else Draft(draft) for draft in sent]
    broker.stage(writer, batch, name, pack_drafts(queue, drafts))
    return {name: len(drafts)}


def sorted_bodies(queue: Queue) -> list[bytes]:
    return sorted(message.body for message in queue.peek(1000))


class PublishingChapter:
    """What clients can see; also true over HTTP."""

    def test_what_is_staged_is_in_no_queue(self, broker: Broker, queue: Queue) -> None:
        stage(broker, 0, "a", b"1")
        assert queue.stats().messages == 0

    def test_publishing_puts_the_named_segments_into_their_queues(self, broker: Broker, queue: Queue) -> None:
        other = broker.create("other")
        segments = stage(broker, 0, "a", b"1", b"2") | stage(broker, 0, "b", b"3", queue="other")
        stage(broker, 0, "of a dead attempt", b"4")
        assert broker.publish("w", 0, segments) == 3
        assert sorted_bodies(queue) == [b"1", b"2"]
        assert sorted_bodies(other) == [b"3"]
        assert bodies(queue.receive(9)) == [b"1", b"2"]

    def test_a_batch_is_published_once(self, broker: Broker, queue: Queue) -> None:
        assert broker.publish("w", 5, stage(broker, 5, "a", b"1")) == 1
        queue.delete(queue.receive()[0])
        for batch in (5, 4, 0):
            assert broker.publish("w", batch, stage(broker, batch, "b", b"again")) is None
        assert broker.publish("w", 5, {"a": 1}) is None
        assert queue.stats().messages == 0
        assert broker.publish("w", 6, stage(broker, 6, "a", b"2")) == 1

    def test_a_writer_that_was_set_back_is_told_and_changes_nothing(self, broker: Broker, queue: Queue) -> None:
        broker.publish("w", 5, stage(broker, 5, "a", b"1"), digest="one")
        assert broker.publish("w", 5, stage(broker, 5, "b", b"1"), digest="one") is None
        with pytest.raises(WriterSetBack, match=r"batch 5 of writer 'w' \(1 messages\) was published before, and it had other"):
            broker.publish("w", 5, stage(broker, 5, "c", b"2"), digest="two")
        with pytest.raises(WriterSetBack, match=r"a later batch is published: the last one is batch 5"):
            broker.publish("w", 4, stage(broker, 4, "c", b"1"), digest="one")
        assert sorted_bodies(queue) == [b"1"]
        assert broker.publish("w", 6, stage(broker, 6, "c", b"2"), digest="two") == 1
        with pytest.raises(BadInput, match="digest"):
            broker.publish("w", 7, {}, digest="")

    def test_a_batch_without_a_digest_is_any_batch_of_its_number(self, broker: Broker, queue: Queue) -> None:
        broker.publish("w", 5, stage(broker, 5, "a", b"1"))
        assert broker.publish("w", 5, stage(broker, 5, "b", b"2"), digest="two") is None
        with pytest.raises(WriterSetBack, match="the last one is batch 5"):
            broker.publish("w", 4, stage(broker, 4, "b", b"2"), digest="two")
        assert sorted_bodies(queue) == [b"1"]

    def test_writers_do_not_meet(self, broker: Broker, queue: Queue) -> None:
        segments = stage(broker, 0, "a", b"1", writer="v") | {}
        stage(broker, 0, "a", b"2", writer="w")
        assert broker.publish("v", 0, segments) == 1
        assert broker.publish("w", 0, segments) == 1
        assert sorted_bodies(queue) == [b"1", b"2"]

    def test_an_empty_batch_counts(self, broker: Broker, queue: Queue) -> None:
        assert broker.publish("w", 0, {}) == 0
        assert broker.publish("w", 0, stage(broker, 0, "a", b"1")) is None
        assert broker.publish("w", 1, stage(broker, 1, "none")) == 0

    def test_a_lost_segment_fails_the_batch(self, broker: Broker, queue: Queue) -> None:
        segments = stage(broker, 0, "a", b"1")
        for wrong in (segments | {"b": 1}, {"a": 2}, {"a": 0}):
            with pytest.raises(SegmentLost, match=r"batch 0 of writer 'w'"):
                broker.publish("w", 0, wrong)
        assert queue.stats().messages == 0
        assert broker.publish("w", 0, segments) == 1

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_a_segment_that_would_grow_is_refused_before_it_is_decoded(
        self, broker: Broker, queue: Queue, compression: str
    ) -> None:
        batch = pa.record_batch({"queue": ["orders"] * 9, "body": pa.array([bytes(1_000_000)] * 9)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
            stream.write_batch(batch)
        broker.stage("w", 0, "a", sink.getvalue().to_pybytes())
        allocated = pa.total_allocated_bytes()
        with pytest.raises(BadInput, match="compressed"):
            broker.publish("w", 0, {"a": 9})
        assert pa.total_allocated_bytes() - allocated < 1_000_000
        assert queue.stats().messages == 0

    def test_a_segment_has_a_limit_of_messages(self, broker: Broker, queue: Queue) -> None:
        few, many = (
            pack([pa.record_batch({"queue": ["orders"] * count, "body": pa.array([b""] * count, pa.binary())})])
            for count in (3, MAX_ROWS + 1)
        )
        for name, segment in (("few", few), ("many", many), ("both", pack_twice(few, many))):
            broker.stage("w", 0, name, segment)
        for name in ("many", "both"):
            with pytest.raises(BadInput, match=f"the limit is {MAX_ROWS}"):
                broker.publish("w", 0, {name: MAX_ROWS + 1})
        assert queue.stats().messages == 0
        assert broker.publish("w", 0, {"few": 3}) == 3

    def test_a_segment_whose_columns_have_no_proper_names_is_refused(self, broker: Broker, queue: Queue) -> None:
        segment = pack_drafts("orders", [Draft(b"1")])
        for old, new in ((b"group", b"gr\xffup"), (b"group", b"delay"), (b"group", b"groun")):
            assert old in segment
            broker.stage("w", 0, "a", segment.replace(old, new))
            with pytest.raises(BadInput, match="a segment"):
                broker.publish("w", 0, {"a": 1})
        assert queue.stats().messages == 0

    def test_a_segment_that_points_out_of_itself_is_refused(self, broker: Broker, queue: Queue) -> None:
        """Otherwise it would include whatever lies behind it in memory."""
        segment = pack_drafts("orders", [Draft(b"1234")] * 4)
        ends = struct.Struct("<5i")
        wrong = segment.replace(ends.pack(0, 4, 8, 12, 16), ends.pack(0, 4, 8, 12, 60_000))
        assert wrong != segment
        broker.stage("w", 0, "a", wrong)
        with pytest.raises(BadInput, match="cannot be read"):
            broker.publish("w", 0, {"a": 4})
        assert queue.stats().messages == 0

    def test_a_refused_message_leaves_the_other_queues_untouched(self, broker: Broker, queue: Queue) -> None:
        segments = stage(broker, 0, "a", b"1")
        for name, wrong, error in (
            ("b", stage(broker, 0, "b", b"2", queue="nowhere"), QueueNotFound),
            ("c", stage(broker, 0, "c", b"2", Draft(b"3", delay=-1)), BadInput),
        ):
            with pytest.raises(error):
                broker.publish("w", 0, segments | wrong)
            assert queue.stats().messages == 0, name
        assert broker.publish("w", 0, segments) == 1
        assert queue.stats().messages == 1

    def test_messages_that_cannot_be_any_go_to_the_queue_for_them(self, broker: Broker, queue: Queue) -> None:
        bad = broker.create("bad")
        segments = stage(broker, 0, "a", b"1", Draft(b"2", "text/plain", group="a\tb"), b"3")
        segments |= stage(broker, 0, "b", b"4", queue="nowhere")
        assert broker.publish("w", 0, segments, bad_rows="bad") == 4
        assert sorted_bodies(queue) == [b"1", b"3"]
        found = {message.body: message.attributes for message in bad.peek(9)}
        assert found[b"2"]["queue"] == "orders"
        assert r"'a\tb'" in str(found[b"2"]["reason"])
        assert found[b"4"] == {"queue": "nowhere", "reason": "there is no queue 'nowhere'"}

    def test_messages_that_cannot_be_read_go_there_too_and_the_others_on(self, broker: Broker, queue: Queue) -> None:
        last = datetime.max.replace(tzinfo=UTC)
        wrong = [Draft(b"2", group="g~"), Draft(b"3", "text/t~"), Draft(b"4", deadline=last)]
        good = [Draft(b"%d" % number) for number in range(5, 12)]
        segment = pack_drafts("orders", [Draft(b"1"), *wrong, *good]).replace(b"~", b"\xff")
        last_at = from_datetime(last)
        segment = segment.replace(last_at.to_bytes(8, "little"), (last_at + 1).to_bytes(8, "little"))
        broker.stage("w", 0, "a", segment)
        broker.stage("w", 0, "b", pack_drafts("order~", [Draft(b"12")]).replace(b"~", b"\xff"))
        segments = {"a": 11, "b": 1}
        with pytest.raises(BadMessage, match="UTF-8"):
            broker.publish("w", 0, segments)
        assert queue.stats().messages == 0
        bad = broker.create("bad")
        assert broker.publish("w", 0, segments, bad_rows="bad") == 12
        assert sorted_bodies(queue) == sorted([b"1", *(draft.body for draft in good)])
        told = {message.body: (message.attributes["queue"], str(message.attributes["reason"])) for message in bad.peek(9)}
        assert told.keys() == {b"2", b"3", b"4", b"12"}
        assert "UTF-8" in told[b"2"][1]
        assert "UTF-8" in told[b"3"][1]
        assert told[b"4"] == ("orders", f"deadline_at {last_at + 1} is not within the years 1 to 9999")
        assert told[b"12"][0] == "order\ufffd"

    def test_a_message_arrives_as_it_was_meant(self, broker: Broker, queue: Queue) -> None:
        attributes: dict[str, Attribute] = {"text": "é", "whole": 7, "real": 0.1, "bytes": b"\x00\xff"}
        deadline = datetime.now(UTC) + timedelta(days=400)
        sent = [
            Draft(b"\x00\xff", "text/plain; charset=utf-8", attributes, deadline=deadline, group="g"),
            Draft(b"", delay=3600),
            Draft(b"plain"),
        ]
        broker.publish("w", 0, stage(broker, 0, "a", *sent))
        found = {message.body: message for message in queue.peek(9)}
        first, hidden, plain = found[b"\x00\xff"], found[b""], found[b"plain"]
        assert (first.content_type, first.attributes, first.group) == ("text/plain; charset=utf-8", attributes, "g")
        assert [type(value) for value in first.attributes.values()] == [str, int, float, bytes]
        assert first.deadline_at == round(deadline.timestamp() * 1e6)
        assert hidden.visible_at == hidden.sent_at + 3600 * 10**6
        assert (plain.content_type, plain.attributes, plain.visible_at) == ("application/octet-stream", {}, plain.sent_at)

    def test_a_queue_that_deduplicates_does(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        segments = stage(broker, 0, "a", Draft(b"1", key="k"), Draft(b"2", key="k"), b"3", b"3", queue="once")
        broker.publish("w", 0, segments)
        assert sorted_bodies(queue) == [b"1", b"3"]

    def test_a_queue_with_groups_keeps_their_order(self, broker: Broker) -> None:
        if not broker.store.groups:
            assert broker.store.groups is False
            return
        queue = broker.create("lines", groups=True)
        sent = [Draft(b"1", group="g"), Draft(b"2", group="g"), Draft(b"3", group="h")]
        broker.publish("w", 0, stage(broker, 0, "a", *sent, queue="lines"))
        assert queue.stats().blocked == 1
        first = queue.receive(9)
        assert bodies(first) == [b"1", b"3"]
        first[0].delete()
        assert bodies(queue.receive(9)) == [b"2"]

    def test_segments_are_removed_when_asked(self, broker: Broker, queue: Queue) -> None:
        segments = stage(broker, 0, "a", b"1")
        broker.unstage("w", 0, ["a", "never there"])
        with pytest.raises(SegmentLost, match="'a'"):
            broker.publish("w", 0, segments)

    def test_staging_again_under_a_name_replaces(self, broker: Broker, queue: Queue) -> None:
        stage(broker, 0, "a", b"1")
        assert broker.publish("w", 0, stage(broker, 0, "a", b"2", b"3")) == 2
        assert sorted_bodies(queue) == [b"2", b"3"]

    def test_many_messages_in_many_segments_are_published(self, broker: Broker, queue: Queue) -> None:
        segments: dict[str, int] = {}
        for part in range(3):
            segments |= stage(broker, 0, f"s{part}", *(b"%d" % (part * 400 + row) * 100 for row in range(400)))
        assert broker.publish("w", 0, segments) == 1200
        assert queue.stats().messages == 1200
        assert len({message.body for message in queue.peek(2000)}) == 1200

    def test_names_numbers_and_sizes_are_checked(self, broker: Broker, queue: Queue) -> None:
        calls: list[tuple[Any, ...]] = [
            ("a/b", 0, "n", b""),
            ("w", -1, "n", b""),
            ("w", 0, MANIFEST, b""),
            ("w", 0, "n", "text"),
        ]
        for call in [*calls, ("w", 0, "n", bytes(MAX_SEGMENT + 1))]:
            with pytest.raises(BadInput):
                broker.stage(*call)
        for writer, batch, segments in (("", 0, {}), ("w", "0", {}), ("w", 0, {"a/b": 1}), ("w", 0, {"a": -1})):
            with pytest.raises(BadInput):
                broker.publish(writer, batch, segments)  # type: ignore[arg-type]
        broker.stage("w", 0, "noise", b"this is no segment")
        with pytest.raises(BadInput, match="segment"):
            broker.publish("w", 0, {"noise": 1})


class StagedSegments:
    """What happens to staged segments."""

    @pytest.mark.parametrize(
        ("settings", "drafts", "alike"),
        [
            ({}, [Draft(b""), Draft(b"1"), Draft(b"\x00\xff" * 2**19)], True),
            ({}, [Draft(b"only one")], True),
            ({}, [Draft(b"%d" % number * 30) for number in range(700)], True),
            ({"delay": 90, "retention": 3600, "history": 60}, [Draft(b"1"), Draft(b"2")], True),
            ({}, [Draft(b"1", policy.TEXT), Draft(b"", policy.TEXT)], True),
            ({}, [Draft(b"1", policy.TEXT), Draft(b"2")], False),
            ({}, [Draft(b"1", delay=5), Draft(b"2", deadline=7), Draft(b"3", group="g")], False),
            ({}, [Draft(b"1", key="k"), Draft(b"2", attributes={"a": 1})], False),
            ({"deduplicate": True}, [Draft(b"1"), Draft(b"2"), Draft(b"1")], False),
            ({"deduplicate": 60}, [Draft(b"1"), Draft(b"2", key="2")], False),
            ({"groups": True}, [Draft(b"1"), Draft(b"2", group="g"), Draft(b"3", group="g")], False),
            ({"groups": True}, [Draft(b"1"), Draft(b"2")], True),
        ],
    )
    def test_a_published_message_is_what_a_sent_one_is(
        self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, settings: Any, drafts: list[Draft], alike: bool
    ) -> None:
        if settings.get("groups") and not broker.store.groups:
            return
        sent, published = broker.create("sent", **settings), broker.create("published", **settings)
        whole: list[int] = []

        def count(insert: Callable[..., Any], _: str, entries: Sequence[Entry], *others: Any) -> Any:
            whole.extend([len(entries)] if isinstance(entries, Alike) else [])
            return insert(entries, *others)

        wrap_verb(monkeypatch, broker, "insert", count)
        sent.send_many(drafts)
        broker.publish("w", 0, stage(broker, 0, "a", *drafts, queue="published"))
        if broker.store.atomic:
            assert whole == ([len(drafts)] if alike else [])
        theirs, ours = ([_but_its_name(message) for message in queue.peek(1000)] for queue in (sent, published))
        assert ours == theirs
        assert all(message.intact for message in ours)
        assert published.stats() == sent.stats()

    def test_settings_that_change_meanwhile_count(
        self, broker: LocalBroker, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segments = stage(broker, 0, "a", b"1", b"2")
        load, old = broker.store.load, [broker.store.load("orders")]
        queue.update(delay=50)
        monkeypatch.setattr(broker.store, "load", lambda name: old.pop() if old else load(name))
        assert broker.publish("w", 0, segments) == 2
        assert old == []
        assert [message.visible_at - message.sent_at for message in queue.peek(9)] == [50 * 10**6] * 2

    def test_a_body_that_is_too_big_is_no_message_among_many(self, broker: Broker, queue: Queue) -> None:
        bad = broker.create("bad")
        segments = stage(broker, 0, "a", b"1", bytes(policy.MAX_BODY + 1), bytes(policy.MAX_BODY))
        with pytest.raises(BadInput, match=f"{policy.MAX_BODY + 1} bytes"):
            broker.publish("w", 0, segments)
        assert queue.stats().messages == 0
        assert broker.publish("w", 0, segments, bad_rows="bad") == 3
        assert sorted_bodies(queue) == [bytes(policy.MAX_BODY), b"1"]
        assert [len(message.body) for message in bad.peek(9)] == [policy.MAX_BODY]

    def test_more_segments_than_are_read_ahead_are_published_in_their_order(self, broker: LocalBroker, queue: Queue) -> None:
        segments: dict[str, int] = {}
        for part in range(12):
            segments |= stage(broker, 0, f"s{part}", b"%d a" % part, b"%d b" % part)
        assert broker.publish("w", 0, segments) == 24
        wanted = [b"%d %b" % (part, row) for part in range(12) for row in (b"a", b"b")]
        assert bodies(sorted(queue.peek(99), key=lambda message: message.number)) == wanted
        assert broker.store.outbox.staging.staged() == []

    @pytest.mark.parametrize("lost", [0, 3, 11])
    def test_a_publication_that_fails_leaves_its_segments(self, broker: LocalBroker, queue: Queue, lost: int) -> None:
        segments: dict[str, int] = {}
        for part in range(12):
            segments |= stage(broker, 0, f"s{part}", b"%d" % part)
        broker.unstage("w", 0, [f"s{lost}"])
        with pytest.raises(SegmentLost, match=f"'s{lost}'"):
            broker.publish("w", 0, segments)
        assert queue.stats().messages == 0
        assert {found.name for found in broker.store.outbox.staging.staged()} == segments.keys() - {f"s{lost}"}
        assert broker.publish("w", 0, segments | stage(broker, 0, f"s{lost}", b"again")) == 12
        assert queue.stats().messages == 12
        assert broker.store.outbox.staging.staged() == []

    def test_publishing_removes_all_that_was_staged_up_to_the_batch(self, broker: LocalBroker, queue: Queue) -> None:
        stage(broker, 1, "zombie", b"x")
        stage(broker, 2, "loser", b"x")
        stage(broker, 3, "next", b"x")
        stage(broker, 1, "other", b"x", writer="v")
        broker.publish("w", 2, stage(broker, 2, "a", b"1"))
        assert sorted(found[:3] for found in broker.store.outbox.staging.staged()) == [("v", 1, "other"), ("w", 3, "next")]
        assert broker.store.outbox.staging.fetch("w", 2, "loser") is None

    def test_a_zombie_that_stages_after_the_publication_is_cleaned_up_by_the_next(
        self, broker: LocalBroker, queue: Queue
    ) -> None:
        broker.publish("w", 1, stage(broker, 1, "a", b"1"))
        stage(broker, 1, "zombie", b"x")
        assert broker.publish("w", 1, {}) is None
        assert broker.store.outbox.staging.staged() == []
        assert sorted_bodies(queue) == [b"1"]

    def test_what_nobody_published_is_removed_after_some_days(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        stage(broker, 0, "old", b"x", writer="dead")
        clock.advance(KEEP - 10)
        stage(broker, 0, "new", b"x", writer="living")
        broker.publish("w", 0, {})
        assert len(broker.store.outbox.staging.staged()) == 2
        clock.advance(SWEEP)
        broker.publish("w", 1, {})
        assert [found.writer for found in broker.store.outbox.staging.staged()] == ["living"]

    def test_a_writer_of_one_batch_is_forgotten_in_the_end_and_others_never(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        broker.publish("job", 0, stage(broker, 0, "a", b"1", writer="job"), once=True)
        broker.publish("w", 0, stage(broker, 0, "a", b"1"))
        clock.advance(REMEMBER - 1)
        broker.publish("x", 0, {})
        for writer in ("job", "w"):
            with broker.store.outbox.ledger.publishing(writer) as last:
                assert last == (0, None)
        clock.advance(SWEEP)
        broker.publish("x", 1, {})
        with broker.store.outbox.ledger.publishing("w") as last:
            assert last == (0, None)
        with broker.store.outbox.ledger.publishing("job") as last:
            assert last is None

    def test_an_interrupted_publication_leaves_nothing_or_is_finished(
        self, broker: LocalBroker, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Interrupt it at each of its store calls, and publish again with other segments, as a replay would."""
        staging, ledger = broker.store.outbox
        verbs = [(staging, "stage"), (staging, "fetch"), (staging, "unstage"), (ledger, "note"), (ledger, "insert_once")]
        for number in range(60):
            writer, calls = f"writer {number}", [0]
            with monkeypatch.context() as patched:
                wrap_verb(patched, broker, "insert", _interrupting(calls, number))
                for port, verb in verbs:
                    patched.setattr(port, verb, _interrupted(getattr(port, verb), calls, number))
                calls[0] = -10
                segments = stage(broker, 0, "a", b"1", b"2", writer=writer) | stage(broker, 0, "b", b"3", writer=writer)
                calls[0] = 0
                try:
                    assert broker.publish(writer, 0, segments, digest="123") == 3
                    finished = True
                except _Interrupted:
                    finished = False
            for message in queue.receive(9):  # take published messages at once: they must not come again
                message.delete()
                _TAKEN.append(message.body)
            again = stage(broker, 0, "c", b"3", b"1", writer=writer) | stage(broker, 0, "d", b"2", writer=writer)
            broker.publish(writer, 0, again, digest="123")
            with pytest.raises(WriterSetBack, match="other messages"):
                broker.publish(writer, 0, {}, digest="4")
            _TAKEN.extend(message.body for message in queue.peek(9))
            queue.purge()
            assert sorted(_TAKEN) == [b"1", b"2", b"3"], f"interrupted at call {number}"
            _TAKEN.clear()
            assert [found for found in staging.staged() if found.writer == writer] == []
            if finished:
                return
        raise AssertionError("a publication makes ever more calls")


SWEEP = 4000
"""Seconds after which a publication also sweeps."""
_TAKEN: list[bytes] = []


def _but_its_name(message: Message) -> Message:
    return replace(message, id="", number=0, queue="")


class _Interrupted(BaseException):
    pass


def _interrupted(verb: Any, calls: list[int], number: int) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == number + 1:
            raise _Interrupted
        answer = verb(*arguments, **named)
        return _interrupted(answer, calls, number) if callable(answer) else answer

    return call


def _interrupting(calls: list[int], number: int) -> Any:
    """As `_interrupted`, for `wrap_verb`."""
    return lambda act, _name, *arguments: _interrupted(act, calls, number)(*arguments)

"""The contract's chapter on bad input: our own error names the value, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from penstock import BadInput, BadMessage, BadName, BadSetting, Broker, Draft, Queue, QueueNotFound, Receipt

BAD_NAMES = {
    "a/b": "'a/b'",
    "..": "'..'",
    "../up": "'../up'",
    ".hidden": "'.hidden'",
    "nul\0": r"'nul\\x00'",
    "line\nfeed": r"'line\\nfeed'",
    "colon:": "'colon:'",
    "back\\slash": "slash",
    "": "''",
    " x": "' x'",
    "x ": "'x '",
    "x" * 300: "300 characters, the limit is 128",
    "漢" * 100: "300 bytes in UTF-8, the limit is 200",
    "e\u0301": "composed form",
    "\ud800": "ud800",
}

BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"visibility": -1}, "visibility -1"),
    ({"visibility": 2**31}, "visibility 2147483648"),
    ({"visibility": "30"}, "visibility.*'30'"),
    ({"visibility": True}, "visibility.*True"),
    ({"visibility": float("nan")}, "visibility nan"),
    ({"retention": 0}, "retention 0"),
    ({"retention": 2**31}, "retention 2147483648"),
    ({"delay": -0.5}, "delay -0.5"),
    ({"delay": None}, "delay.*None"),
    ({"history": -1}, "history -1"),
    ({"deduplicate": 0}, "deduplicate 0"),
    ({"deduplicate": "yes"}, "deduplicate.*'yes'"),
    ({"redrive": "dead"}, "redrive.*'dead'"),
    ({"redrive": ("dead", 0)}, "max_receives 0"),
    ({"redrive": ("dead", 2**31)}, "max_receives 2147483648"),
    ({"redrive": ("a/b", 1)}, "'a/b'"),
    ({"groups": 1}, "groups.*1"),
    ({"mode": "twice"}, "mode 'twice'"),
    ({"colour": "red"}, "'colour'"),
    ({"labels": "a=b"}, "labels.*'a=b'"),
    ({"labels": [("a", "b")]}, "labels.*list"),
    ({"labels": {"a": 5}}, "label 'a' must be text.*5"),
    ({"labels": {"": "x"}}, "label ''.*1 to 256 printable"),
    ({"labels": {"a\n": "x"}}, "label 'a.*printable"),
    ({"labels": {"x" * 257: "x"}}, "label 'x.*256"),
    ({"labels": {5: "x"}}, "label 5"),
    ({"labels": {"a": "\ud800"}}, "UTF-8.*ud800"),
    ({"labels": {str(number): "" for number in range(201)}}, "201 labels, the limit is 200"),
    ({"labels": {"a": "é" * 40_000}}, "80001 bytes, the limit is 65536"),
    ({"visibility": 10**5000}, "visibility of thousands of digits"),
    ({"redrive": ("dead", 10**5000)}, "max_receives of thousands of digits"),
]

BAD_DRAFTS: list[tuple[Any, str]] = [
    ("text", "not str: 'text'"),
    (None, "not NoneType"),
    (Draft("text"), "not str: 'text'"),  # type: ignore[arg-type]
    (Draft(b"", delay=-1), "delay -1"),
    (Draft(b"", delay="5"), "delay.*'5'"),  # type: ignore[arg-type]
    (Draft(b"", delay=2**31), "delay 2147483648"),
    (Draft(b"", visibility=-1), "visibility -1"),
    (Draft(b"", deadline=-1), "deadline -1"),
    (Draft(b"", deadline=datetime(2030, 1, 1)), "2030-01-01T00:00:00 has no time zone"),
    (Draft(b"", content_type=""), "content type"),
    (Draft(b"", content_type="a\r\nb"), "content type"),
    (Draft(b"", content_type="é/x"), "content type"),
    (Draft(b"", content_type="x" * 256), "255"),
    (Draft(b"", attributes=[]), "attributes.*list"),  # type: ignore[arg-type]
    (Draft(b"", attributes={"a": None}), "'a'.*NoneType"),  # type: ignore[dict-item]
    (Draft(b"", attributes={"a": True}), "'a'.*bool"),
    (Draft(b"", attributes={"a": float("inf")}), "'a' is inf"),
    (Draft(b"", attributes={"a": 10**38}), "'a'.*38 digits"),
    (Draft(b"", attributes={"": 1}), "attribute name ''"),
    (Draft(b"", attributes={"\n": 1}), "attribute name"),
    (Draft(b"", attributes={"a": "\ud800"}), "'a'.*UTF-8"),
    (Draft(b"", attributes={str(number): 1 for number in range(65)}), "65 attributes, the limit is 64"),
    (Draft(b"ab", attributes={"a": "x" * 1114110}), "1114111 bytes and the body 2,.*1114112"),
    (Draft(b"", attributes={"a": "é" * 600000}), "1200001 bytes and the body 0,.*1114112"),
    (Draft(b"", key=""), "key ''"),
    (Draft(b"", key="x" * 257), "257 bytes"),
    (Draft(b"", key="\udcff"), "key.*UTF-8"),
    (Draft(b"", key=5), "not int: 5"),  # type: ignore[arg-type]
    (Draft(b"", group=""), "group ''.*1 to 128"),
    (Draft(b"", group="x" * 129), "129 characters.*128"),
    (Draft(b"", group="a\nb"), "group 'a.*printable"),
    (Draft(b"", group="\ud800"), "ud800"),
    (Draft(b"", group=5), "group is text, not int: 5"),  # type: ignore[arg-type]
]


class Refusals:
    """Each test tries all its values on one store: what is refused never reaches the store, so none disturbs the next."""

    def test_a_bad_name_is_refused(self, broker: Broker) -> None:
        for name, words in BAD_NAMES.items():
            for call in (broker.create, broker.queue, broker.delete):
                refuse(BadName, words, call, name)
        for value in (None, 5, b"x"):
            refuse(BadName, "is text", broker.create, value)
        assert broker.queues().total == 0

    def test_a_bad_setting_is_refused(self, broker: Broker) -> None:
        broker.create("dead")
        queue = broker.create("orders")
        before = queue.settings
        for settings, words in BAD_SETTINGS:
            refuse((BadSetting, BadName), words, broker.create, "new", **settings)
            refuse((BadSetting, BadName), words, queue.update, **settings)
            assert queue.settings == before
        assert broker.queues().names == ["dead", "orders"]

    def test_a_dead_letter_queue_must_exist_and_be_another(self, broker: Broker, queue: Queue) -> None:
        with pytest.raises(QueueNotFound, match="'nobody'"):
            broker.create("new", redrive=("nobody", 3))
        with pytest.raises(QueueNotFound, match="'nobody'"):
            queue.update(redrive=("nobody", 3))
        with pytest.raises(BadInput, match="'orders' cannot be its own"):
            queue.update(redrive=("orders", 3))
        assert broker.queues().names == ["orders"]
        assert queue.settings.redrive is None

    def test_a_bad_draft_is_refused(self, queue: Queue) -> None:
        for draft, words in BAD_DRAFTS:
            refuse((BadMessage, BadName), words, queue.send_many, [b"good", draft])
        assert queue.stats().messages == 0

    def test_bad_numbers_and_words_are_refused(self, broker: Broker, queue: Queue) -> None:
        queue.send(b"x")
        calls: dict[str, Callable[[], object]] = {
            "limit 0": lambda: queue.receive(0),
            "limit.*'1'": lambda: queue.receive("1"),  # type: ignore[arg-type]
            "limit 100001": lambda: queue.receive(100_001),
            "wait -1": lambda: queue.receive(wait=-1),
            "visibility -2": lambda: queue.receive(visibility=-2),
            "mode 'twice'": lambda: queue.receive(mode="twice"),
            "state 'lost'": lambda: queue.peek(state="lost"),
            "limit -1": lambda: queue.peek(-1),
            "visibility -3": lambda: queue.extend("x", -3),
            "delay -4": lambda: queue.release("x", -4),
            "not a message.*5": lambda: queue.delete(5),  # type: ignore[arg-type]
            "of queue 'other'": lambda: queue.delete(Receipt("other", "x", 1)),
            "delivery 1000000000000000000000": lambda: queue.delete(Receipt("orders", "x", 10**21)),
            "delivery.*'1'": lambda: queue.delete(Receipt("orders", "x", "1")),  # type: ignore[arg-type]
            "an id is text, not int": lambda: queue.delete(Receipt("orders", 5, 1)),  # type: ignore[arg-type]
            "send_many takes a list.*None": lambda: queue.send_many(None),  # type: ignore[arg-type]
            "send_many takes a list.*b'ab'.*use send": lambda: queue.send_many(b"ab"),  # type: ignore[arg-type]
            "delete_many takes a list.*'abc'": lambda: queue.delete_many("abc"),
            "state 'processed'": lambda: queue.peek(state="processed"),
            r"state \[\]": lambda: queue.peek(state=[]),  # type: ignore[arg-type]
            "reader name.*ud800": lambda: queue.confirm("\ud800", 1),
            "reader name.*list": lambda: queue.settled_epoch([]),  # type: ignore[arg-type]
            "queue name.*ud800": lambda: queue.redrive(to="\ud800"),
            "only looked at": lambda: queue.peek()[0].delete(),
            "reason.*UTF-8": lambda: queue.fail("x", "\udcff"),
            "reason.*not int": lambda: queue.fail("x", 5),  # type: ignore[arg-type]
            "4097 bytes, the limit is 4096": lambda: queue.fail("x", "x" * 4097),
            "member.*UTF-8": lambda: queue.sadd("\udcff"),
            "offset -1": lambda: broker.queues(-1),
            "limit 'all'|limit.*'all'": lambda: broker.queues(0, "all"),  # type: ignore[arg-type]
            "redriven to itself": lambda: queue.redrive(to="orders"),
            "redrive takes a list.*'abc'": lambda: queue.redrive(ids="abc"),
            "not a message, a receipt or an id: 5": lambda: queue.redrive(ids=[5]),  # type: ignore[list-item]
            "since_at -1": lambda: queue.redrive(since_at=-1),
            "limit of thousands of digits": lambda: queue.receive(10**5000),
            "share.*of thousands of digits": lambda: queue.receive(share=(0, 10**5000)),
            "stop 9223372036854775808": lambda: queue.scan(0, 2**63),
            r"segments.*\['a'\]": lambda: broker.publish("writer", 1, ["a"]),  # type: ignore[arg-type]
        }
        for words, call in calls.items():
            refuse(BadInput, words, call)
        queue.send(b"\xff", delay=60)
        with pytest.raises(BadMessage, match="is not UTF-8 text"):
            assert queue.peek(2)[1].text
        with pytest.raises(QueueNotFound, match="'nobody'"):
            queue.redrive(to="nobody")
        assert queue.peek()[0].receives == 0


def refuse(
    error: type[Exception] | tuple[type[Exception], ...],
    words: str,
    call: Callable[..., object],
    *given: object,
    **named: object,
) -> None:
    with pytest.raises(error, match=words):
        call(*given, **named)

"""The contract's chapter on queues and their settings (mqs' rules)."""

from __future__ import annotations

import pytest

import penstock
from penstock import BadSetting, Broker, Queue, QueueExists, QueueNotFound, Redrive, Settings, StoreClosed
from penstock.broker import LocalBroker
from penstock.testing.clock import FakeClock


class CatalogueChapter:
    def test_a_queue_has_the_settings_it_was_made_with(self, broker: Broker) -> None:
        broker.create("dead")
        settings = broker.create(
            "orders", visibility=7, retention=8, delay=9, deduplicate=60, redrive=("dead", 5), mode="at_most_once", history=3
        ).settings
        assert settings == Settings(
            visibility=7,
            retention=8,
            delay=9,
            deduplicate=60,
            redrive=Redrive("dead", 5),
            mode=penstock.Mode.AT_MOST_ONCE,
            history=3,
        )
        assert broker["orders"].settings == settings

    def test_the_defaults(self, queue: Queue) -> None:
        assert queue.settings == Settings(visibility=30, retention=345600, delay=0, deduplicate=False, redrive=None)

    def test_a_queue_is_made_once(self, broker: Broker, queue: Queue) -> None:
        with pytest.raises(QueueExists, match="'orders'"):
            broker.create("orders", visibility=1)
        assert broker["orders"].settings.visibility == 30
        assert broker.create("orders", visibility=1, exist_ok=True).settings.visibility == 30

    def test_queues_are_listed_by_name_with_offset_and_limit(self, broker: Broker) -> None:
        for name in ("b", "a", "ä", "Z", "c"):
            broker.create(name)
        assert broker.queues() == (5, ["Z", "a", "b", "c", "ä"])
        assert broker.queues(1, 2) == (5, ["a", "b"])
        assert broker.queues(9) == (5, [])
        assert broker.queues(limit=0) == (5, [])

    def test_names_may_be_unicode(self, broker: Broker) -> None:
        for name in ("заказы", "注文", "a b", "naïve", "🚀", "x" * 128):
            broker.create(name).send(name.encode())
        assert broker["注文"].receive()[0].text == "注文"
        assert broker.queues().total == 6

    def test_an_unknown_queue_is_named_in_the_error(self, broker: Broker) -> None:
        for call in (broker.queue, broker.delete):
            with pytest.raises(QueueNotFound, match="'nobody'"):
                call("nobody")

    def test_a_deleted_queue_is_gone_with_its_messages(self, broker: Broker, queue: Queue) -> None:
        queue.send(b"1")
        assert broker.delete("orders") == Settings()
        for call in (lambda: queue.send(b"2"), queue.receive, queue.stats, queue.peek, queue.purge, lambda: queue.settings):
            with pytest.raises(QueueNotFound, match="'orders'"):
                call()
        assert broker.create("orders").stats().messages == 0

    def test_a_receipt_of_a_deleted_queue_settles_nothing_in_its_successor(self, broker: Broker, queue: Queue) -> None:
        queue.send(b"old")
        (old,) = queue.receive()
        broker.delete("orders")
        again = broker.create("orders")
        again.send(b"new")
        again.receive()
        assert again.delete(old) is False
        assert again.stats().messages == 1

    def test_deleting_a_dead_letter_queue_clears_it_from_those_that_point_to_it(self, broker: Broker) -> None:
        broker.create("dead")
        broker.create("other")
        broker.create("a", redrive=("dead", 1), visibility=5)
        broker.create("b", redrive=("other", 1))
        broker.delete("dead")
        assert broker["a"].settings == Settings(visibility=5)
        assert broker["b"].settings.redrive == Redrive("other", 1)

    def test_settings_can_be_changed_one_by_one(self, broker: Broker, queue: Queue) -> None:
        assert queue.update(visibility=5) == Settings(visibility=5)
        assert queue.update(delay=2, deduplicate=True) == Settings(visibility=5, delay=2, deduplicate=True)
        assert broker["orders"].settings == Settings(visibility=5, delay=2, deduplicate=True)

    def test_a_queue_keeps_its_labels_whatever_else_changes(self, broker: Broker) -> None:
        broker.create("dead")
        labels = {"team": "möbel 🪑", "policy": '{"a": ["\\n", "x"]}\n\x00', "empty": "", "a.b/c:d": " "}
        queue = broker.create("orders", labels=labels, redrive=("dead", 1))
        assert queue.settings.labels == labels
        queue.update(visibility=5)
        broker.delete("dead")
        assert broker["orders"].settings == Settings(visibility=5, labels=labels)

    def test_an_update_changes_only_the_labels_that_it_names(self, broker: Broker) -> None:
        queue = broker.create("orders", labels={"a": "1", "b": "2", "none": None})
        assert queue.update(labels={"b": "3", "c": "4"}).labels == {"a": "1", "b": "3", "c": "4"}
        assert queue.update(labels={"a": None, "nobody": None}).labels == {"b": "3", "c": "4"}
        assert queue.update(labels={}).labels == broker["orders"].settings.labels == {"b": "3", "c": "4"}
        assert queue.update(labels={"b": None, "c": None}) == broker["orders"].settings == Settings()

    def test_a_queue_can_have_as_many_labels_as_the_limit_says(self, broker: Broker) -> None:
        most = {f"{number:03}" + "é" * 60: "漢" * (205 // 3) for number in range(200)}
        assert sum(len((name + text).encode()) for name, text in most.items()) == 65_400
        queue = broker.create("orders", labels=most)
        assert broker["orders"].settings.labels == most
        with pytest.raises(BadSetting, match="201 labels, the limit is 200"):
            queue.update(labels={"one more": ""})
        with pytest.raises(BadSetting, match="65583 bytes, the limit is 65536"):
            queue.update(labels={"000" + "é" * 60: "x" * 387})
        assert broker["orders"].settings.labels == most

    def test_labels_change_nothing_for_messages(self, broker: LocalBroker, clock: FakeClock) -> None:
        queue = broker.create("orders", labels={"b": "2", "a": "1"})
        other = LocalBroker(broker.store, clock=clock)["orders"]
        for turn in range(3):
            queue.send_many([b"x", b"y"])
            other.send(b"z")
            received = queue.receive(2) + other.receive(2)
            assert sorted(message.body for message in received) == [b"x", b"y", b"z"]
            assert (queue if turn else other).delete_many(received) == [True] * 3
            other.update(labels={"a": str(turn), "turn": "x"})
        assert queue.stats().messages == 0

    def test_changed_settings_touch_a_message_on_its_next_receive(self, broker: Broker, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"1")
        queue.receive()
        queue.update(visibility=1)
        clock.advance(2)
        assert queue.receive() == []
        queue.update(visibility=30, retention=10)
        clock.advance(28)
        assert queue.stats().messages == 1
        assert queue.receive() == []
        assert queue.stats().messages == 0

    def test_a_changed_redrive_policy_counts_on_the_next_receive(self, broker: Broker, queue: Queue) -> None:
        queue.send(b"1")
        queue.receive(visibility=0)
        dead = broker.create("dead")
        queue.update(redrive=("dead", 1))
        assert dead.stats().messages == 0
        assert queue.receive() == []
        assert dead.receive()[0].body == b"1"

    def test_stats_tell_each_message_once(self, queue: Queue, clock: FakeClock) -> None:
        assert queue.stats().oldest_age is None
        queue.send(b"received")
        queue.receive()
        clock.advance(2)
        queue.send(b"visible")
        queue.send(b"delayed", delay=10)
        stats = queue.stats()
        assert (stats.messages, stats.visible, stats.in_flight, stats.delayed) == (3, 1, 1, 1)
        assert (stats.blocked, stats.damaged, stats.settled) == (0, 0, 0)
        assert stats.oldest_age == 2
        clock.advance(30)
        stats = queue.stats()
        assert (stats.messages, stats.visible, stats.in_flight, stats.delayed) == (3, 3, 0, 0)

    def test_a_broker_knows_its_queues(self, broker: Broker, queue: Queue) -> None:
        assert "orders" in broker
        assert "nobody" not in broker
        assert [queue.name for queue in broker] == ["orders"]

    def test_a_queue_deleted_and_made_again_by_another_is_found_at_once(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        other = LocalBroker(broker.store, clock=clock)
        assert queue.stats().messages == 0
        other.delete("orders")
        with pytest.raises(QueueNotFound):
            queue.stats()
        other.create("orders").send(b"x")
        assert queue.stats().messages == 1

    def test_settings_changed_by_another_count_for_the_next_receive(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send_many([b"1", b"2", b"3"])
        (first,) = queue.receive()
        other = LocalBroker(broker.store, clock=clock)
        other["orders"].update(visibility=100)
        (second,) = queue.receive()
        assert second.visible_at - first.visible_at == 70_000_000
        other["orders"].update(mode="at_most_once")
        assert len(queue.receive()) == 1
        assert queue.stats().messages == 2, "the third was settled as it was received"
        other.delete("orders")
        with pytest.raises(QueueNotFound):
            queue.receive()

    def test_a_window_of_one_second_is_not_for_ever(self, broker: LocalBroker, clock: FakeClock) -> None:
        broker.create("ever", deduplicate=True)
        queue = broker.create("window", deduplicate=1)
        assert queue.settings.deduplicate is not True
        queue.send(b"x")
        LocalBroker(broker.store, clock=clock)["window"].update(deduplicate=True)
        assert queue.settings.deduplicate is True
        clock.advance(2)
        assert queue.send(b"x").duplicate is False
        clock.advance(2)
        assert queue.send(b"x").duplicate is True

    def test_a_closed_store_says_so(self, broker: Broker, queue: Queue) -> None:
        broker.close()
        for call in (lambda: queue.send(b"x"), queue.receive, queue.stats, lambda: broker.create("new")):
            with pytest.raises(StoreClosed, match="was closed"):
                call()

    def test_queues_do_not_see_each_other(self, broker: Broker, queue: Queue) -> None:
        other = broker.create("other")
        queue.send(b"mine")
        assert other.receive() == []
        assert other.stats().messages == 0
        assert queue.receive()[0].queue == "orders"

    def test_a_purge_removes_every_message_of_one_queue(self, broker: Broker, queue: Queue) -> None:
        broker.create("other").send(b"stays")
        queue.send_many([b"1", b"2"])
        queue.send(b"3", delay=60)
        (held,) = queue.receive()
        assert queue.purge() == 3
        assert queue.stats().messages == 0
        assert queue.delete(held) is False
        assert queue.purge() == 0
        assert broker["other"].stats().messages == 1

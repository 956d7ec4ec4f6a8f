"""The memory store keeps the contract; it is the specification."""

import pytest

from penstock import Draft
from penstock import open as open_broker
from penstock.publishing.segments import pack_drafts
from penstock.stores.memory import MemoryStore
from penstock.stores.memory.table import SLICE, Expiring, Table
from penstock.testing import StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted


class TestMemory(StoreContract, Interrupted, Handled, Forked):
    rounds = 20

    @pytest.fixture
    def url(self) -> str:
        return "memory:"


def test_a_publication_leaves_no_marks() -> None:
    with open_broker("memory:") as broker:
        broker.create("orders")
        broker.stage("w", 0, "a", pack_drafts("orders", [Draft(b"1"), Draft(b"2")]))
        assert broker.publish("w", 0, {"a": 2}) == 2
        assert isinstance(broker.store, MemoryStore)
        assert broker.store._tables.by_name["orders"].marks.records == {}


def test_a_message_whose_move_was_interrupted_is_in_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with open_broker("memory:") as broker:
        queue, other = broker.create("orders"), broker.create("others")
        queue.send(b"1")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Table, "remove", interrupt)
            queue.redrive(to="others")
        assert [len(queue.peek(9)), len(other.peek(9))] == [0, 1]
        assert [message.body for message in queue.receive(9) + other.receive(9)] == [b"1"]


def test_a_sweep_clears_a_part_and_says_whether_there_is_more() -> None:
    records: Expiring[str, int] = Expiring()
    for number in range(SLICE + 1):
        records.put(f"{number}", number, until=number)
    records.put("kept", 0, until=2 * SLICE)
    records.put("1", 1, until=3 * SLICE)  # kept for longer than at first
    assert records.sweep(SLICE)
    assert set(records.records) == {"kept", "1", f"{SLICE}"}
    assert not records.sweep(SLICE)
    assert set(records.records) == {"kept", "1"}


def test_records_that_were_removed_early_take_no_room() -> None:
    records: Expiring[str, int] = Expiring()
    for number in range(5 * SLICE):
        records.put(f"{number}", number, until=10**6)
        del records.records[f"{number}"]
    assert len(records._heap) <= SLICE + 2

"""The memory store keeps the contract; it is the specification."""

import pytest

from penstock import Draft
from penstock import open as open_broker
from penstock.publishing.segments import pack_drafts
from penstock.stores.memory import MemoryStore
from penstock.testing import StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted


class TestMemory(StoreContract, Interrupted, Handled, Forked):
    @pytest.fixture
    def url(self) -> str:
        return "memory:"


def test_a_publication_leaves_no_marks() -> None:
    with open_broker("memory:") as broker:
        broker.create("orders")
        broker.stage("w", 0, "a", pack_drafts("orders", [Draft(b"1"), Draft(b"2")]))
        assert broker.publish("w", 0, {"a": 2}) == 2
        assert isinstance(broker.store, MemoryStore)
        assert broker.store._queues["orders"].marks == {}

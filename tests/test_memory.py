"""The memory store keeps the contract; it is the specification."""

import pytest

from penstock.testing import StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted


class TestMemory(StoreContract, Interrupted, Handled, Forked):
    @pytest.fixture
    def url(self) -> str:
        return "memory:"

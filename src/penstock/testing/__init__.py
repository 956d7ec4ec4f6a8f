"""The contract that every store keeps, as tests: a new store is one fixture.

    from penstock.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore:///{tmp_path}/queue"

A store that several processes may open also takes `SharedStoreContract`. One that writes files takes `DurableStoreContract`, or
`FilesStoreContract` if each message is a file. One without ordered groups takes `UngroupedStoreContract` instead.
`DialectContract` tests the server in front of the store.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtra
from penstock.testing.clock import FakeClock

if TYPE_CHECKING:
    from penstock.testing.contract import (
        DurableStoreContract,
        FilesStoreContract,
        SharedStoreContract,
        StoreContract,
        UngroupedStoreContract,
    )
    from penstock.testing.dialects import DialectContract

__all__ = [
    "DialectContract",
    "DurableStoreContract",
    "FakeClock",
    "FilesStoreContract",
    "SharedStoreContract",
    "StoreContract",
    "UngroupedStoreContract",
]


def __getattr__(name: str) -> Any:
    """Import the contract on first use, so that the programs beside it start without pytest."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        pytest = import_module("pytest")
        import_module("hypothesis")
    except ImportError as error:
        raise MissingExtra("penstock.testing", "testing") from error
    modules = {f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("*.py")}
    pytest.register_assert_rewrite(*modules.difference(sys.modules))
    return getattr(import_module(f"{__name__}.{'dialects' if name == 'DialectContract' else 'contract'}"), name)

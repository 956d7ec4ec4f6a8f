"""The VSQS store keeps the contract."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from penstock.patience import Patience
from penstock.stores.files.vsqs import open_vsqs
from penstock.testing import FilesStoreContract, SharedStoreContract, UngroupedStoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted


class TestVsqs(UngroupedStoreContract, SharedStoreContract, FilesStoreContract, Interrupted, Handled, Forked):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"vsqs:///{tmp_path}/queues"

    @pytest.fixture
    def make_url_in(self) -> Callable[[Path], str]:
        return lambda folder: f"vsqs:///{folder}/queues"


def test_a_uuid_is_derived_from_queue_and_number_and_back(tmp_path: Path) -> None:
    store = open_vsqs(tmp_path / "queues", Patience())
    name = store.uuids.of("orders", "1415776871123")
    assert UUID(name).version == 8
    assert store.uuids.id_of("orders", name.upper()) == "1415776871123"
    assert store.uuids.id_of("others", name) is None
    assert store.uuids.id_of("orders", "no UUID") is None
    assert store.uuids.of("orders", "1415776871124") > name

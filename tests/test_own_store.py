"""The example of a store of one's own keeps the contract."""

import os
from pathlib import Path

import pytest

import penstock
from penstock import BadURL
from penstock.broker import open_local
from penstock.message import FOREVER
from penstock.stores.ports import Published
from penstock.testing import FakeClock, UngroupedStoreContract
from penstock.testing.interrupted import Interrupted
from penstock.testing.port_model import PortModel

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `sys.path` with what pip writes when it installs a package that has a store."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "own_store-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own-store\nVersion: 1.0\n")
    stores = {"own": "own_store:open_own_store", "broken": "no_such_module:open", "nameless": "own_store:no_such_name"}
    lines = [f"{scheme} = {where}\n" for scheme, where in stores.items()]
    (package / "entry_points.txt").write_text("[penstock.stores]\n" + "".join(lines))
    return folder


@pytest.fixture(autouse=True)
def _own_store_is_installed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (EXAMPLES, installed):
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


class TestOwnStore(UngroupedStoreContract, PortModel, Interrupted):
    interrupts = (200, 200)

    @pytest.fixture
    def url(self) -> str:
        return "own:"


@pytest.mark.parametrize("url", ["broken:", "nameless:"])
def test_a_store_that_cannot_be_imported_is_named(url: str) -> None:
    with pytest.raises(BadURL, match=f"the store of '{url[:-1]}' URLs, .*no_such_.*, cannot be imported"):
        penstock.open(url)


@pytest.mark.parametrize("url", ["owner:", "own"])
def test_a_scheme_that_nobody_offers_is_refused(url: str) -> None:
    with pytest.raises(BadURL, match="does not begin with one of"):
        penstock.open(url)


def test_a_batch_that_fails_changes_nothing() -> None:
    with open_local("own:", clock=FakeClock()) as broker:
        queue = broker.create("orders", history=60, deduplicate=True)
        queue.send_many([b"1", b"2"])
        (held,) = queue.receive()
        before = queue.peek(9), queue.stats()
        with pytest.raises(ZeroDivisionError), broker.store.batch():
            queue.send(b"3")
            queue.delete(held)
            queue.claim("reader", 0, 9)
            broker.create("others")
            with broker.store.outbox.ledger.publishing("writer"):
                broker.store.outbox.ledger.note("writer", Published(0), FOREVER)
                raise ZeroDivisionError
        assert (queue.peek(9), queue.stats()) == before
        assert queue.readers() == {}
        assert "others" not in broker
        assert queue.send(b"2").duplicate
        assert not queue.send(b"3").duplicate
        assert queue.delete(held)
        with broker.store.outbox.ledger.publishing("writer") as last:
            assert last is None

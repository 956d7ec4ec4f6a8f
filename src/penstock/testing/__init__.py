"""The contract that every store keeps, as tests: a new store is one fixture.

    from penstock.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore:///{tmp_path}/queue"

A store that several processes may open also takes `SharedStoreContract`; one that cannot keep ordered groups takes
`UngroupedStoreContract` instead.
"""

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    from penstock.errors import MissingExtra

    raise MissingExtra("penstock.testing", "testing") from error

pytest.register_assert_rewrite(
    *(
        f"penstock.testing.{name}"
        for name in (
            "catalogue",
            "sending",
            "receiving",
            "settling",
            "duplicates",
            "groups",
            "history",
            "claims",
            "refusals",
            "waking",
            "races",
            "crashes",
            "model",
        )
    )
)

from penstock.testing.clock import FakeClock  # noqa: E402
from penstock.testing.contract import SharedStoreContract, StoreContract, UngroupedStoreContract  # noqa: E402

__all__ = ["FakeClock", "SharedStoreContract", "StoreContract", "UngroupedStoreContract"]

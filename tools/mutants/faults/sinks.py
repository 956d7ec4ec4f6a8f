"""Faults in what Spark writes: the sink, and the pipelines that land messages."""

from __future__ import annotations

from planted import Mutant


def sink(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_sink.py", "tests/spark/test_digests.py"))


FAULTS = [
    sink("the sink gives no digest", "set_back", ("spark/sink.py", "None if once else f", "None if True else f")),
    sink(
        "what each task wrote is not counted",
        "set_back",
        ("spark/sink.py", "self.digest = (self.digest + digest_of(batch)) % WRAP", "pass"),
    ),
    sink(
        "the sink skips what it should report",
        "set_back",
        ("spark/sink.py", "if self._options.fail_on_data_loss:", "if False:"),
    ),
    sink(
        "the digest depends on the order of attributes",
        "order_and_the_parts",
        ("spark/digests.py", "sorted(value) if isinstance(value, list) else value", "value"),
    ),
    sink(
        "the digest counts a column of nulls",
        "order_and_the_parts",
        ("spark/digests.py", "column.drop_null()  #", "column  #"),
    ),
]

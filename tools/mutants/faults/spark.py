"""Faults in Spark."""

from __future__ import annotations

from planted import SQLITE_FILE, Mutant


def spark(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_source.py", "tests/spark/test_browse.py"))


def spark_kill(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in Spark's processes: how they start, and what they leave when they die."""
    return Mutant(name, tests, changes, ("tests/spark/test_kills.py", "tests/spark/test_session.py"))


def spark_damage(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_damage.py",))


FAULTS = [
    spark_damage(
        "what is damaged is read", "left_out_and_stays", ("spark/arrow_reader.py", "and not intact(rows):", "and False:")
    ),
    spark_damage(
        "only what is plain is checked",
        "left_out_and_stays",
        ("spark/arrow_reader.py", "return _all_intact(found)", "return True"),
    ),
    spark_damage(
        "what is damaged has been lost",
        "left_out_and_stays",
        ("spark/reading.py", "found += batch.num_rows\n            whole", "found += 0\n            whole"),
    ),
    spark("two copies of SQLite meet", "copy_of_sqlite", (SQLITE_FILE, "yield not any(", "yield True or any(")),
    spark(
        "a claim is forgotten when the next one fails",
        "is_not_forgotten",
        ("spark/stream.py", "self._claimed[name] = epoch  #", "pass  #"),
    ),
    spark(
        "a batch is not settled by the next", "set_back_is_noticed", ("spark/stream.py", "        self._settle(start)\n", "")
    ),
    spark(
        "a checkpoint set back is not noticed", "set_back_is_noticed", ("spark/stream.py", "if settled > epoch:", "if False:")
    ),
    spark(
        "a reader given up is not noticed",
        "given_up_is_noticed",
        ("spark/stream.py", "if reader in queue.readers():", "if True:"),
    ),
    spark(
        "available now never ends", "comes_later_stays", ("spark/stream.py", "min(pulse.at, self._target[name])", "pulse.at")
    ),
    spark(
        "a claim that was not logged is forgotten",
        "starts_again",
        ("spark/stream.py", "self._claimed.get(name) == epoch", "False"),
    ),
    spark_kill(
        "a batch is published as another's after a death",
        "die_at_every_step and sqlite",
        ("spark/sink.py", 'writer = context.getLocalProperty("sql.streaming.queryId")', "writer = str(uuid.uuid4())"),
    ),
    spark_kill(
        "a worker imports Spark before it connects",
        "connects_before",
        ("spark/worker.py", "    connected = connect(", '    __import__("pyspark")\n    connected = connect('),
    ),
    spark("filters let null pass", "never_comes", ("spark/filters.py", " AND {INSTANTS[column]} < {END}", "")),
]

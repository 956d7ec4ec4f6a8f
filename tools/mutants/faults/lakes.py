"""Faults in what is written to tables of Delta and Iceberg."""

from __future__ import annotations

from planted import Mutant

BATCHES, WRITING = "spark/lakes/batches.py", "spark/lakes/writing.py"
DELTA, ICEBERG, STORAGE = "spark/lakes/delta.py", "spark/lakes/iceberg.py", "spark/lakes/storage.py"


def lake(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_lakes.py",))


def piped(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_lake_pipelines.py",))


FAULTS = [
    lake(
        "a table gets a batch that is played again",
        "played_again",
        (BATCHES, "if last is not None and version <= last:\n        if", "if False:\n        if"),
    ),
    lake(
        "a batch with other rows passes for a replay",
        "other_rows_under",
        (BATCHES, "table.content(app) not in (None, writing.content_of(frame, varying))", "False"),
    ),
    lake(
        "an older batch passes for a replay",
        "other_rows_under",
        (BATCHES, "if version < last or table.content(app) not in (None, w", "if table.content(app) not in (None, w"),
    ),
    lake(
        "Delta is not told whose batch it is",
        "two_drivers_with_one_name and delta",
        (DELTA, "app_transactions=[Transaction(batch.app, batch.version, now)]", "app_transactions=[]"),
    ),
    lake(
        "PyIceberg repeats a commit that lost a race",
        "two_drivers_with_one_name and iceberg",
        (ICEBERG, 'table.metadata.properties[RETRIES] = "0"', "pass"),
    ),
    lake("a commit that lost a race is not repeated", "wait_for_nobody and iceberg", (BATCHES, "TRIES = 10", "TRIES = 1")),
    lake(
        "what a replay finds is not synced",
        "also_by_a_replay and delta",
        (BATCHES, "        _sync(table)\n        return", "        return"),
    ),
    lake("new columns are left out", "new_columns and delta", (BATCHES, "    if new:\n", "    if False:\n")),
    lake(
        "any type fits a column",
        "fits_not and delta",
        (BATCHES, "own != field.name or not _fits(field.type, has.field(own).type)", "own != field.name"),
    ),
    lake(
        "rows without a value are in no partition",
        "partitions_are_found and delta",
        (WRITING, "pc.is_null(column)\n", "pc.equal(column, column)\n"),
    ),
    lake(
        "a partition has the rows of all",
        "partitions_are_found and delta",
        (WRITING, "yield values, batch.filter(chosen)", "yield values, batch"),
    ),
    lake(
        "only the first rows of a file are in its statistics",
        "statistics_leave",
        (WRITING, "_bound(max(each.max for each in bounds))", "_bound(min(each.min for each in bounds))"),
    ),
    lake(
        "a library that is missing is not named", "names_its_extra", ("spark/lakes/tables.py", '"lakes") from', '"spark") from')
    ),
    piped(
        "an archive in a table takes a replay for other rows",
        "taken_for_a_replay",
        ("spark/pipelines/archive.py", 'VARYING = ("archived_at", "data")', "VARYING = ()"),
    ),
    piped(
        "a table is looked at with the first batch",
        "declared_pipeline and delta",
        ("spark/pipelines/declared.py", "            place.prepare(frame)\n", ""),
    ),
]

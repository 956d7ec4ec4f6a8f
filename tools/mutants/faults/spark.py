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


def pipeline(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    found = ("tests/spark/pipelines/test_progress.py", "tests/spark/pipelines/test_report.py")
    return Mutant(name, tests, changes, (*found, "tests/spark/pipelines/test_pipeline_commands.py"))


def far_away(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_far_away.py", "tests/spark/pipelines/test_reaching.py"))


FAULTS = [
    spark(
        "each queue has a partition of its own",
        "several_small_queues",
        (
            "spark/reading.py",
            "found[part].append(QueuePart(name, place, stop))",
            "found.append([QueuePart(name, place, stop)])",
        ),
    ),
    spark(
        "partitions depend on the driver's cores",
        "drivers_cores",
        ("spark/reading.py", "-(-size // USUAL_TASK) if parallelism is None", "os.cpu_count() if parallelism is None"),
        ("spark/reading.py", "import socket\n", "import os\nimport socket\n"),
    ),
    far_away(
        "the token stays on the driver",
        "drivers_token",
        ("spark/options.py", 'return self.text("token") or token_for(', 'return self.text("token") and token_for('),
    ),
    far_away(
        "an executor makes an empty database",
        "executors_do_not_see",
        ("spark/options.py", "if kind in FILES and not Path(path).exists():", "if False:"),
    ),
    far_away(
        "the cluster's cores do not count",
        "cluster_has_cores",
        ("spark/pipelines/access.py", "spark.sparkContext.defaultParallelism", "1"),
    ),
    far_away(
        "a master is not asked for before Spark starts",
        "master_that_is_not_there",
        ("spark/session.py", "        check_master(master)\n", "        pass\n"),
    ),
    far_away(
        "a dead port of Spark Connect is taken for something else",
        "connect_that_is_not_there",
        ("spark/reaching.py", "if (problem := _problem(host.strip(", "if False and (problem := _problem(host.strip("),
    ),
    pipeline(
        "an idle spell hides the next batch",
        "idle_spell",
        ("spark/pipelines/progress.py", 'return event["batchId"], event["timestamp"]', 'return event["batchId"], ""'),
    ),
    pipeline(
        "an observation of Spark Connect is read as another's",
        "observations_are_counted",
        ("spark/pipelines/observed.py", 'if found.keys() == {"values", "schema"}:', "if False:"),
    ),
    pipeline(
        "what is archived is unsettled",
        "archived_message",
        ("spark/pipelines/report.py", '"processed" if view == "archive" else "queued"', '"queued"'),
    ),
    pipeline(
        "what is archived and in the history is counted twice",
        "archived_message",
        ("spark/pipelines/report.py", 'f.coalesce("id", f.expr("uuid()"))', 'f.expr("uuid()")'),
    ),
    pipeline(
        "a move is silent about what stays",
        "tells_what_stays",
        ("cli/transfers.py", "return 0 if moved.proven and not stays else 1", "return 0 if moved.proven else 1"),
    ),
    pipeline(
        "bad rows are told as loaded",
        "tells_what_stays",
        ("spark/pipelines/load.py", "            done.rows -= done.bad\n", ""),
    ),
    pipeline(
        "Spark starts before a missing queue is told",
        "before_spark_starts",
        ("spark/options.py", "    if not names:\n        return\n", "    return\n"),
    ),
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
        "a replayed first batch answers for a fresh reader",
        "first_batch_is_noticed",
        ("spark/stream.py", 'self._check({**start, "reader": end["reader"]})', "self._check(start)"),
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

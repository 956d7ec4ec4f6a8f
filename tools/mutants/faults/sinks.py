"""Faults in what Spark writes: the sink, and the pipelines that land messages."""

from __future__ import annotations

from planted import Mutant


def sink(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_sink.py", "tests/spark/test_digests.py"))


def landed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_landing.py",))


def declared(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_declared.py",))


def checked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_checks.py",))


def outage(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_outages.py",))


def archived(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_archive.py",))


def replayed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_replay.py",))


def claimed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/test_claimed.py",))


def service(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/spark/pipelines/test_service.py", "tests/spark/test_source.py"))


ARCHIVE = "spark/pipelines/archive.py"
LANDING, TAKING = "spark/pipelines/landing.py", "spark/pipelines/taking.py"
CHECKS, LIMITS = "spark/pipelines/checks.py", "spark/pipelines/limits.py"

REPLAY, SETTLED = "spark/pipelines/replay.py", "spark/pipelines/settled.py"

CLAIMED = "spark/claimed.py"

FAULTS = [
    claimed(
        "a repeated read claims what has come since",
        "(same_rows or died_before) and sqlite",
        (CLAIMED, "if not any(claim.confirmed for claim in claims.values()):", "if True:"),
    ),
    claimed(
        "a repeated read is never confirmed",
        "given_up and sqlite",
        (CLAIMED, "queue.confirm(self._reader, self._epoch).size", "queue.claim(self._reader, self._epoch, 1).size"),
    ),
    replayed(
        "a replay chooses anew when it goes on", "whatever_becomes", (REPLAY, "if notes.read(CHOSEN) is None:", "if True:")
    ),
    replayed(
        "a replay that is done runs again", "once_under_each_name", (REPLAY, "if notes.read(SENT) is not None:", "if False:")
    ),
    replayed("a replay sends both copies of a message", "two_files_have", (REPLAY, '.dropDuplicates(["queue", "id"])', "")),
    replayed("the history is archived again", "history_is_archived", (SETTLED, "if not home.files():", "if True:")),
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
        ("spark/digests.py", "return sorted(value)\n", "return value\n"),
    ),
    sink(
        "the digest counts a column of nulls",
        "no_column",
        ("spark/digests.py", "column.drop_null()  #", "column  #"),
    ),
    landed(
        "what is landed is not synced",
        "synced_before_it_is_in_its_place",
        (LANDING, "            sync(file)\n", "            pass\n"),
    ),
    landed(
        "a replay is landed again",
        "replay_lands_nothing",
        (LANDING, "if batch <= newest:", "if False:"),
    ),
    landed(
        "other messages are taken for a replay",
        "replay_lands_nothing",
        (LANDING, "offset_of(place) == offset", "True"),
    ),
    landed(
        "a batch that may be replayed is settled",
        "all_have_committed_it",
        (LANDING, "committed is None or number > committed or ", ""),
    ),
    landed("a batch that one query has read is settled", "all_have_committed_it", (LANDING, "set.intersection(", "set.union(")),
    landed("messages are settled before the sinks are synced", "settled_after", (TAKING, "        sync()\n", "")),
    landed("the newest batch leaves no mark", "recognised_after", (LANDING, "if folder == newest:", "if False:")),
    declared(
        "messages are taken before the sinks are looked at",
        "mistake_in_a_sink",
        (
            "spark/pipelines/running.py",
            "(self._writers, self._takers, self._writers)",
            "(self._takers, self._writers)",
        ),
    ),
    declared(
        "messages leave the queue when they are landed",
        "stays_in_its_queue",
        (TAKING, 'options["settle"] = broker.queue(self._queue).settings.groups', 'options["settle"] = True'),
    ),
    declared(
        "what an abandoned checkpoint holds is passed over",
        "stays_in_its_queue",
        (TAKING, "if held and reader != own", "if False and reader != own"),
    ),
    declared(
        "a group waits for the sinks",
        "with_groups",
        (TAKING, 'options["settle"] = broker.queue(self._queue).settings.groups', 'options["settle"] = False'),
    ),
    declared(
        "the columns of a message are not tried",
        "mistake_in_a_sink",
        ("spark/pipelines/declared.py", "        Rows(rows.schema", "        (rows.schema"),
    ),
    declared(
        "Parquet is not tried",
        "mistake_in_a_sink",
        ("spark/pipelines/declared.py", "            self._try_parquet(sink.path, sink.partition, frame)\n", ""),
    ),
    checked(
        "a batch is landed before it is judged",
        "loses_nothing",
        (LANDING, "        if self.limits is not None:\n", "        if False:\n"),
    ),
    checked("a check that stops drops", "loses_nothing", (CHECKS, 'if check.action == "stop":', "if False:")),
    checked(
        "each query's rows are counted again",
        "every_figure",
        (CHECKS, "*max(self._counts.get(name, {}).values(), default=(0, 0))", "*map(sum, zip(*self._counts[name].values()))"),
    ),
    checked(
        "what a check has taken out is judged again",
        "every_figure",
        (CHECKS, "taken_by.isNull() & fails", "fails"),
    ),
    checked("aggregates have limits", "one_batch_decides", (LIMITS, "    if others:\n", "    if False:\n")),
    checked("a table joined with itself has limits", "one_batch_decides", (LIMITS, "plan.count(STREAM) > 1", "False")),
    service(
        "a stream does not pause",
        "stream_that_pauses",
        ("spark/stream.py", "Path(self._options.pause_file).exists()", "False"),
    ),
    service(
        "a drain ends before all is settled",
        "waits_for_what_is_landed",
        ("spark/pipelines/running.py", "return all(take.is_empty for take in self._takes) and not any(", "return not any("),
    ),
    service(
        "a drain has no end",
        "written_in_time",
        ("spark/pipelines/draining.py", "return self.over or self.drained()", "return self.drained()"),
    ),
    service(
        "mistakes are tried again",
        "does_not_pass",
        ("spark/pipelines/declared.py", "None if is_final(failed) or not is_alive(spark)", "None if not is_alive(spark)"),
    ),
    service(
        "a batch does not show that a restart has helped",
        "an_error_that_passes",
        ("spark/pipelines/declared.py", "failures = 1 if watched.figures.batches > batches else", "failures = 0 if False else"),
    ),
    service(
        "the lag is that of the last batch",
        "fresh",
        (
            "spark/pipelines/exposition.py",
            "sum(each.messages for each in lags.values()) if lags else figures.lag",
            "figures.lag",
        ),
    ),
    service(
        "one store that is away ends the look at the lag",
        "old_figures",
        ("spark/pipelines/lag.py", "                logger.debug(", "                return logger.debug("),
    ),
    outage(
        "an outage ends a stream at latestOffset",
        "asks_again",
        ("spark/stream.py", "    @insistent\n    def latestOffset(", "    def latestOffset("),
    ),
    outage(
        "an outage ends a stream at partitions",
        "asks_again",
        ("spark/stream.py", "    @insistent\n    def partitions(", "    def partitions("),
    ),
    outage(
        "an outage ends a stream at commit",
        "asks_again",
        ("spark/stream.py", "    @insistent\n    def commit(", "    def commit("),
    ),
    outage(
        "an outage ends a stream at reportLatestOffset",
        "asks_again",
        ("spark/stream.py", "    @insistent\n    def reportLatestOffset(", "    def reportLatestOffset("),
    ),
    outage(
        "an answer that was cut off ends a stream",
        "running_query",
        ("client/calls.py", "(StoreUnreachable if error.again else StoreError)", "StoreError"),
    ),
    archived("a path of an archive looks like a pattern", "any_name", (ARCHIVE, '.replace("}", "%7D")', "")),
    archived("a queue is taken for null", "any_name", (ARCHIVE, '"queue=%5F_HIVE_', '"queue=__HIVE_')),
    sink(
        "a version with other rows is taken for a repetition",
        "other_rows_is_told",
        ("spark/sink.py", "self._once = app is None or version is None", "self._once = True"),
    ),
    sink(
        "one version is one write to all queues",
        "done_once",
        ("spark/sink.py", "json.dumps([app, queue])", "json.dumps([app])"),
    ),
    sink(
        "every write has a new writer",
        "done_once",
        ("spark/sink.py", "_writer_of(app, options.queue), version", "self._writer, version"),
    ),
    outage(
        "an outage ends a task that reads",
        "asks_again",
        ("spark/reading.py", "insist(lambda: broker.queue", "(lambda act: act())(lambda: broker.queue"),
    ),
]

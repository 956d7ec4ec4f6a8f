"""Faults whose tests are in a file of their own."""

from __future__ import annotations

from planted import POSTGRES, POSTGRES_SQL, SQL_QUEUE, SQLITE_DATABASE, Mutant

MEMORY = "stores/memory/tables.py"
POLICY = "policy.py"
CONSUMER = "workers/consumer.py"


FAULTS = [
    Mutant(
        "a connection that only psycopg knows to be lost is kept",
        "did_not_report",
        ((POSTGRES, " or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)", ""),),
        ("tests/test_postgresql.py",),
    ),
    Mutant(
        "a send waits until the queue is cleared",
        "while_the_queue_is_being_cleared",
        (("broker.py", "Tender(beside=clock is None)", "Tender(beside=False)"),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "clearing goes on after a broker is closed",
        "closing_finishes",
        (("broker.py", "        self._tender.stop()\n", ""),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "what a reader settled stays until the queue is due",
        "though_the_queue_is_not_due",
        (("queue/named_claims.py", "        self._queue.tend_after_settling()\n", ""),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "old history goes all at once",
        "a_part_at_a_time",
        ((SQL_QUEUE, '{**fields, "now": last[0][0]} if last else fields', "fields"),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "a forked child waits for its parent's thread",
        "thread_of_its_own",
        (
            (
                "queue/retention.py",
                "            self._thread = None\n        self._lock.release()",
                "            pass\n        self._lock.release()",
            ),
            ("queue/retention.py", " or not self._thread.is_alive()", ""),
        ),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "others' messages are found late",
        "another_process_wakes",
        (("queue/watching.py", "LOOK_EVERY = 0.035", "LOOK_EVERY = 0.5"),),
        ("tests/test_memcached.py",),
    ),
    Mutant(
        "an interrupted removal closes a descriptor twice",
        "closes_no_descriptor_twice",
        (
            (
                "stores/disk.py",
                "for folder, folders, files in os.walk(",
                "import shutil; shutil.rmtree(path, ignore_errors=True)\n    for folder, folders, files in os.walk(",
            ),
        ),
        ("tests/test_files.py",),
    ),
    Mutant(
        "who counts settles all that has expired",
        "bounded_part",
        (("queue/retention.py", "SLICES = 10", "SLICES = 10**9"),),
        ("tests/test_retention.py",),
    ),
    Mutant(
        "a claim goes by settings that have changed",
        "TestPostgresql and settings_changed",
        ((POSTGRES_SQL, "AND settings = :settings AND NOT EXISTS (", "AND :settings <> '' AND NOT EXISTS ("),),
        ("tests/test_postgresql.py",),
    ),
    Mutant(
        "a refused connection makes a lost answer known",
        "nobody_listens",
        (("client/calls.py", "if lost is not None and changes", "if isinstance(problem, OutcomeUnknown) and changes"),),
        ("tests/test_server_client.py",),
    ),
    Mutant(
        "a proxy's error is an answer",
        "proxy_says",
        (("client/calls.py", "if status >= 500:", "if status >= 600:"),),
        ("tests/test_server_client.py",),
    ),
    Mutant(
        "the random plans are the same in each run",
        "plays_others",
        (("testing/model.py", "seed(first)(run)", "seed(0)(run)"),),
        ("tests/test_model.py",),
    ),
    Mutant(
        "a failed plan does not tell its seed",
        "name_the_seed",
        (("testing/model.py", "error.add_note(told)", "pass"),),
        ("tests/test_model.py",),
    ),
    Mutant(
        "a consumer has no name",
        "consumer_is_the_holder",
        ((CONSUMER, ', "holder": self._heart.name}', "}"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "memory goes by the wall clock",
        "wall_clock",
        (
            ("stores/ports.py", "return MachineClock()", "return system_clock"),
            ("stores/ports.py", "import Clock, MachineClock", "import Clock, MachineClock, system_clock"),
        ),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a desk stages by the wall clock",
        "staged_by_the_stores_clock",
        (
            (
                "broker.py",
                "durable=False, beside=path), clock)",
                "durable=False, beside=path), lambda: __import__('time').time_ns() // 1000)",
            ),
        ),
        ("tests/test_clock.py",),
    ),
    Mutant(
        "an interrupted verb is never mended",
        "interrupt_at_any_instant",
        ((MEMORY, "            self._mend()\n", ""),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "an interrupted move leaves a message in both queues",
        "whose_move_was_interrupted",
        (("stores/memory/table.py", "            if id in target.rows:\n", "            if False:\n"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a confirmed claim in memory lapses",
        "confirm",
        (("stores/parts.py", "records.extend(receipt, FOREVER, release=False)", "pass"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a settled epoch can be settled back",
        "settled_late",
        (("stores/parts.py", "epoch if known.settled is None else max(epoch, known.settled)", "epoch"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "what a claim has set aside is deleted with it",
        "set_aside or aside or damaged",
        (("stores/parts.py", "message is not None and message.state is not State.DAMAGED", "message is not None"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a store of another package is not found",
        "own_store and messages_come",
        (("broker.py", "STORES.get(scheme) or _find_opener(scheme) if colon", "STORES.get(scheme) if colon"),),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a publication that fails is noted",
        "fails_changes_nothing",
        (("stores/memory/outbox.py", "self._writers = before  # the batch is undone as well", "pass"),),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a name may be in any Unicode form",
        "bad_name",
        ((POLICY, 'if not unicodedata.is_normalized("NFC", name):', "if False:"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a mode is any word",
        "bad_setting",
        ((POLICY, "mode = Mode(settings.mode)", "mode = settings.mode  # type: ignore[assignment]"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "an attribute may be infinite",
        "bad_draft",
        ((POLICY, "if isinstance(value, float) and not math.isfinite(value):", "if False:"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a claim in memory looks past its instant",
        "random_verbs",
        (
            (
                "stores/memory/table.py",
                "limit, now = claiming.limit, claiming.at",
                "limit, now = claiming.limit, claiming.now",
            ),
        ),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a deletion in memory goes by any settings",
        "random_verbs",
        (
            (
                "stores/memory/queue.py",
                "if settings is not None and table.settings != settings:",
                "if False:",
            ),
        ),
        ("tests/test_own_store.py",),
    ),
    Mutant(
        "a sweep in memory clears everything at once",
        "clears_a_part",
        (("stores/memory/table.py", "for _ in range(SLICE):", "for _ in range(10**9):"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a mark that was removed early keeps its place",
        "take_no_room",
        (("stores/memory/table.py", "if len(self._heap) > 2 * len(self.records) + SLICE:", "if False:"),),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a claim in memory deletes nothing",
        "exchange",
        (
            (
                "stores/memory/queue.py",
                "for receipt in receipts] if settlement is not None else []",
                "for receipt in ()] if settlement is not None else []",
            ),
        ),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "a fork takes locks in another order than the threads",
        "forked_at_any_moment",
        (
            ("forking.py", "in tuple(_watched)", "in reversed(_watched)"),
            (
                "queue/dead_letters.py",
                "        return True\n",
                "        self._queue.waiting.notify()\n        return True\n",
            ),
        ),
        ("tests/test_memory.py",),
    ),
    Mutant(
        "who joins waits for the store's turn",
        "waits_for_no_thread",
        (
            (
                SQLITE_DATABASE,
                "        database = SqliteDatabase(self.file.over(connection), self.statements, self.ids)\n",
                "        database = SqliteDatabase(self.file.over(connection), self.statements, self.ids)\n"
                "        database.lock = self.lock\n",
            ),
        ),
        ("tests/test_joining.py",),
    ),
    Mutant(
        "the other copy of SQLite is let in",
        "other_copy_of_sqlite",
        ((SQLITE_DATABASE, 'base.__module__ == "sqlite3"', "False"),),
        ("tests/test_joining.py",),
    ),
    Mutant(
        "the filter of the crash tests does not have a call",
        "go_past_the_filter",
        (("testing/faults.py", '    "renameat2": (316, 276),\n', ""),),
        ("tests/test_faults.py",),
    ),
    Mutant(
        "the service does not count attributes",
        "attributes_count",
        (("message.py", "(sum(map(_weigh, message.attributes.items())) if message.attributes else 0)", "0"),),
        ("tests/test_server_limits.py",),
    ),
]

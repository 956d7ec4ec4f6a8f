"""Faults in producers, consumers, clocks and signal handlers."""

from __future__ import annotations

from planted import BATCHES, FILE_TIMES, SQLITE_DATABASE, TRANSACTIONS, Mutant


def handled(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in producers, or in where callbacks run."""
    return Mutant(name, tests, changes, ("tests/test_producers.py", "tests/test_runners.py"))


def clocked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the steady clock."""
    return Mutant(name, tests, changes, ("tests/test_clock.py",))


def refused(where: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in refusing a signal handler inside a batch."""
    return Mutant(f"{where}: a signal handler becomes part of a batch", "handler", changes, ("tests/test_handlers.py",))


FAULTS = [
    refused(
        "a statement that waits",
        (SQLITE_DATABASE, "elif self.file.pausing is not None:", "elif False:"),
    ),
    handled(
        "what was settled is not run",
        "told_to_stop",
        ("workers/consumer.py", "if self._mode is Mode.AT_LEAST_ONCE:  #", "if True:  #"),
    ),
    handled("a coroutine is dropped", "returns_an_awaitable", ("workers/executors.py", "inspect.isawaitable(result)", "False")),
    handled(
        "the call of an object is not looked at", "whose_call", ("workers/executors.py", "(type(handler).__call__)", "(type)")
    ),
    handled(
        "an exit ends the loop",
        "coroutine_that_exits",
        ("workers/executors.py", "suppress(SystemExit, KeyboardInterrupt)", "suppress()"),
    ),
    handled(
        "who cancels itself is given back",
        "cancels_itself",
        ("workers/executors.py", "raise Failure(reads(error)) from error", "raise"),
    ),
    handled("exceptions are sent themselves", "cannot_be_sent", ("workers/executors.py", "return reads(error)", "raise")),
    handled(
        "what is returned is sent",
        "does_not_matter",
        ("workers/executors.py", "submit(call_apart, self._handler", "submit(self._handler"),
    ),
    handled(
        "a process that dies takes the others along",
        "its_own_message",
        ("workers/executors.py", "Executor] = {}", "Executor] = dict.fromkeys(range(workers), make())"),
        ("workers/executors.py", "ProcessPoolExecutor(1,", "ProcessPoolExecutor(workers,"),
    ),
    handled(
        "a loop is left behind",
        "no_thread_behind",
        ("workers/consumer.py", "            runner.close()\n", "            pass\n"),
    ),
    handled(
        "a queue that is gone ends the thread",
        "is_back",
        ("workers/producer.py", "except PenstockError as", "except OSError as"),
    ),
    handled("a dead thread is kept", "started_again", ("workers/producer.py", " or not self._thread.is_alive()", "")),
    handled("all is pushed at once", "than_a_batch_holds", ("workers/producer.py", "[: policy.MAX_BATCH]", "[:]")),
    handled(
        "a batch that was pushed is kept",
        "than_a_batch_holds",
        ("workers/producer.py", "(token, batch), rest", "(token, batch), batch + rest"),
    ),
    handled(
        "a thread starts a handler too late",
        "waited_for_its_turn and threads",
        (
            "workers/executors.py",
            "    def _run(self, message: Message) -> None:\n        self._check(message)\n",
            "    def _run(self, message: Message) -> None:\n",
        ),
    ),
    handled(
        "a process starts a handler too late",
        "waited_for_its_turn and processes",
        (
            "workers/executors.py",
            "        self._check(message)\n        return self._processes",
            "        return self._processes",
        ),
    ),
    handled(
        "a coroutine starts a handler too late",
        "waited_for_its_turn and coroutines",
        (
            "workers/executors.py",
            "            self._check(message)\n            try:\n                await",
            "            try:\n                await",
        ),
    ),
    handled(
        "a foreign error ends the heartbeats",
        "no_error_ends",
        ("workers/heartbeat.py", "except BaseException:", "except OSError:"),
    ),
    handled(
        "at most once, a process that died is not counted",
        "down_has_failed",
        ("workers/consumer.py", "counts = self._mode is Mode.AT_MOST_ONCE or", "counts ="),
    ),
    handled("the child waits for its parent's lock", "after_a_fork", ("workers/producer.py", "        watch(self)\n", "")),
    clocked(
        "the clock is the wall clock",
        "none_of_the_stores or first_process or followed_no_further",
        (
            "clock.py",
            "        now = self._steady()\n        until, offset",
            "        return self._wall()\n        until, offset",
        ),
    ),
    clocked("a step is adopted at once", "two_percent or none_of_the_stores", ("clock.py", "SHARE = 50", "SHARE = 1")),
    clocked("a step is never made up", "two_percent", ("clock.py", "rest=target - (begun", "rest=0 * target - 0 * (begun")),
    clocked(
        "a new course begins before all know it", "agree_at_every_moment", ("clock.py", "LEAD = 3_000_000", "LEAD = 300_000")
    ),
    clocked(
        "the record is read only once",
        "agree_at_every_moment",
        ("clock.py", 'course = self._records.read(name or "") or', "course = self._course or"),
    ),
    clocked(
        "time runs backwards over a reboot",
        "run_backwards",
        ("clock.py", "start = max(course.at, self._records.seen())", "start = course.at"),
    ),
    clocked("nobody tells the store the time", "run_backwards", ("clock.py", "if now >= self._touch_at:", "if False:")),
    clocked(
        "each process that opens a new store has a clock of its own",
        "open_a_new_store or one_decides",
        (
            "stores/clock_files.py",
            "                os.unlink(draft)\n                return found",
            "                return course",
        ),
    ),
    clocked(
        "another boot's record is used",
        "restored_on_another_boot",
        ("clock.py", "if name != self._boot:", "if name is None:"),
    ),
    clocked(
        "a step is not counted",
        "counted_and_logged_once or operators_see",
        ("clock.py", "self.steps += 1", "self.steps += 0"),
    ),
    clocked(
        "a short write replaces the clock's record",
        "full_disk",
        ("stores/clock_files.py", "if os.write(handle, content) < len(content):", "if os.write(handle, content) < 0:"),
    ),
    clocked(
        "the clock's record is dated by the wall clock",
        "run_backwards or killed_process_left",
        ("stores/clock_files.py", "            os.utime(handle, ns=(now * 1000, now * 1000))\n", ""),
        ("stores/clock_files.py", 'if not entry.name.endswith("~")', ""),
    ),
    clocked(
        "a step of a database's clock goes unnoticed",
        "databases_clock",
        ("server_clock.py", "self._tell(offset, noise, now - self._asked_at)", "pass"),
    ),
    clocked(
        "a mover goes by the wall clock",
        "mover_goes",
        ("cli/daemons.py", "spool.move_on(clock(),", "spool.move_on(__import__('time').time_ns() // 1000,"),
    ),
    clocked(
        "a wall clock set forward makes files old",
        "set_forward_makes_no_file_old",
        (FILE_TIMES, "for now in (time.time(), _unstepped() / 1_000_000)]", "for now in (time.time(),)]"),
    ),
    refused("files", (BATCHES, "refuse_handlers(self, self._opener)", "pass")),
    refused("servers", (TRANSACTIONS, "refuse_handlers(self._driver, self.here.opener)", "pass")),
    refused("SQLite", (SQLITE_DATABASE, "refuse_handlers(self, self._opener)", "pass")),
    refused(
        "files: a handler is refused for ever",
        (BATCHES, "                    self._opener = None\n", "                    pass\n"),
    ),
]

"""Faults in schedules."""

from __future__ import annotations

from planted import Mutant

TIMES, RULES, BOOK = "schedules/times.py", "schedules/schedule.py", "schedules/book.py"
SCHEDULER = "schedules/scheduler.py"
SERVED = "server/dialects/native_schedules.py"


def scheduled(name: str, tests: str, *changes: tuple[str, str, str], files: tuple[str, ...] = ()) -> Mutant:
    """A fault that does not depend on the store."""
    return Mutant(f"schedules: {name}", tests, changes, files or ("tests/test_schedules.py",))


def stored(name: str, tests: str, *changes: tuple[str, str, str], store: str = "memory") -> Mutant:
    """A fault that the contract of a store finds."""
    return Mutant(f"schedules: {name}", tests, changes, (f"tests/test_{store}.py",))


FAULTS = [
    scheduled("an hour that exists twice is asked for again", "edges_of_the_calendar", (TIMES, "if found > at:", "if True:")),
    scheduled(
        "the clock on the wall is compared",
        "edges_of_the_calendar",
        (TIMES, "moment.astimezone(UTC)", "moment.replace(tzinfo=UTC)"),
    ),
    scheduled("only the last hour is looked at", "missed_for_years", (TIMES, "(*SPANS, by - after)", "SPANS[:1]")),
    scheduled(
        "what was missed is looked for from the beginning",
        "missed_for_years",
        (TIMES, "SPANS = (HOUR, DAY,", "SPANS = ("),
        (TIMES, "8 * DAY, 64 * DAY, 400 * DAY", ""),
    ),
    scheduled(
        "seconds are counted from now",
        "wherever_one_begins or seconds_are_counted",
        (TIMES, "yield self._since + following", "yield at + following"),
    ),
    scheduled("a cron expression may have seconds", "cannot_be_a_schedule and InMemory", (TIMES, "!= FIELDS:", "== 4:")),
    stored(
        "one that is paused is resumed by its program",
        "declare_its_schedules",
        (BOOK, "known is not None and known.paused", "False"),
    ),
    stored(
        "a declaration begins the times anew",
        "declare_its_schedules",
        (BOOK, "for part in RULE)", "for part in RULE) and False"),
    ),
    stored("what was missed is always sent", "a_minute_late", (RULES, "late = missed == SKIP and", "late = False and")),
    stored("all that was missed is sent once", "what_was_missed", (RULES, "MOST_MISSED if missed == ALL else 1", "1")),
    stored(
        "a pause is made up for",
        "makes_up_for_nothing",
        (RULES, '("cron", "every", "zone", "paused")', '("cron", "every", "zone")'),
    ),
    stored(
        "a lost record is made up for",
        "record_is_lost",
        (RULES, "max(min(since, now), now - LATE * SECOND)", "min(since, now)"),
    ),
    stored(
        "a version that does not count is sent",
        "killed_change_has_left",
        (BOOK, "not in (None, kept.revision):  #", "is Ellipsis:  #"),
    ),
    stored(
        "what another program has written is deleted",
        "keeps_no_schedule",
        (BOOK, "self._queue(SCHEDULES).release(message, AGAIN)", "self._queue(SCHEDULES).delete(message)"),
    ),
    stored(
        "the claim is trusted",
        "all_processes_find_it_due",
        (
            BOOK,
            "record = read_record(noted)\n            if record.revision not",
            "record = ScheduleRecord(None, kept.since)\n            if record.revision not",
        ),
    ),
    stored(
        "a queue that is gone stops a schedule",
        "queue_that_is_gone",
        (BOOK, "(BadInput, QueueNotFound, Unsupported) as error", "BadInput as error"),
    ),
    stored(
        "what was sent is not recorded with it",
        "killed_at_any_step",
        (BOOK, "        self._note(name, sent)\n        forget()", "        forget()"),
        store="sqlite",
    ),
    stored(
        "a message is sent without the journal",
        "killed_at_any_step",
        (
            BOOK,
            "forget = self._ledger.insert_once(step, queue, entries, now, settings)",
            "self._store.queue(queue).insert(entries, now, settings)\n                forget = _do_nothing",
        ),
        store="vsqs",
    ),
    scheduled("the others have no turns", "all_that_was_missed_is_bounded", (BOOK, "PIECE = 100", "PIECE = 10_000")),
    scheduled("a store has any number", "limit_of_schedules", (BOOK, "span()[0] >= MOST", "span()[0] < 0")),
    scheduled("cron goes by the store's clock", "wall_clock", (BOOK, "return found if abs(found) > STEP else 0", "return 0")),
    scheduled(
        "a step of the wall clock is not noticed",
        "set_forward",
        (BOOK, "if next_at is None or message.visible_at", "if True or message.visible_at"),
    ),
    scheduled(
        "a clock that was ahead stops a schedule",
        "years_ahead",
        (RULES, "if record.after <= now + SET_BACK * SECOND else now", ""),
    ),
    scheduled(
        "without the library a schedule is lost",
        "without_the_library",
        (
            BOOK,
            "except (BadInput, MissingExtra) as error:\n                self._leave(message, str(error))",
            "except (BadInput, MissingExtra):\n                message.delete()",
        ),
    ),
    scheduled(
        "one that fails holds up the others",
        "one_bad_schedule",
        (SCHEDULER, "                self._run(message)", "                self._book.run(message)"),
    ),
    scheduled(
        "a store that fails ends the scheduler",
        "store_that_fails",
        (
            SCHEDULER,
            'except PenstockError as error:\n                logger.warning("schedules cannot',
            'except PenstockError as error:\n                return\n                logger.warning("schedules cannot',
        ),
    ),
    scheduled(
        "a scheduler looks all the time",
        "rests_until",
        (SCHEDULER, "self._waiting.rest(SCHEDULES, events, min(time.monotonic() + pause, look_at))", "time.sleep(0.01)"),
    ),
    scheduled(
        "a scheduler is not told of a new schedule",
        "rests_until",
        (
            SCHEDULER,
            "self._waiting.rest(SCHEDULES, events, min",
            "self._waiting.rest('none', self._waiting.events('none'), min",
        ),
    ),
    scheduled("a consumer runs no schedules", "consumer_runs", ("broker.py", "    _beside = scheduler\n", "")),
    scheduled(
        "a consumer always runs schedules",
        "leave_schedules",
        ("broker.py", "self._beside() if schedules else nullcontext()", "self._beside()"),
    ),
    scheduled(
        "a server runs no schedules",
        "server_runs_the_schedules_of",
        ("server/app.py", "        self._scheduling.start()\n", ""),
    ),
    scheduled(
        "a schedule may send to any queue",
        "only_schedules_of_its_own",
        (SERVED, "    if after is not None:\n        grant.check(Scope.SEND, after.queue)", "    pass"),
    ),
    scheduled(
        "a schedule of others may be taken over",
        "only_schedules_of_its_own",
        (SERVED, '        raise Refused(403, f"schedule', '        return\n        raise Refused(403, f"schedule'),
    ),
    scheduled(
        "a token may change any schedule",
        "only_schedules_of_its_own",
        (SERVED, "            grant.check(Scope.ADMIN, each.queue)", "            pass"),
    ),
    scheduled(
        "all schedules are listed to everybody",
        "only_schedules_of_its_own",
        (SERVED, "if grant.allows(Scope.COUNT, each.queue)]", "]"),
    ),
    scheduled(
        "what a schedule sends is shown to everybody",
        "only_schedules_of_its_own",
        (SERVED, "return schedule if grant.allows(Scope.READ, schedule.queue) else", "return schedule if True else"),
    ),
    scheduled(
        "the attributes of a schedule are unlimited",
        "refused_and_changes_nothing and InMemory",
        (RULES, "for text in (draft.body, *texts)", "for text in (draft.body,)"),
    ),
    scheduled(
        "the list of schedules has no budget",
        "schedules_counts_in_the_budget",
        (SERVED, "sum(HEAD + measure(each.draft) for each in shown)", "0"),
        files=("tests/test_page_attacks.py",),
    ),
    scheduled(
        "the page lists all schedules to everybody",
        "schedules_are_told",
        (
            "server/page/data.py",
            "shown = [each for each in found if request.grant.allows(Scope.COUNT, each.queue)]",
            "shown = found",
        ),
        files=("tests/test_page_data.py",),
    ),
    scheduled(
        "the page removes without a question",
        "schedules_are_seen",
        ("server/page/assets/schedules.js", '(deed === "remove" && !(await confirm(', "(false && !(await confirm("),
        files=("tests/test_page_browser_lists.py",),
    ),
]

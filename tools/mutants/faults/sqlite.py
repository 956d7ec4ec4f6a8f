"""Faults in SQLite, and the rules that every store follows."""

from __future__ import annotations

from planted import (
    CLAIM_ROWS,
    COMMON_SQL,
    MESSAGE,
    POSTGRES_SQL,
    PUBLISHING,
    RUNS,
    SQL_EXTENDING,
    SQL_MOVING,
    SQL_QUEUE,
    SQLITE_DATABASE,
    SQLITE_FILE,
    Mutant,
)

SQLITE_SQL = "stores/sqlite/sqlite.sql"
SQLITE_ALONE = "stores/sqlite/shortcuts.py"
DELETING = "stores/sql/deleting.py"
SQL_GROUPS = "stores/sql/groups.py"
ROWS = "stores/sql/rows.py"
SCHEMA = "stores/sql/schema.sql"
LISTS = "stores/sql/readers.py"
LEDGER = "stores/sql/ledger.py"
QUEUE = "queue/queue.py"
COMMIT = 'f"RELEASE verb{depth}" if depth else "COMMIT"'
BEGIN = 'f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE"'


def mutant(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes)


def ruled(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in what SQL computes and the rules say."""
    return Mutant(name, "rules", changes, ("tests/test_sql_rules.py",))


FAULTS = [
    mutant(
        "what an older file had deleted comes back",
        "to_be_removed_later",
        ("stores/sqlite/words.py", "DELETE FROM penstock_message WHERE number IN (SELECT number FROM penstock_gone);", ""),
    ),
    mutant(
        "stale receipts delete, many at once",
        "stale_receipt_cannot_delete or many_stale",
        (
            SQLITE_SQL,
            "AND delivery = :delivery AND delivery > 0\n    AND grp",
            "AND COALESCE(:delivery, 0) >= 0 AND delivery > 0\n    AND grp",
        ),
    ),
    mutant(
        "given back twice",
        "gives_each_message_once",
        (RUNS, " or (len(own) > 1 and now <= max(run.end_at for run in own))", ""),
    ),
    mutant(
        "an undone claim counts in another transaction",
        "counts_in_no_later_batch",
        (SQLITE_DATABASE, "                    self.uncounted.clear()\n", ""),
        (SQLITE_DATABASE, "                self.uncounted = uncounted\n", ""),
    ),
    mutant(
        "who is buried at most once was not received",
        "before_a_burial",
        (SQL_MOVING, '            database.run("claim", (now, now, None, number))\n', ""),
    ),
    mutant(
        "a claim is counted twice",
        "in_the_same_batch",
        (SQL_MOVING, "            del database.uncounted[number, receipt.delivery]\n", ""),
    ),
    mutant(
        "no sync",
        "power_cut",
        (SQLITE_DATABASE, "{'FULL' if durable else 'NORMAL'}", "OFF"),
        (SQLITE_FILE, "= FULL;", "= OFF;"),
    ),
    mutant(
        "NORMAL instead of FULL",
        "power_cut",
        (SQLITE_DATABASE, "'FULL' if durable", "'NORMAL' if durable"),
        (SQLITE_FILE, "= FULL;", "= NORMAL;"),
    ),
    mutant(
        "answer before commit",
        "kill_9",
        (SQLITE_DATABASE, 'f"RELEASE verb{depth}" if depth else "COMMIT"', 'f"RELEASE verb{depth}" if depth else "SELECT 1"'),
        (
            SQLITE_DATABASE,
            'self._execute(connection, f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE")',
            'None if depth or connection.get_autocommit() else connection.execute("COMMIT")\n'
            f"                self._execute(connection, {BEGIN})",
        ),
    ),
    mutant(
        "select, then update, with nothing between to stop others",
        "processes_get or eight_threads",
        (SQLITE_DATABASE, 'f"RELEASE verb{depth}" if depth else "COMMIT"', '"SELECT 1"'),
        (SQLITE_DATABASE, 'f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE"', '"SELECT 1"'),
    ),
    mutant(
        "a stale receipt deletes",
        "stale_receipt_cannot_delete",
        (SQLITE_SQL, "delivery = COALESCE(:delivery, delivery)\nRETURNING", "COALESCE(:delivery, 0) >= 0\nRETURNING"),
    ),
    mutant(
        "a stale receipt deletes, alone",
        "stale_receipt_cannot_delete",
        (
            SQLITE_SQL,
            ":number AND delivery = :delivery AND delivery > 0",
            ":number AND COALESCE(:delivery, 0) >= 0 AND delivery > 0",
        ),
    ),
    mutant(
        "an old number is used again",
        "never_used_again",
        (SQLITE_ALONE, "database.spare = (first + done, last)", "database.spare = (first, last)"),
    ),
    mutant(
        "changed settings are not noticed",
        "changed_by_another",
        (SQLITE_SQL, "AND settings = :settings", "AND :settings <> ''"),
    ),
    mutant(
        "a stale receipt extends",
        "stale_receipt_cannot_extend",
        (SQL_EXTENDING, "number, found.number, receipt.delivery))", "number, found.number, None))"),
    ),
    mutant(
        "a stale receipt releases",
        "stale_receipt_cannot_release",
        (
            SQL_EXTENDING,
            "number, found.number, receipt.delivery))",
            "number, found.number, None if state is State.QUEUED else receipt.delivery))",
        ),
    ),
    mutant(
        "extend does nothing",
        "an_extension_hides",
        (COMMON_SQL, "CASE WHEN visible_at < 0 THEN -:until ELSE :until END", "visible_at + 0 * :until"),
    ),
    mutant(
        "the receive count is lost",
        "visibility_ends or too_often",
        (COMMON_SQL, "receives = receives + 1", "receives = receives"),
    ),
    mutant("redrive one too early", "too_often", ("policy.py", "message.receives > settings", "message.receives >= settings")),
    mutant(
        "redrive one too late", "too_often", ("policy.py", "message.receives > settings", "message.receives - 1 > settings")
    ),
    mutant(
        "claim and burial in two transactions",
        "killed_at",
        ("queue/receiving.py", "with queue.store.batch(durable=chosen is Mode.AT_MOST_ONCE):", "if True:"),
    ),
    mutant(
        "mark and message in two transactions",
        "killed_at",
        (SQL_QUEUE, "        with database.joined():\n            alone =", "        if True:\n            alone ="),
    ),
    mutant(
        "a window forgotten once the first is deleted",
        "within_the_window",
        (COMMON_SQL, " AND number = :number AND expires_at = :forever", " AND number = :number AND :forever > 0"),
    ),
    mutant("duplicates forgotten", "equal_message_in_the_queue", (SQL_QUEUE, "if first is not None:", "if first is False:")),
    mutant(
        "at most once, twice",
        "claim_settles_the_message",
        ("queue/receiving.py", "if chosen is Mode.AT_MOST_ONCE:", "if chosen is None:"),
    ),
    mutant(
        "the delay is ignored",
        "a_delay_hides",
        ("policy.py", "        visible_at,\n        expires_at,\n", "        now,\n        expires_at,\n"),
    ),
    mutant(
        "the deadline is ignored",
        "past_its_deadline",
        ("policy.py", "if overdue(message, mode, now):", "if False:"),
    ),
    mutant(
        "last in, first out",
        "order_sent",
        (
            COMMON_SQL,
            "ORDER BY visible_at, number LIMIT :limit {skip_locked}",
            "ORDER BY visible_at DESC, number LIMIT :limit {skip_locked}",
        ),
    ),
    mutant("the body is changed", "any_bytes", (ROWS, "head, check, body\n", 'head, check, body.replace(b"\\r\\n", b"\\n")\n')),
    mutant(
        "claims are lost at restart",
        "survive_a_restart",
        (SCHEMA, "CREATE TABLE penstock_held", "CREATE TEMP TABLE penstock_held"),
    ),
    mutant("a confirmed claim lapses", "never_lapses", (LISTS, "extend(queue, claim, FOREVER)\n", "extend(queue, claim, 0)\n")),
    mutant("a confirmed claim wakes", "never_lapses", (COMMON_SQL, ":forever, asleep = 0 WHERE", "lapses_at WHERE")),
    mutant(
        "what lapsed sleeps on, for who looks",
        "redriven_once",
        (SQL_QUEUE, "        if now is not None:\n            self._runs.wake(self._name, now)\n", ""),
    ),
    mutant(
        "what lapsed sleeps on, for who receives",
        "lapsed",
        (SQL_QUEUE, "floor = self._runs.floor(found, claiming.at)", "floor = found.floor"),
    ),
    mutant(
        "what lapses is not waited for",
        "whoever_looks",
        (
            SQLITE_SQL,
            "SELECT MIN(lapses_at) AS at FROM penstock_claim WHERE queue = penstock_queue.number AND asleep = 1\n",
            "SELECT NULL AS at\n",
        ),
    ),
    mutant(
        "what is sent comes to lie below the floor",
        "clock_is_set_back",
        (RUNS, "        if earliest >= floor_at:\n", "        if True:\n"),
        (SQLITE_SQL, "AND floor_at <= :earliest", "AND floor_at <= :earliest + 2000000000"),
    ),
    mutant(
        "what is released comes to lie below the floor",
        "comes_back_beside",
        (SQL_EXTENDING, "runs.touch(found, receipts, until)", "runs.touch(found, receipts)"),
    ),
    mutant(
        "what is moved comes to lie below the floor",
        "moved_beside",
        (SQL_MOVING, "        self._runs.touch(there, until=self._moving.now)\n", ""),
    ),
    mutant(
        "the whole table is emptied too soon",
        "nothing_else",
        (RUNS, 'delete_each", {}) if everything', 'delete_each", {}) if True'),
    ),
    mutant(
        "a clock set back shows more than it gives",
        "set_back_a_little",
        (SQL_QUEUE, '{"queue": found.number, "now": now}', '{"queue": found.number, "now": max(now, found.floor[0])}'),
        (RUNS, "if now < floor_at:  #", "if False:  #"),
    ),
    mutant(
        "settled unconfirmed, it was hidden for good",
        "settled_unconfirmed",
        (CLAIM_ROWS, "if asleep and settlement.keep_until is not None:", "if False:"),
    ),
    mutant(
        "whoever lapses ends all runs",
        "no_other_run_s",
        (RUNS, "<= floor_of(runs, over):", "<= FOREVER:"),
    ),
    mutant(
        "what is given back comes to lie below the floor",
        "with_another_claim",
        (RUNS, "now <= floor_of(runs, own) or", "now < 0 or"),
    ),
    mutant(
        "a purge takes what is in a run",
        "retention_does_not_touch",
        (SQL_QUEUE, 'name = "purgeable" if found.floor == START', 'name = "purgeable" if True'),
    ),
    mutant("a clock set back takes of the floor", "set_back_does", (SQLITE_SQL, " AND :floor_at <= :now", "")),
    mutant(
        "what is extended alone sleeps on",
        "its_own_way",
        (RUNS, "            self._rouse(found, numbers)\n", "            pass\n"),
    ),
    mutant("a late sender ends a run", "late_ends_no_run", (RUNS, "LATE = SECOND", "LATE = 0")),
    mutant(
        "a look shows what is settled",
        "looking_ends",
        ("stores/sqlite/words.py", "IN_RUN.format(reader=\"= ''\")", "IN_RUN.format(reader=\"= '?'\")"),
    ),
    mutant("a run in parts is settled whole", "some_at_a_time", (RUNS, "if gone == limit:", "if False:")),
    mutant(
        "what is settled is still counted", "gone_for_all or some_at_a_time", (RUNS, "messages=counts.messages - gone, ", "")
    ),
    mutant("a claim goes on over what was received", "as_long_as", (RUNS, "if not found or fresh < found:", "if not found:")),
    mutant(
        "a run's message is touched",
        "deleted_of_a_claim or by_its_receipt",
        (SQL_QUEUE, "            self._runs.touch(found, receipts)\n            keys =", "            keys ="),
    ),
    mutant(
        "a receive finds a run",
        "after_it or do_not_get",
        (SQL_QUEUE, "if floor == START:\n            return self._database", "if True:\n            return self._database"),
    ),
    mutant(
        "a run is made of what was received",
        "from_before_a_claim",
        (SQLITE_SQL, "CASE WHEN delivery = 0 AND grp", "CASE WHEN grp"),
    ),
    mutant(
        "settled without its history",
        "changed_beside",
        (RUNS, "if run.claim == claim and settlement.keep_until is None:", "if run.claim == claim:"),
    ),
    mutant(
        "a claim takes what is too old",
        "retention",
        (
            SQLITE_SQL,
            "AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE",
            "AND COALESCE(:came_after, 0) > 0 AND COALESCE",
        ),
    ),
    mutant(
        "a claim takes what is past its deadline",
        "without_asking_the_rules",
        (SQLITE_SQL, "COALESCE(deadline_at, :forever) > :now", "COALESCE(deadline_at, :forever) > 0"),
    ),
    mutant(
        "a claim takes what was received too often",
        "too_often",
        (
            SQLITE_SQL,
            "AND receives < :max_receives AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE",
            "AND :max_receives > 0 AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE",
        ),
    ),
    mutant(
        "a settlement takes what others got",
        "released_from_a_claim",
        ("stores/sqlite/words.py", " AND penstock_message.delivery = penstock_held.delivery\n", "\n"),
    ),
    mutant(
        "a settlement leaves marks",
        "leaves_no_marks",
        (CLAIM_ROWS, "        if marked:\n", "        if False:\n"),
    ),
    mutant("a reader set back is not noticed", "set_back", ("queue/named_claims.py", "epoch <= settled:", "epoch < 0:")),
    mutant(
        "what is damaged is settled with its claim",
        "of_a_claim",
        (
            COMMON_SQL,
            "FROM {chosen_held} WHERE {as_claimed} AND queue + 0 = :queue AND state <> 4\n\n-- name: amend",
            "FROM {chosen_held} WHERE {as_claimed} AND queue + 0 = :queue\n\n-- name: amend",
        ),
    ),
    mutant("what is damaged is settled one by one", "set_aside", (CLAIM_ROWS, "if row[3] != State.DAMAGED", "if row[3] != 99")),
    mutant(
        "what is damaged is not set aside",
        "of_a_claim",
        ("queue/named_claims.py", "                self._receiving.set_aside(message)", "                pass"),
    ),
    mutant("the checksum is not looked at", "damage", (ROWS, "intact = check ==", "intact = True or check ==")),
    mutant(
        "the next of a group is not freed", "no_later_one", (DELETING, "visible_at >= 0 and state", "visible_at < 0 and state")
    ),
    mutant(
        "those that come together are free at once",
        "gets_messages_of_a_group or in_hand",
        (
            COMMON_SQL,
            "UPDATE {chosen}\nSET visible_at = CASE WHEN visible_at < 0 THEN -:until ELSE :until END",
            "UPDATE {chosen}\nSET visible_at = :until",
        ),
    ),
    mutant(
        "extending one in hand frees it",
        "blocked_message_that_is_in_hand",
        (
            COMMON_SQL,
            "UPDATE penstock_message\nSET visible_at = CASE WHEN visible_at < 0 THEN -:until ELSE :until END",
            "UPDATE penstock_message\nSET visible_at = :until",
        ),
    ),
    mutant(
        "what another holds comes together with the first",
        "come_alone or comes_alone or up_to_one_in_hand or delayed_one",
        (SQL_GROUPS, "takewhile(lambda row: -row[VISIBLE_AT] <= claiming.at, behind)", "behind"),
    ),
    mutant(
        "the limit counts the first of each group",
        "limit_counts_all",
        (SQL_GROUPS, "claiming.limit - len(rows)", "claiming.limit"),
    ),
    mutant(
        "a message that is moved into a group overtakes those in hand",
        "waits_for_those_in_hand",
        (SQL_GROUPS, "if entered else []", "if not entered else []"),
    ),
    mutant(
        "what is in hand behind the first is not in flight",
        "counted_and_shown",
        (COMMON_SQL, "CASE state WHEN 1 THEN 'in_flight' ELSE 'blocked' END", "'blocked'"),
    ),
    mutant(
        "what was blocked has no place in the history",
        "left_while_they_were_blocked",
        (ROWS, "visible_at < 0 and settled_at is None", "visible_at < 0"),
    ),
    mutant(
        "a delete of several goes through the whole queue",
        "found_by_their_numbers",
        (SQLITE_SQL, "mark IS NULL AND queue + 0 = (SELECT", "mark IS NULL AND queue = (SELECT"),
    ),
    mutant(
        "what comes together is looked for in all groups",
        "without_a_look_at_other_groups",
        ("stores/sqlite/words.py", "INDEXED BY penstock_group", ""),
    ),
    mutant(
        "a damaged group comes twice in one answer",
        "two_firsts",
        (SQL_GROUPS, "and group not in groups and", "and"),
    ),
    mutant(
        "groups are not kept",
        "no_later_one",
        (SQL_QUEUE, "                        visible_at = -visible_at", "                        pass"),
    ),
    mutant(
        "a failed sync is forgiven",
        "failing_disk",
        (
            SQLITE_DATABASE,
            'self._execute(connection, f"RELEASE verb{depth}" if depth else "COMMIT")',
            f"with suppress(StoreError):\n                    self._execute(connection, {COMMIT})",
        ),
    ),
    mutant("waiting burns the core", "next_to_nothing", ("queue/watching.py", "LOOK_EVERY = 0.035", "LOOK_EVERY = 0.0002")),
    mutant(
        "an idle poll takes the write lock",
        "locked_too_long",
        ("queue/receiving.py", "if due is None or due > queue.clock():", "if due is False:"),
    ),
    mutant("space is never returned", "space_is_returned", (SQLITE_DATABASE, "if not free or", "if True or")),
    mutant(
        "retention is ignored",
        "outlived_its_retention_is_never",
        ("policy.py", "return message.expires_at <= now or", "return False and"),
    ),
    mutant(
        "a fork keeps the parent's connection",
        "fork",
        (
            SQLITE_DATABASE,
            "        if not self._depth:\n            self.file.rest()\n",
            "        if False:\n            self.file.rest()\n",
        ),
    ),
    mutant(
        "what a tending error undoes is the answer",
        "cannot_be_tended",
        ("queue/retention.py", "except StoreError as error:", "except ZeroDivisionError as error:"),
    ),
    mutant(
        "a redrive revives old receipts",
        "before_a_redrive",
        (COMMON_SQL, "state = 0, receives = 0,", "state = 0, receives = 0, delivery = 0,"),
    ),
    mutant(
        "a read believes an old catalogue",
        "made_again",
        (SQLITE_DATABASE, "self._seen.get(name) if in_batch else None", "self._seen.get(name)"),
        (SQLITE_DATABASE, "if in_batch:\n                self._seen[name] = found", "self._seen[name] = found"),
        (
            SQLITE_DATABASE,
            "                    self._opener = None\n                self._seen.clear()\n",
            "                    self._opener = None\n",
        ),
    ),
    mutant(
        "a batch goes on after SQLite gave it up",
        "rolled_back",
        (
            SQLITE_DATABASE,
            "                if self._depth:\n                    raise StoreError",
            "                if False:\n                    raise StoreError",
        ),
    ),
    mutant(
        "hidden for no time, given twice",
        "once_an_answer",
        ("queue/receiving.py", "more and all(message.visible_at > now for message in delivered)", "more"),
    ),
    mutant(
        "numbers reserved in a lost batch are used",
        "batch_that_was_undone_are_others",
        (SQLITE_DATABASE, "                self.spare = NO_NUMBERS  # perhaps", "                pass  # perhaps"),
    ),
    ruled(
        "PostgreSQL counts deliveries",
        (
            POSTGRES_SQL,
            "receives = receives + 1, delivery = GREATEST(delivery + 1, :now)",
            "receives = receives + 1, delivery = delivery + 1",
        ),
    ),
    ruled(
        "PostgreSQL forgets the first receive",
        (POSTGRES_SQL, "first_received_at = COALESCE(first_received_at, :now), holder", "first_received_at = :now, holder"),
    ),
    ruled(
        "PostgreSQL claims in any order",
        (POSTGRES_SQL, "ORDER BY visible_at, number LIMIT :limit FOR", "ORDER BY number LIMIT :limit FOR"),
    ),
    ruled(
        "a moved row keeps its old deadline",
        (COMMON_SQL, "deadline_at = :deadline_at, mark", "deadline_at = COALESCE(deadline_at, :deadline_at), mark"),
    ),
    mutant(
        "an error of the disk leaks out of open",
        "cannot_be_synced_is_an_error",
        (
            SQLITE_FILE,
            "            except OSError as error:\n                connection.close()",
            "            except ZeroDivisionError as error:\n                connection.close()",
        ),
    ),
    mutant("the ledger is not looked at", "published_once", (PUBLISHING, "if self.batch > last.batch:", "if True:")),
    mutant("the ledger is not written", "published_once", (PUBLISHING, "            self._note(now)\n", "            pass\n")),
    mutant(
        "the ledger is written beside the batch",
        "interrupted_publication",
        (LEDGER, "            yield last if last.batch >= 0 else None", "        yield last if last.batch >= 0 else None"),
    ),
    mutant(
        "a writer that was set back is not told",
        "set_back",
        (PUBLISHING, "self.digest is None or (", "True or ("),
    ),
    mutant(
        "a writer's digest is not compared",
        "set_back",
        (PUBLISHING, "last.digest in (None, self.digest)", "True"),
    ),
    mutant(
        "an older batch counts as a replay",
        "set_back",
        (PUBLISHING, "(self.batch == last.batch and last", "(last"),
    ),
    mutant("a digest is not kept", "set_back", (COMMON_SQL, "digest = :digest", "digest = NULL")),
    mutant("a segment's count is not compared", "lost_segment", (PUBLISHING, "if found != count:", "if False:")),
    mutant("dead attempts stay staged", "removes_all", (PUBLISHING, "        self._staging.unstage(writer, batch)\n", "")),
    mutant(
        "bodies go in under old settings",
        "change_meanwhile",
        (
            SQL_QUEUE,
            "if found.settings != settings:\n                return None\n            (like,)",
            "if False:\n                return None\n            (like,)",
        ),
    ),
    mutant("bodies have the checksum of none", "what_a_sent_one_is", (SQL_QUEUE, "add_body(body, begun)", "begun")),
    mutant(
        "what a receive has taken is thrown away",
        "next_round_fails",
        ("queue/receiving.py", "if not kept:\n                    raise", "raise"),
    ),
    mutant(
        "letters without a queue use up a redrive's limit",
        "limited_redrive",
        ("queue/dead_letters.py", "gone[target] += 1\n", "gone[target] += 1\n                most -= 1\n"),
    ),
    mutant(
        "a claim goes through what lies below the floor",
        "sought_and_not_come_to",
        (SQLITE_SQL, "number > :floor_number\nUNION", "+number > :floor_number\nUNION"),
    ),
    mutant(
        "a redrive keeps a deadline that has passed",
        "new_life",
        ("policy.py", "and message.deadline_at > now else None", "else None"),
    ),
    mutant(
        "a redrive drops every deadline",
        "still_to_come",
        ("policy.py", "message.deadline_at > now else None", "False else None"),
    ),
    mutant("a redriven message has no mark", "of_a_redriven_one", ("policy.py", "if new.deduplicate is True:", "if False:")),
    mutant("a redriven member is none", "redriven_member", ("policy.py", "if known and marks.is_content(known):", "if False:")),
    mutant("a dead letter forgets its key", "keeps_its_key", ("policy.py", "marks.key_of(mark) or _is", "_is")),
    mutant(
        "a dead letter queue refuses equal letters",
        "takes_equal_letters",
        (
            "policy.py",
            "return Readmission(known, 0, message.deadline_at,",
            "return Readmission(mark, FOREVER, message.deadline_at,",
        ),
    ),
    mutant(
        "all that is equal is a member elsewhere",
        "taken_all_letters_go",
        ("policy.py", "(settings.deduplicate is not True or", "(True or"),
    ),
    mutant(
        "a redriven message stands beside an equal one",
        "an_equal_message_is_in_its_queue",
        (SQL_MOVING, "if new.mark_until and marks.bearer(new.mark):", "if False:"),
        (SQL_MOVING, "marks.set(new.mark, number, new.mark_until)", "pass"),
    ),
    mutant(
        "letters that stay use up a redrive's limit",
        "do_not_use_up",
        ("queue/dead_letters.py", "        while known and most > 0:", "        if known:"),
    ),
    mutant(
        "a redrive leaves the rest of a group",
        "whole_groups",
        ("queue/dead_letters.py", "(before < 0 or self._queue.read_settings().groups)", "before < 0"),
    ),
    mutant(
        "a delivery is a count again", "numbered_by_its_instant", (COMMON_SQL, "{later}(delivery + 1, :now)", "delivery + 1")
    ),
    mutant(
        "a run's delivery is a count again", "of_a_named_claim_too", (SQLITE_SQL, "MAX(delivery + 1, :run_at)", "delivery + 1")
    ),
    mutant(
        "a delivery is its instant, even if that is the last one's",
        "numbered_by_its_instant",
        (COMMON_SQL, "{later}(delivery + 1, :now)", "{later}(0, :now)"),
        (MESSAGE, "max(last + 1, now)", "now"),
    ),
    mutant(
        "a claim does not write its holder",
        "sees_who_holds",
        (COMMON_SQL, ", holder = :holder\nWHERE number = :number", "\nWHERE number = :number"),
    ),
    mutant(
        "a released message keeps its holder",
        "given_back_has_no_holder",
        (COMMON_SQL, "CASE :state WHEN 1 THEN holder END", "holder"),
    ),
    mutant(
        "a moved message keeps its holder",
        "dead_letter_has_no_holder",
        (COMMON_SQL, "checksum = :checksum, holder = NULL", "checksum = :checksum"),
    ),
    mutant(
        "a lapsed lease has a holder",
        "lapsed_has_no_holder",
        (
            QUEUE,
            "message.visible_at <= now:\n                message.holder",
            "message.visible_at < 0:\n                message.holder",
        ),
    ),
    mutant("a run has no holder", "reader_holds", (LISTS, "run.lapses_at, holder=run.reader)", "run.lapses_at)")),
    mutant("a list has no holder", "received_before", (CLAIM_ROWS, "pack_holder(reader)", "None")),
    mutant(
        "SQLite: processes have a clock each",
        "wall_clock",
        (
            SQLITE_DATABASE,
            "return machine_clock(ClockFiles(clock_folder(self.file.path), str(self), self.file.path))",
            "return MachineClock()",
        ),
    ),
    mutant(
        "a number is kept though nobody knows whether it is given away",
        "interrupt_at_any_instant",
        (SQLITE_ALONE, "(first, last), database.spare = database.spare, NO_NUMBERS", "first, last = database.spare"),
    ),
    mutant(
        "a transaction that an interrupt left is gone on with",
        "while_it_is_undone",
        (SQLITE_DATABASE, '                self._execute(connection, "ROLLBACK")\n', "                pass\n"),
    ),
    mutant(
        "an interrupt right after a batch began leaves it open",
        "interrupt_at_any_instant",
        ("guarded.py", "            self._generator.close()\n", "            pass\n"),
    ),
    mutant(
        "an interrupt right before a batch ends leaves it open",
        "interrupt_at_any_instant",
        ("guarded.py", "partial(_leave, weakref.ref(self._generator))", "partial(_leave, lambda held=self._generator: held)"),
    ),
    mutant(
        "after a power cut a receipt fits again",
        "before_a_power_cut",
        (COMMON_SQL, "{later}(delivery + 1, :now)", "delivery + 1"),
        (MESSAGE, "max(last + 1, now)", "last + 1"),
    ),
    mutant(
        "a signal handler becomes part of the batch that it has interrupted",
        "handler",
        ("stores/callers.py", "and _is_handler(frame.f_code)", "and False"),
    ),
    mutant(
        "an update forgets the labels that it does not name",
        "only_the_labels_that_it_names",
        ("policy.py", "{**labels, **changes}.items() if text", "changes.items() if text"),
    ),
    mutant(
        "a label that is removed stays as None",
        "only_the_labels_that_it_names",
        ("policy.py", "{**labels, **changes}.items() if text is not None}", "{**labels, **changes}.items()}"),
    ),
    mutant(
        "a queue without labels is stored in a new way",
        "versions_without_labels",
        ("stores/encoding.py", "if name not in LATER or value != LATER[name]", "if True"),
    ),
    mutant(
        "settings that differ only in their labels count as equal",
        "keeps_its_labels or only_the_labels",
        (MESSAGE, '"history", "labels", "paused"', '"history", "paused"'),
    ),
    mutant(
        "equal labels are stored in the order in which they were given",
        "versions_without_labels",
        (MESSAGE, "dict(sorted(dict(labels).items()))", "dict(labels)"),
    ),
    mutant(
        "labels may be as long as one likes",
        "bad_setting",
        ("policy.py", "if size > MAX_LABELS_BYTES:", "if False:"),
    ),
    mutant(
        "a group is refused as if it were a name",
        "any_printable_text",
        ("policy.py", "        _check_group(draft.group)\n", '        check_name(draft.group, "group")\n'),
    ),
    mutant(
        "a group may be as long as one likes",
        "bad_draft",
        ("policy.py", "if not 1 <= len(group) <= MAX_GROUP or", "if not group or"),
    ),
    mutant(
        "attributes have a limit of their own",
        "as_long_as_a_body",
        ("policy.py", "if size + body > MAX_MESSAGE:", "if size > 65536:"),
    ),
    mutant(
        "attributes and body count apart",
        "bad_draft",
        ("policy.py", "if size + body > MAX_MESSAGE:", "if size > MAX_MESSAGE:"),
    ),
    mutant(
        "a scan ends where few messages are in a row",
        "whatever_lies_between",
        (SQL_QUEUE, "        if start < stop and len(rows) < limit:\n", "        if unsettled:\n"),
    ),
    mutant(
        "a look-up of one message looks at the whole queue",
        "not_among_all",
        (SQL_QUEUE, "        if not unsettled:\n            near", "        if False:\n            near"),
    ),
]

"""Faults in the stores on database servers."""

from __future__ import annotations

from planted import CLAIM_ROWS, COMMON_SQL, POSTGRES, POSTGRES_SQL, SQL_MOVING, SQL_QUEUE, TRANSACTIONS, Mutant

SERVER_DATABASE = "stores/dbserver/database.py"
POSTGRES_ALONE = "stores/postgresql/shortcuts.py"
MYSQL = "stores/mysql/driver.py"
SERVER_SQL = "stores/dbserver/server.sql"
SLEEPERS = "stores/dbserver/sleepers.py"
CLAIM_READERS = "stores/sql/readers.py"
STAGED_ROWS = "stores/dbserver/staging.py"


def shared(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in shared parts: the stores on database servers, consumers."""
    return Mutant(name, tests, changes, ("tests/test_sqlite.py", "tests/test_server_faults.py", "tests/test_joining.py"))


def planned(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A statement that PostgreSQL may run through the whole table."""
    return Mutant(name, "found_by_their_index", changes, ("tests/test_postgresql.py",))


def exchanged(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in code specific to PostgreSQL."""
    return Mutant(name, tests, changes, ("tests/test_postgresql.py", "tests/test_joining.py"))


def ordered(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the locks on database servers."""
    return Mutant(name, tests, changes, ("tests/test_postgresql.py", "tests/test_mysql.py", "tests/test_locks.py"))


def interrupted(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in handling an interrupt between a request to a server and its answer."""
    return Mutant(name, tests, changes, ("tests/test_interrupts.py",))


def claimed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in named claims on database servers."""
    return Mutant(name, tests, changes, ("tests/test_postgresql.py", "tests/test_mysql.py", "tests/test_sql_rules.py"))


FAULTS = [
    ordered(
        "publishers of one writer lock its row for sharing first",
        "publishers_of_one_writer",
        (COMMON_SQL, "INSERT INTO penstock_writer (", "{insert_new} penstock_writer ("),
        (COMMON_SQL, ":forever) {or_lock}", ":forever) {unless_there}"),
    ),
    Mutant(
        "executors take what PostgreSQL has for undamaged",
        "on_a_server and postgresql",
        (("spark/arrow_reader.py", "schema, NOTHING, CHECKED, claim=", "schema, NOTHING, (), claim="),),
        ("tests/spark/test_damage.py",),
    ),
    claimed(
        "who claims at once on PostgreSQL lets what has lapsed sleep on",
        "TestPostgresql and waits_behind",
        (POSTGRES_SQL, "asleep = 1 AND lapses_at <= :now\n", "asleep = 2 AND lapses_at <= :now\n"),
    ),
    claimed(
        "on servers what lapses is not waited for",
        "whoever_looks",
        (SERVER_SQL, "queue = penstock_queue.number AND asleep = 1), :forever)", "queue = -1 AND asleep = 1), :forever)"),
    ),
    claimed(
        "on servers what has lapsed sleeps on",
        "lapse",
        (SLEEPERS, "            self._wake(found.number, now)\n", "            pass\n"),
    ),
    claimed(
        "on servers what leaves a sleeping claim leaves the others hidden for good",
        "leaves_a_claim or extended_alone or goes_its_own_way",
        (SLEEPERS, "            self._wake(found.number, FOREVER)  #", "            pass  #"),
    ),
    claimed(
        "on servers a claim leaves alone what the rules would end",
        "amid_a_claim",
        (SERVER_SQL, " OR deadline_at <= :now\n", "\n"),
    ),
    claimed(
        "what became doubtful while it was claimed is claimed",
        "doubtful_meanwhile",
        (SERVER_SQL, " AND COALESCE(deadline_at, :forever) > :now\n    ORDER", "\n    ORDER"),
    ),
    claimed(
        "a claim passes what the rules must judge first",
        "amid_a_claim or in_its_place",
        (SERVER_SQL, "    AND (visible_at, number) < (:end_at, :end_number) AND", "    AND :end_at + :end_number > 0 AND"),
    ),
    claimed(
        "what a claim is given by the rules lapses when it is confirmed",
        "amid_a_claim",
        (CLAIM_READERS, "            if asleep:\n", "            if False:\n"),
    ),
    claimed(
        "on PostgreSQL a settlement takes what others got",
        "released_from_a_claim or gets_what_lapsed",
        ("stores/postgresql/words.py", " AND found.delivery = penstock_held.delivery", ""),
    ),
    claimed(
        "on MariaDB a settlement takes what others got",
        "released_from_a_claim or gets_what_lapsed",
        ("stores/mysql/words.py", '"number = chosen AND delivery = claimed"', '"number = chosen"'),
    ),
    claimed(
        "of a list only the first part is changed",
        "in_parts_of_statements",
        (CLAIM_ROWS, "            start += AT_ONCE\n", "            return\n"),
    ),
    claimed(
        "the second part of a claim is hidden with the first",
        "in_parts_of_statements",
        (SLEEPERS, '"start": size + added}', '"start": size}'),
    ),
    claimed(
        "a damaged message enters the history with its claim",
        "damaged_message_of_a_claim",
        (
            COMMON_SQL,
            "FROM {chosen_held}\nWHERE {as_claimed} AND queue + 0 = :queue AND state <> 4\n",
            "FROM {chosen_held}\nWHERE {as_claimed} AND queue + 0 = :queue\n",
        ),
    ),
    claimed(
        "to confirm writes each message again",
        "not_written_again",
        (CLAIM_READERS, "            if not asleep:\n", "            if True:\n"),
    ),
    Mutant(
        "reads on MariaDB see what others commit between them",
        "mariadb and whatever_others_commit",
        ((MYSQL, '"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ', ""),),
        ("tests/test_sql_rules.py",),
    ),
    exchanged(
        "a notification rings no bell",
        "wakes_by_its_notification",
        ("stores/postgresql/listener.py", "                        self._ring()\n", ""),
    ),
    exchanged(
        "a process hears its own announcements",
        "cost_it_no_look",
        ("stores/postgresql/listener.py", "not self._is_ours(notification.be_pid)", "True"),
    ),
    exchanged(
        "PostgreSQL's one statement claims the first of each group alone",
        "of_a_group_together",
        (SQL_QUEUE, "until is None or together else", "until is None else"),
    ),
    interrupted(
        "an interrupted connection is used again",
        "mariadb and unread",
        (
            TRANSACTIONS,
            "            if not session.asking:\n                self._driver.command",
            "            if True:\n                self._driver.command",
        ),
        (
            TRANSACTIONS,
            "        if session.asking:\n            self._pool.drop(session, alone=True)",
            "        if False:\n            pass",
        ),
        (TRANSACTIONS, "or current.session.asking or", "or"),
    ),
    interrupted(
        "what is prepared is forgotten",
        "postgresql and unread",
        (
            TRANSACTIONS,
            "        if session.asking:\n            self._pool.drop(session, alone=True)",
            "        if False:\n            pass",
        ),
        (
            TRANSACTIONS,
            "            if not session.asking:\n                self._driver.command",
            "            if True:\n                self._driver.command",
        ),
        (
            "stores/postgresql/prepared.py",
            "        _answer(connection)\n        known",
            "        connection.wait(execute(connection.pgconn))\n        known",
        ),
        (POSTGRES, " or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)", ""),
    ),
    interrupted(
        "half an answer of memcached's is left",
        "memcached and unread",
        ("stores/memcached/link.py", "            self._client.close()  # the rest", "            pass  # the rest"),
    ),
    interrupted(
        "a connection that nobody has is lent",
        "lent_to_the_next",
        ("stores/dbserver/pool.py", "ref(connection)]", "(lambda: connection)]"),
    ),
    interrupted(
        "a connection that was not made has a place",
        "could_not_be_made",
        ("stores/dbserver/pool.py", "ref(place)]", "(lambda kept=place: kept)]"),
    ),
    interrupted(
        "what could not be undone is given back",
        "second_interrupt",
        (
            TRANSACTIONS,
            "            if done:\n                self.give(session)",
            "            if True:\n                self.give(session)",
        ),
    ),
    shared(
        "a transaction that sees only the past is joined",
        "only_the_past",
        (SERVER_DATABASE, "                self._check_isolation(name, current.session)\n", "                pass\n"),
    ),
    shared(
        "who waits looks only when it is told",
        "woken_by",
        ("stores/mysql/store.py", "LOOK_ANYWAY = 1\n", "LOOK_ANYWAY = 10**9\n"),
    ),
    shared(
        "a caller's connection has our kind of cursor",
        "mariadb and committed",
        (MYSQL, "cursor(Cursor)", "cursor()"),
    ),
    shared(
        "MariaDB joins what is no transaction",
        "mariadb and in_no_transaction",
        (MYSQL, "if connection.get_autocommit() and not", "if False and not"),
    ),
    shared(
        "a connection to another database is joined",
        "to_elsewhere",
        (TRANSACTIONS, "return bool(rows) and ids == Ids(rows[0][0])", "return bool(rows)"),
    ),
    shared(
        "a batch becomes part of another transaction",
        "inside_a_batch and not sqlite",
        (
            TRANSACTIONS,
            "        if self.here.current is not None:\n            raise BadInput",
            "        if False:\n            raise BadInput",
        ),
    ),
    shared(
        "a panic is more answers than there should be",
        "panics",
        (
            "stores/postgresql/prepared.py",
            "    for result in results:\n        if result.status not in DONE:\n            raise error_from_result(result)\n"
            "    if len(results) != 1:\n        connection.close()  # the next",
            "    if len(results) != 1:\n        pass  # the next",
        ),
    ),
    shared(
        "what the server said before it went is believed",
        "panics",
        (POSTGRES, "        if lost:  # whatever", "        if False:  # whatever"),
    ),
    shared(
        "psycopg's own surprise at a panic is passed on",
        "panics",
        (POSTGRES, "except (psycopg.Error, *SURPRISES) as error:", "except psycopg.Error as error:"),
    ),
    interrupted(
        "an interrupt that surprises psycopg is taken for a lost connection",
        "comes_out_as_itself",
        (POSTGRES, "            if not isinstance(before, Exception):\n                return before\n", ""),
    ),
    ordered(
        "a message is moved into a group that nobody has locked",
        "enter_a_group or enters_a_group",
        (SQL_MOVING, "            else:\n                database.find(each)\n", ""),
        (SERVER_DATABASE, "not alone and current.seen[name].settings.groups", "False"),
        (SQL_MOVING, "marks = self._moving.death is None and", "marks = False and"),
    ),
    ordered(
        "moves lock the source first",
        "opposite_directions",
        (SQL_MOVING, "for each in sorted({name, target}):", "for each in (name, target):"),
    ),
    ordered(
        "a receive locks its own queue first",
        "buries_and_a_redrive",
        (SERVER_DATABASE, "dead_letter_queue < name:", 'dead_letter_queue < "":'),
    ),
    ordered(
        "to look at a queue in a batch locks it",
        "opposite_directions",
        (TRANSACTIONS, "was, current.reading = current.reading, True", "was = current.reading"),
    ),
    exchanged(
        "who is swept has done nothing",
        "swept",
        (
            POSTGRES_SQL,
            "SELECT CASE (SELECT token FROM noted) WHEN :token THEN NULL ELSE ARRAY(SELECT number FROM gone) END\n",
            "SELECT CASE token WHEN :token THEN NULL ELSE ARRAY(SELECT number FROM gone) END FROM noted\n",
        ),
    ),
    exchanged("a lease that began long ago", "whole_leases", ("queue/receiving.py", "came_at - now > EXCHANGE_LATE", "False")),
    exchanged(
        "an exchange is undone by half",
        "taken_by_nobody",
        (SQL_QUEUE, "None if rows else settings, gone", "settings, gone"),
    ),
    planned(
        "by any index",
        ("stores/postgresql/words.py", '"ready": "AND queue >= 0"', '"ready": ""'),
        ("stores/postgresql/words.py", " WHERE queue >= 0\n", "\n"),
    ),
    planned("a claim's messages by a join", ("stores/postgresql/words.py", " OFFSET 0)", ")")),
    shared(
        "known by its number",
        "number_of_a_lost",
        (MYSQL, 'Session(connection, f"penstock-{secrets.token_hex(16)}")', "Session(connection, connection.thread_id())"),
        (
            MYSQL,
            "SELECT IS_USED_LOCK('{lost.server_id}')",
            "SELECT MIN(id) FROM information_schema.processlist WHERE id = {lost.server_id}",
        ),
    ),
    shared(
        "a commit whose answer was lost is taken for none",
        "postgresql and cut_at",
        (TRANSACTIONS, "return bool(rows) and rows[0][0] == session.token", "return False"),
    ),
    shared(
        "a lost connection is left to finish",
        "postgresql and cut_at",
        (TRANSACTIONS, "            self._driver.end(side, session)\n", "            pass\n"),
    ),
    shared(
        "an exchange whose answer was lost is taken for none",
        "postgresql and cut_at",
        (POSTGRES_ALONE, "| None = ALL_GONE, NOTHING", "| None = NOTHING, NOTHING"),
    ),
    shared(
        "the machine's clock instead of the database's",
        "postgresql and clock_is_wrong",
        (
            SERVER_DATABASE,
            "        return self._clock\n",
            "        from penstock.clock import MachineClock\n\n        return MachineClock()\n",
        ),
    ),
    shared(
        "a rolled back send is sent",
        "postgresql and rolled_back",
        (TRANSACTIONS, "joined = Transaction(Session(connection, None))", "joined = self._begin('BEGIN')"),
    ),
    shared(
        "the commit of a caller that is joined does not wait for the disk",
        "callers_commit",
        (POSTGRES, "        if in_transaction:\n", "        if False:\n"),
    ),
    shared(
        "the dead are not struck off",
        "birth_order",
        ("workers/heartbeat.py", "self._beats % self._check_every == 0", "self._beats < 0"),
    ),
    shared("what failed was read ahead and is gone", "cut_at_any_point_a_batch", (STAGED_ROWS, '"ROLLBACK"', '"COMMIT"')),
    shared(
        "who read ahead is missed",
        "read_ahead_by_that_is_lost",
        (STAGED_ROWS, "return lambda: self.fetch(writer, batch, name)", "return lambda: None"),
    ),
    shared(
        "the token is told although nothing was sent",
        "cut_at_any_point_a_send and postgresql",
        (POSTGRES_SQL, " AND EXISTS (SELECT number FROM wanted) RETURNING number", " RETURNING number"),
    ),
    shared(
        "finished messages wait for their whole batch",
        "settled_while_the_next_one_runs",
        ("workers/consumer.py", "                self._settler.start()\n", "                pass\n"),
    ),
    shared(
        "finished messages wait although their deadline is near",
        "settled_at_once",
        ("workers/consumer.py", "- self._clock() < NEAR:", "- self._clock() < 0:"),
    ),
    shared(
        "a handler starts after its deadline, at most once",
        "at_most_once_what_is_past",
        ("policy.py", 'return "deadline" if overdue(message, mode, now) else None', "return None"),
    ),
    shared(
        "a handler starts after its lease",
        "past_its_lease or left_to_others",
        ("policy.py", 'return "lease" if message.visible_at <= now else None', "return None"),
    ),
    shared(
        "who was struck off takes more",
        "struck_off_registers_again",
        ("workers/consumer.py", "            self._heart.confirm()\n", ""),
    ),
    shared(
        "leases are renewed one by one",
        "renewed_by_one_call",
        (
            "workers/leases.py",
            "self._queue.extend_many([message for message, _ in due], [(until - now) / SECOND for _, until in due])",
            "[self._queue.extend(message, (until - now) / SECOND) for message, until in due]",
        ),
    ),
    shared(
        "leases are renewed past the deadline",
        "renewed_by_one_call",
        ("policy.py", "return min(until, deadline) if deadline > now else None", "return until"),
    ),
    shared(
        "at most once, a failed callback was processed",
        "history_tells_how",
        ("workers/consumer.py", "self._finish([message], reason)", "self._finish([message])"),
    ),
    shared(
        "at most once, what is unfinished was processed",
        "unfinished_has_failed or history_tells_how",
        ("queue/receiving.py", "state = State.PROCESSED if reason is None else State.FAILED", "state = State.PROCESSED"),
    ),
    shared(
        "any receipt tells how a message ended (SQL)",
        "unfinished_has_failed",
        (
            COMMON_SQL,
            "AND queue = :queue AND delivery = COALESCE(:delivery, delivery)\n\n-- name: move",
            "AND queue = :queue AND 0 <= COALESCE(:delivery, 0)\n\n-- name: move",
        ),
    ),
    shared(
        "of a batch that was sent once, the first alone is known",
        "sent_once_is_known or answer_was_lost_is_not_doubled",
        (SQL_QUEUE, "first = first + 1 if first is not None and entry.mark_until == FOLLOWS else None", "first = None"),
    ),
    shared(
        "a batch is sent again by another token",
        "answer_was_lost_is_not_doubled",
        ("workers/producer.py", "token, batch = self._sending\n", "token, batch = secrets.token_hex(16), self._sending[1]\n"),
    ),
    exchanged(
        "an exchange names nobody",
        "exchange_names",
        (POSTGRES_ALONE, '"holder": pack_holder(claiming.holder)}', '"holder": None}'),
    ),
    exchanged(
        "marks are removed one by one",
        "removed_together",
        (
            "stores/sql/deleting.py",
            'database.many("unmark_gone", marked)',
            '[database.run("unmark_gone", dict(zip(("queue", "mark", "number", "forever"), row))) for row in marked]',
        ),
    ),
]

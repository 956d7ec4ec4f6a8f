"""Faults in the service."""

from __future__ import annotations

from planted import FILE_QUEUE, RUNS, SPOOL, SQL_QUEUE, Mutant

MULTIPART = "server/http/multipart.py"
MQS = "server/dialects/mqs.py"


def served(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the service."""
    files = ("dialects", "serve", "server_wire", "server_client", "server_settings", "server_limits", "server_commits")
    files += ("server_dialects", "server_kills", "client_http", "conversation", "server_leaving", "server_looking")
    files += ("server_memory",)
    return Mutant(name, tests, changes, tuple(f"tests/test_{file}.py" for file in files))


def staged(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in what the service does with segments, as every store does."""
    return Mutant(name, tests, changes, ("tests/test_memory.py",))


def waited(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in waiting and waking."""
    return Mutant(name, tests, changes, ("tests/test_waiting.py", "tests/test_watching.py"))


BENCHES = ("tests/test_bench_brokers.py", "tests/test_bench_sqs.py", "tests/test_bench_frameworks.py")


def benched(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """Faults of the comparisons with brokers and with servers of SQS."""
    return Mutant(name, tests, changes, BENCHES)


def supervised(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """Faults of several processes on one port."""
    return Mutant(name, tests, changes, ("tests/test_workers.py",))


FAULTS = [
    supervised(
        "a worker that died is not replaced",
        "goes_on",
        ("server/workers.py", "                self._missing.append(child.number)\n", ""),
    ),
    supervised(
        "only one worker reads its tokens again",
        "reach_all",
        (
            "server/workers.py",
            "*(pid for pid, child in self._children.items() if child.starting < 0)",
            "next(iter(self._children))",
        ),
    ),
    supervised(
        "a worker that comes later has the old tokens",
        "reach_all",
        ("server/workers.py", "replace(self._settings, tokens=self._read_again().tokens)", "self._settings"),
    ),
    supervised(
        "workers outlive their parent",
        "parent_was_killed",
        ("server/running.py", "            loop.add_reader(worker.parent, _leave, loop, worker.parent, stop)\n", ""),
    ),
    supervised(
        "a worker is started all the time",
        "no_more_than_once",
        ("server/workers.py", "RESTART_EVERY = 1.0", "RESTART_EVERY = 0.0"),
    ),
    supervised(
        "workers stay when one cannot start",
        "ends_all",
        ("server/workers.py", "            elif not self._serves:\n", "            elif False:\n"),
    ),
    supervised("a store in memory has several processes", "cannot_do", ("server/workers.py", '== "memory"', '== "none"')),
    supervised("lines of several processes mix", "stay_whole", ("server/log_writer.py", "end or PIPE_BUF", "1 << 20")),
    waited(
        "an event wakes the polls of every queue",
        "no_queue_but_its_own",
        ("queue/waiting.py", "self._ring(queues or tuple(self._bells))", "self._ring(tuple(self._bells))"),
    ),
    waited(
        "a change by another process wakes every poll",
        "wakes_no_poll",
        ("queue/watching.py", "if due <= now]", "]"),
        ("queue/watching.py", "return self._store.queue(queue).due()", "return 0"),
    ),
    waited(
        "a change by another process before a rest is missed",
        "between_a_look_and_a_rest",
        ("queue/waiting.py", "            self._last_of_all = self._events\n            return", "            return"),
    ),
    waited(
        "an event of a forgotten queue is missed",
        "more_queues_than",
        ("queue/waiting.py", "                self._last_of_all = self._events\n            for", "            for"),
    ),
    waited(
        "a change of a file wakes nobody",
        "by_the_file",
        ("queue/watching.py", "return watch.wait(seconds)", "return self._end.acquire(timeout=seconds)"),
    ),
    waited(
        "a change of a file is looked into only once",
        "by_the_file",
        ("queue/watching.py", "SETTLING = (0.001, 0.001, 0.002, 0.002, 0.003, 0.004, 0.006, 0.01)", "SETTLING = ()"),
    ),
    waited(
        "a process listens to itself",
        "writes_all_the_time",
        ("queue/watching.py", "0 if found else in_vain + 1", "0"),
    ),
    waited(
        "the watcher rests for as long as a commit took",
        "writes_in_between",
        ("queue/watching.py", "max(LOOK_PAUSE, LOOK_SHARE * (time.monotonic() - began))", "LOOK_SHARE * sum(SETTLING)"),
    ),
    waited(
        "a change is not looked into anew while an older one is",
        "writes_in_between",
        (
            "queue/watching.py",
            "            if heard:\n                pauses",
            "            if heard and pause >= LOOK_EVERY:\n                pauses",
        ),
    ),
    waited(
        "a change that began while nobody waited is forgotten",
        "before_the_consumer_waited",
        (
            "queue/watching.py",
            "            if heard:\n                pauses",
            "            if heard and self._lines.queues():\n                pauses",
        ),
    ),
    waited(
        "a watcher for whom nobody waits follows every write",
        "while_nobody_waits",
        ("queue/watching.py", "                    self._end.acquire(timeout=LOOK_PAUSE)\n", "                    pass\n"),
    ),
    waited(
        "a thread that has ended keeps its descriptor",
        "descriptors",
        ("queue/watching.py", "with closing(FileWatch()) as watch:", "for watch in [FileWatch()]:"),
    ),
    waited("a file that is made anew is not watched", "made_anew", ("queue/inotify.py", "if mask & IGNORED:", "if False:")),
    waited("a batch is told before its commit", "told_when", ("queue/waiting.py", "if told is not None:", "if False:")),
    waited("nobody hears the next event", "gives_up", ("bridge/polls.py", "if queue not in self._bells:\n", "if False:\n")),
    waited("a closed broker leaves receivers waiting", "is_closed", ("broker.py", "        self.waiting.close()\n", "")),
    waited(
        "what another process delayed is forgotten",
        "another_process_delayed",
        ("queue/watching.py", "if visible := self._visible():", "if visible := self._visible() and version == 0:"),
    ),
    served(
        "answered before the commit",
        "kill_9",
        ("bridge/commits.py", "done = self._performer.perform(group)\n", "done = 0; __import__('time').sleep(0.01)\n"),
        (
            "bridge/commits.py",
            "self._loop.call_soon_threadsafe(self._answer, group, not more, done, time.perf_counter() - started)",
            "[setattr(o, 'answer', Added([__import__('penstock').message.Sent('00000000-0000-8000-8000-000000000001')], 1)) "
            "for o in group if o.key]; "
            "self._loop.call_soon_threadsafe(self._answer, group, not more, 0, 0); __import__('time').sleep(0.01); "
            "self._performer.perform(group)",
        ),
    ),
    served(
        "a refused neighbour fails the commit",
        "refused_neighbour",
        (
            "bridge/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            elif",
            "            if True:\n                _fail(group, error)\n            elif",
        ),
        (
            "bridge/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            else",
            "            if True:\n                _fail(group, error)\n            else",
        ),
    ),
    served(
        "what could not be confirmed is tried again",
        "failing_disk",
        (
            "bridge/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            elif",
            "            if len(group) == 1 or not isinstance(error, PenstockError):\n"
            "                _fail(group, error)\n            elif",
        ),
    ),
    served(
        "an operation that was withdrawn is executed",
        "withdrawn",
        ("bridge/performing.py", "            self.begun = not self.withdrawn\n", "            self.begun = True\n"),
    ),
    served(
        "an operation that has begun is withdrawn",
        "withdrawn",
        ("bridge/performing.py", "            self.withdrawn = not self.begun\n", "            self.withdrawn = True\n"),
    ),
    served(
        "a poll that a failure left without messages is told that the queue is empty",
        "share_a_claim_keep",
        ("bridge/taking.py", "shares.append(failure if failure is not None and not share else share)", "shares.append(share)"),
    ),
    served(
        "a message that stays visible is shared out once",
        "stay_visible",
        ("bridge/taking.py", "empty = len(more) < asked and not again", "empty = len(more) < asked"),
    ),
    served(
        "one message is deleted twice",
        "finds_nothing",
        ("server/dialects/base.py", "gone.pop(uuid, False)", "gone.get(uuid, False)"),
    ),
    Mutant(
        "a child makes its parent's tokens",
        "no_two_tokens",
        (("client/calls.py", "            self._process = secrets.token_hex(8)\n", "            pass\n"),),
        ("tests/test_client_http.py",),
    ),
    served(
        "each client's deletes are a call of their own",
        "deletes_of_clients_share",
        ("bridge/verbs.py", "if isinstance(held, list) and len(held) <= FEW", "if isinstance(held, list) and not held"),
    ),
    served(
        "receives that came together wait for the disk",
        "do_not_wait_for_the_disk",
        ("bridge/performing.py", "if len(groups) > 1 and any(operation.promise for operation in shared):", "if shared:"),
    ),
    served(
        "a commit that is stuck holds up all queues of a database server",
        "holds_up_no_other",
        ("bridge/commits.py", "PATIENCE = 0.05", "PATIENCE = 500"),
    ),
    served(
        "a commit waits for the event loop",
        "wait_for_the_event_loop",
        (
            "bridge/commits.py",
            "self._loop.call_soon_threadsafe(self._answer, group, not more, done, time.perf_counter() - started)",
            "over = __import__('threading').Event(); self._loop.call_soon_threadsafe("
            "lambda group=group: (self._answer(group, not more, done, 0), over.set())); over.wait(45)",
        ),
    ),
    served(
        "who comes late gets a commit alone",
        "who_waits_shares",
        ("bridge/commits.py", "more = self._take(len(group))", "more = self._take(1)"),
    ),
    served(
        "what was not delivered stays hidden",
        "does_not_take",
        ("server/http/connection.py", "                response.undo()\n", "                pass\n"),
    ),
    served(
        "an abandoned poll keeps its place",
        "leaves_its_long_poll",
        ("server/http/connection.py", "            self._job.stop()\n\n", "            pass\n\n"),
    ),
    served("no bound on what waits", "ten_times", ("bridge/commits.py", "self.pending >= self._max_pending", "False")),
    served(
        "a send is repeated without its token",
        "answer_is_lost",
        ("client/queue.py", "drafts=batch, token=token or self._calls.new_token()", "drafts=batch, token=None"),
    ),
    served(
        "a token may do everything",
        "scopes_say",
        ("server/http/request_response.py", "if not self.allows(scope, queue):", "if False:"),
    ),
    served(
        "slow requests are waited for",
        "slow_request",
        ("server/http/connection.py", "if spent > settings.read_timeout:", "if False:"),
    ),
    served(
        "a receiver who has left costs a message",
        "client_who_left",
        ("server/http/connection.py", "(self.ended and response.undo is not None)", "False"),
    ),
    served(
        "an idle connection keeps its last body",
        "outlives_its_answer",
        ("server/http/conversation.py", "        del self._request  #", "        pass  #"),
    ),
    served(
        "an error that was answered and its operation or future keep each other",
        "outlives_its_answer",
        ("server/app.py", "error.__traceback__ = error.__context__ = error.__cause__ = None", "pass"),
    ),
    served(
        "an error that nobody answers and its operation keep each other",
        "keeps_nothing_of_what_it_was_about",
        ("bridge/performing.py", "error.__traceback__ = error.__context__ = None", "pass"),
    ),
    served(
        "a waiting thread keeps its last commit",
        "outlives_its_answer",
        ("bridge/commits.py", "            group = more  #", "            pass  #"),
        ("bridge/commits.py", "group = group or self._groups.get()", "group = more or self._groups.get()"),
    ),
    served(
        "freed megabytes stay with the allocator",
        "refused_megabytes",
        ("server/running.py", "    return_large_blocks()\n    asyncio", "    asyncio"),
    ),
    served(
        "an answer in JSON is not counted",
        "of_its_budget and receives and JSON",
        ("server/dialects/native.py", "        request.copies = copies(request)\n", ""),
    ),
    served(
        "connections that are cut take the descriptors of the store",
        "leave_descriptors_to_the_store",
        ("server/http/listening.py", "MOST_AT_ONCE = 16\n", "MOST_AT_ONCE = 64\n"),
    ),
    served(
        "a message weighs its bytes alone",
        "counts_what_it_takes",
        ("server/budget.py", "MESSAGE = 2048\n", "MESSAGE = 0\n"),
    ),
    served(
        "a look does not ask for room",
        "of_its_budget and before",
        ("server/dialects/looking.py", "    count = core.budget.take_some(", "    count = most or core.budget.take_some("),
    ),
    served(
        "a refusal keeps what it was about",
        "refusal_keeps_nothing",
        ("bridge/performing.py", "isinstance(error, PenstockError | TurnedAway)", "isinstance(error, PenstockError)"),
    ),
    Mutant(
        "many large messages are one statement",
        "no_single_statement",
        (("stores/sqlite/shortcuts.py", " > MOST_BYTES:", " > 2**40:"),),
        ("tests/test_sqlite_file.py",),
    ),
    served(
        "the library for Arrow is not counted",
        "library_for_arrow",
        ("server/dialects/base.py", "self.budget.take(ARROW)", "pass"),
    ),
    served(
        "the names of queues are not counted",
        "names_of_many_queues",
        ("server/dialects/base.py", "self.budget.hold(request, len(names) * NAME + size * 2)", "pass"),
    ),
    served(
        "an error that was answered keeps its frames",
        "frames_of_an_error",
        ("server/app.py", "            _let_go(error)\n", ""),
    ),
    served(
        "no bound on the bodies in memory",
        "fit_into_memory",
        ("server/budget.py", "if self.used + count <= self._most:", "if True:"),
    ),
    served(
        "no bound on time",
        "takes_too_long",
        ("server/http/connection.py", "elif spent > settings.request_timeout:", "elif False:"),
    ),
    served(
        "a token names any dead letter queue",
        "must_be_one_of",
        ("server/dialects/base.py", "request.grant.check(Scope.ADMIN, checked.dead_letter_queue)", "pass"),
    ),
    served(
        "a token redrives to anywhere",
        "letters_go_back_only",
        ("server/dialects/native.py", "allow=lambda name: request.grant.allows(Scope.ADMIN, name)", "allow=bool"),
    ),
    served(
        "a token names any queue as the target of a redrive",
        "letters_go_back_only",
        ("server/dialects/native.py", 'request.grant.check(Scope.ADMIN, str(given["to"]))', "pass"),
    ),
    served(
        "all tokens share their writers",
        "writer_of_another",
        ("server/dialects/native.py", "if grant.allows_all(Scope.SEND):", "if True:"),
    ),
    served("a token given directly is ignored", "given_directly", ("server/settings.py", "if self.token:", "if False:")),
    served(
        "no bound on trailers",
        "too_large",
        ("server/http/chunks.py", "if len(data) - at >= room + 2:", "if False:"),
    ),
    served(
        "a body after HEAD",
        "head_has_no_body",
        ("server/http/connection.py", 'body = b"" if response.bare else response.body', "body = response.body"),
    ),
    served("a message is not checked", "cannot_be_one", ("server/dialects/native.py", "if verb in SETTLING:", "if False:")),
    served(
        "attempts are counted",
        "what_was_tried",
        ("server/dialects/base.py", "count_deleted(request, queue, sum(gone))", "count_deleted(request, queue, len(gone))"),
        ("queue/sending.py", "len(sent) - sum([one.duplicate for one in sent])", "len(sent)"),
    ),
    served(
        "an answer has any number of bytes",
        "too_much_for_an_answer",
        ("server/dialects/looking.py", "and size < core.settings.max_body:", "and size < 1 << 40:"),
        ("server/dialects/looking.py", "room = min(SLICE, core.settings.max_body - size)", "room = SLICE"),
    ),
    served(
        "a look is one slice", "more_than_it_must", ("server/dialects/looking.py", "FIRST, MOST = 4,", "FIRST, MOST = 10_000,")
    ),
    served(
        "blocked messages are listed again",
        "blocked_messages_come_last",
        (SQL_QUEUE, "blocked = after if after[0] >= BLOCKED else (BLOCKED, 0)", "blocked = (BLOCKED, 0)"),
    ),
    served(
        "a run is listed again",
        "reader_holds_is_seen",
        (RUNS, "[message for message in part if message.place > after]", "part"),
    ),
    served(
        "values are not counted before they are parsed",
        "decoded_values or not_read",
        ("server/dialects/native.py", "weight = weigh(request)", "weight = 0"),
    ),
    served(
        "a queue is looked for after its megabytes were parsed",
        "not_read",
        ("server/dialects/native.py", "if request.queue and len(request.body) > SMALL:", "if False:"),
    ),
    staged("a compressed segment is decoded", "would_grow", ("publishing/segments.py", "if compressed:", "if False:")),
    staged(
        "a segment has any number of messages",
        "limit_of_messages",
        ("publishing/segments.py", "if count < 0 or total > MAX_ROWS:", "if False:"),
    ),
    staged(
        "a column's name that is not UTF-8 is a defect",
        "proper_names",
        ("publishing/segments.py", "    except UnicodeDecodeError:\n        raise", "    except KeyError:\n        raise"),
    ),
    served(
        "sends with a token stand alone",
        "share_a_commit",
        ("bridge/commits.py", 'self.share(f"send {queue}"', 'self.share(f"send {queue} {token}"'),
    ),
    served(
        "the connection of an interrupted request is used again",
        "interrupted_request",
        (
            "client/connections.py",
            "            connection.close()\n            raise\n",
            "            self._give(connection)\n            raise\n",
        ),
    ),
    served(
        "what follows an answer is the next one",
        "what_follows_an_answer",
        ("client/http.py", "self.keeps and not self._rest", "self.keeps; self._rest = b''"),
    ),
    served(
        "bytes that belong to no value",
        "not_in_our_format",
        ("server/dialects/native_values.py", "        bodies.check()\n", "        pass\n"),
    ),
    served(
        "what is behind a refusal is served",
        "behind_a_refus",
        (
            "server/http/conversation.py",
            "            self.phase = REFUSED\n            self._forget()\n",
            "            self.phase = IDLE\n",
        ),
        ("server/http/conversation.py", "self._last = self.phase is REFUSED or not", "self._last = not"),
    ),
    served(
        "an error ends the clock of all connections",
        "clock_that_fails",
        (
            "server/http/open_connections.py",
            "self._timer = self.loop.call_later(TICK, self._sweep)  # first,",
            "pass  # first,",
        ),
        (
            "server/http/open_connections.py",
            "connection.abort()\n\n    def close_idle",
            "connection.abort()\n        self._timer = self.loop.call_later(TICK, self._sweep)\n\n    def close_idle",
        ),
        ("server/http/open_connections.py", "            except Exception:\n", "            except KeyError:\n"),
    ),
    served(
        "handshakes do not count",
        "tls_handshakes",
        (
            "server/http/listening.py",
            "self._all.add(connection)",
            "self._tls is None and self._all.add(connection)",
        ),
    ),
    served(
        "a first request takes as long as it likes",
        "first_request",
        ("server/http/connection.py", "(settings.idle_timeout if self.known else", "(settings.idle_timeout if True else"),
    ),
    served(
        "silent connections stay",
        "lock_nobody_out",
        ("server/http/open_connections.py", "if not self._cut_silent(crowd):", "if True:"),
    ),
    served(
        "silent connections fill the budget",
        "handshakes_count",
        ("server/http/open_connections.py", "if not self._cut_silent(self.open):", "if True:"),
    ),
    served(
        "one address takes all connections",
        "over_the_limit or one_address",
        ("server/http/open_connections.py", "if self._by_address[address] >= most:", "if False:"),
    ),
    served(
        "what was begun is answered with 503",
        "answered_late",
        ("server/http/serving.py", "if not awaited.withdraw():\n                return", "awaited.withdraw()"),
    ),
    served(
        "a hang-up behind a request is not seen",
        "hangs_up_behind",
        ("server/http/connection.py", "not self.ended and self._hung_up()", "False"),
    ),
    served(
        "what the kernel refused is taken for heard",
        "kernel_does_not_take",
        ("server/http/connection.py", "        if self._transport.is_closing():\n", "        if False:\n"),
    ),
    served(
        "slow readers have a total time",
        "slow_reader",
        ("server/http/connection.py", "if left != self._left or ", "if self._left < 0 or "),
    ),
    served("the log does not say unheard", "in_the_log", ("server/access_log.py", "if request.unheard:", "if False:")),
    served(
        "answers do not count",
        "kernel_has_them",
        ("server/http/connection.py", "        if request.held:\n", "        if False:\n"),
        (
            "server/http/connection.py",
            '        job.request.body = b""\n',
            "        self._handler.budget.give(job.request.held)\n",
        ),
    ),
    served(
        "messages are claimed without room for them",
        "does_not_fit",
        ("server/budget.py", "if self.used + count * each <= self._most:", "if True:"),
    ),
    served(
        "what a request held is given back too soon",
        "lets_go_of_it",
        (
            "server/http/connection.py",
            "        self._lost = True\n",
            "        self._lost = True\n        self._job and self._handler.budget.give(self._job.request.held)\n",
        ),
    ),
    served(
        "any number of chunks", "number_of_chunks", ("server/http/chunks.py", "if self._chunks > MOST_CHUNKS:", "if False:")
    ),
    served(
        "long heads are remembered",
        "nothing_long",
        ("server/http/head.py", "if len(line) <= SHORT_LINE else _read_line(line)", ""),
    ),
    served(
        "how the bytes are cut makes a difference",
        "bytes_are_cut",
        ("server/http/chunks.py", "if len(data) - at >= room + 2:", "if len(data) - at >= room:"),
    ),
    served(
        "codings that are not known are ignored",
        "not_understood",
        ("server/http/head.py", 'if coding.lower() != "chunked":', 'if "chunked" not in coding.lower():'),
    ),
    served(
        "HTTP/1.0 in chunks goes on",
        "http_1_0_in_chunks",
        ("server/http/head.py", '"keep-alive" in words and length != CHUNKED', '"keep-alive" in words'),
    ),
    served(
        "a log that nobody reads fills the memory",
        "nobody_reads",
        ("server/log_writer.py", "if self._waiting + len(piece) > MOST_BYTES:", "if False:"),
    ),
    served(
        "each refused connection gets a line in the log",
        "with_one_line",
        ("server/http/listening.py", "self._loop.time() - self._reported_at >= REPORT_EVERY", "True"),
    ),
    served(
        "connections take the descriptors of the store",
        "descriptors_to_the_store",
        ("server/http/listening.py", "most - used - FILES_OF_THE_STORE", "most"),
    ),
    served("two hosts", "malformed", ("server/http/head.py", 'elif key == "host":', "elif False:")),
    served(
        "a stop that does not wait",
        "told_to_stop",
        ("server/http/open_connections.py", "give_up_at = self.loop.time() + grace", "give_up_at = 0"),
    ),
    served(
        "a part's header backtracks",
        "hostile_heads",
        (MULTIPART, "value.translate(None, READABLE)", r'not re.fullmatch(rb"[ \t]*([\t -~]*?)[ \t]*", value)'),
    ),
    served("all parts are read before they are counted", "too_many_parts", (MULTIPART, "len(places) > most + 1", "False")),
    served("large bodies stop the event loop", "beside_the_event_loop", ("server/offload.py", "size <= SMALL", "True")),
    served(
        "parts are not in the budget", "beside_the_event_loop", (MQS, "budget.hold(request, size)", "budget.hold(request, 0)")
    ),
    served("settings of any size", "limit_of_their_own", (MQS, "request.length > MAX_SETTINGS", "False")),
    served("a body that is not used is kept", "not_used", ("server/dialects/base.py", "return 0\n", "return 10**6\n")),
    served(
        "a message of parts stays plain",
        "taken_for_several",
        (MQS, "(limit == 1 or not messages[0].content", "(True or not messages[0].content"),
    ),
    served(
        "a stored content type writes headers",
        "another_program",
        ("server/dialects/base.py", "given if given.isascii() and given.isprintable() else OCTETS", "given"),
    ),
    served(
        "an id is looked for in every queue",
        "only_where_it_can_be",
        ("stores/sql/catalogue.py", "return [] if number is None else", "return None and"),
    ),
    served(
        "an unknown id opens every queue of a spool",
        "only_where_it_can_be",
        (SPOOL, "return given if any(", "return given if True or any("),
    ),
    served("a token deletes anywhere", "where_it_may_receive", (MQS, "request.grant.allows(Scope.RECEIVE, name) and", "")),
    served("a listing holds a commit", "between_two_queues", ("server/dialects/base.py", "or time.monotonic() >= end", "")),
    served(
        "each listing has a slice of its own", "one_slice", ("server/dialects/base.py", "[] if done and", "[] if False and")
    ),
    served("a listing of everything", "listing_is_bounded", (MQS, 'min(numbers["limit"], MOST_LISTED)', 'numbers["limit"]')),
    served("a deleted queue goes in one commit", "go_in_parts", ("bridge/verbs.py", ".purge(PART)", ".purge(10**9)")),
    served(
        "a queue that vanishes fails the metrics",
        "vanish_meanwhile",
        ("server/dialects/operators.py", "except QueueNotFound:", "except KeyError:"),
    ),
    served(
        "each health check is an operation",
        "share_a_commit",
        ("server/dialects/operators.py", "if self._check is None or self._check.done():", "if True:"),
    ),
    served(
        "each looks for itself",
        "share_one_look",
        ("server/dialects/base.py", "lambda asked: [act()] * len(asked)", "lambda asked: [act() for _ in asked]"),
    ),
    served("a name leads out of the store", "out_of_the_store", (FILE_QUEUE, '"/" in name', "False")),
    served("an id leads out of the spool", "out_of_the_store", (SPOOL, ' or "/" in queue', "")),
    served("every queue is remembered", "others_have_deleted", ("broker.py", "len(self._queues) >= MOST_QUEUES", "False")),
    served("a name is looked up before it is checked", "out_of_the_store", ("broker.py", "policy.is_name(name) and", "")),
    served("every folder is a queue", "cannot_be_queues", ("broker.py", " if policy.is_name(name)]", "]")),
    served(
        "paths are remembered",
        "sent_is_remembered",
        ("server/dialects/base.py", "    def find(self", "    @__import__('functools').lru_cache(1024)\n    def find(self"),
    ),
    served(
        "what the store failed at is sent again",
        "not_sent_again",
        (
            "bridge/performing.py",
            "            if len(group) == 1 or not isinstance(error, PenstockError) or isinstance(error, StoreError):\n"
            "                _fail(group, error)\n            else:",
            "            if len(group) == 1 or not isinstance(error, PenstockError):\n"
            "                _fail(group, error)\n            else:",
        ),
    ),
    served(
        "what a long answer has taken is thrown away",
        "although_the_next_part_fails",
        ("bridge/taking.py", "if not share and not any(shares):\n                        raise", "raise"),
    ),
    served(
        "a remote consumer goes by its own clock",
        "by_the_servers_clock",
        ("client/broker.py", 'int(self._calls.describe()["at"])', "system_clock()"),
    ),
    served(
        "a holder is lost over HTTP",
        "give_its_name",
        ("bridge/taking.py", "mode=mode, holder=holder, ", "mode=mode, "),
    ),
    served(
        "messages of a group that come together go to several clients",
        "share_no_group",
        ("bridge/taking.py", "limit if how.together else wanted", "wanted"),
    ),
    benched(
        "a server's children outlive the benchmark",
        "stopped_with_all_that_it_has_started",
        ("bench/brokers/processes.py", "        found |= more", "        break"),
    ),
    benched(
        "a signal makes the benchmark forget a process that starts",
        "a_signal_while_a_process_starts",
        ("bench/brokers/processes.py", "lambda number, _: came.append(number)", "signal.default_int_handler"),
    ),
    benched(
        "a turn that begins late has no call",
        "however_late",
        ("bench/brokers/generator.py", "while not took or (now < end", "while (now < end"),
    ),
    benched(
        "beanstalkd does not sync",
        "every_answer_waits",
        ("bench/brokers/servers.py", '"-f0")', '"-F")'),
    ),
    benched(
        "a server of SQS that gives a message twice is praised",
        "gives_a_message_twice",
        ("bench/sqs/comparison.py", "if self._received > self._sent:", "if False:"),
    ),
    benched(
        "a server of SQS that answers with errors is praised",
        "answers_with_errors",
        ("bench/sqs/comparison.py", "        if self.errors:", "        if False:"),
    ),
    benched(
        "a framework whose broker syncs too seldom is said to lose nothing",
        "syncs_too_seldom_can_lose",
        ("bench/frameworks/report.py", "if target.name in lax(results) else", "if False else"),
    ),
    benched(
        "what a framework sends costs nothing in its rate",
        "sent_and_then_worked_off",
        ("bench/frameworks/comparison.py", "1 / (1 / self.sends + 1 / self.works)", "self.works"),
    ),
    benched(
        "a framework that fails ends the comparison",
        "framework_that_fails",
        ("bench/frameworks/comparison.py", "except (Failed, RuntimeError) as error:", "except KeyError as error:"),
    ),
    benched(
        "the cost of mqs is divided by that of JSON",
        "half_as_much_again",
        ("bench/sqs/report.py", "for client in (JSON, MQS)]", "for client in (MQS, JSON)]"),
    ),
    benched(
        "the clients of the benchmark delete nothing",
        "receive_and_delete_what_they_count",
        ("bench/sqs/comparison.py", "            DELETE: self._delete,", "            DELETE: self._receive,"),
    ),
]

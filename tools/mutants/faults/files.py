"""Faults in the stores of files."""

from __future__ import annotations

from planted import BATCHES, FILE_QUEUE, FILE_TIMES, MESSAGE, PUBLISHING, SPOOL, SQLITE_DATABASE, SQLITE_FILE, Mutant

CLAIM_FILES = "stores/files/readers.py"
FILED_SENDS = "stores/files/sending.py"
HOLDING = "stores/files/holding.py"
FOLDER = "stores/files/folder.py"
VSQS = "stores/files/vsqs.py"
SIDECAR = "stores/files/sidecar.py"
LOCKS = "stores/locks.py"
MARKS = "stores/files/marks.py"
SWEEPING = "stores/files/sweeping.py"
RECORDS = "stores/files/records.py"
FILE_HISTORY = "stores/files/history.py"
RESERVE = "stores/reserve.py"
JOURNAL = "stores/files/outbox.py"


def filed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the file stores."""
    files = ("vsqs", "spool", "files", "interop")
    return Mutant(name, tests, changes, tuple(f"tests/test_{file}.py" for file in files))


def locked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the locks between processes."""
    return Mutant(name, tests, changes, ("tests/test_file_locks.py",))


def named(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in handling file names of other programs."""
    return Mutant(name, tests, changes, ("tests/test_foreign_names.py",))


def passing(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in how messages pass through the spool's new/."""
    return Mutant(name, tests, changes, ("tests/test_spool_new.py",))


def hurt(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in how the file stores handle damage."""
    return Mutant(name, "damaged or settings or anew", changes, ("tests/test_file_damage.py",))


def reserved(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the reserve for a full disk."""
    return Mutant(name, tests, changes, ("tests/test_reserve.py",))


FAULTS = [
    filed(
        "a number that was moved in is given again",
        "shares_its_number",
        (VSQS, "self._last = max(self._last, self.number(id))", "pass"),
    ),
    filed(
        "what a full disk kept from being claimed is not seen",
        "kept_from_being_claimed",
        (HOLDING, "                folder.note(id, folder.find(id))\n", ""),
    ),
    filed(
        "a message's file is not synced", "power_cut", (FILED_SENDS, "                os.fsync(handle)", "                pass")
    ),
    filed("a folder is not synced", "power_cut", (BATCHES, "                    sync(folder)", "pass".rjust(24))),
    filed("the last number is forgotten", "one_millisecond", (VSQS, "max(self._last + 1, now // 1000", "max(1, now // 1000")),
    filed("every send lists", "lists_nothing", (VSQS, "if not self._ours:", "if True:")),
    filed("a stranger's number is not looked for", "has_taken_is_taken", (VSQS, "if not self._ours:", "if False:")),
    filed(
        "the clock may come up with a number", "waits_for_its_turn", (VSQS, "            if taken:", "            if False:")
    ),
    filed(
        "a stranger's claim is not noticed",
        "stale_once_the_other",
        (HOLDING, "return hidden if hidden in (0,", "return hidden if True or hidden in (0,"),
    ),
    filed(
        "a stranger's fetch has no timer",
        "the_other_holds",
        (SPOOL, "if received is not None and received.seal == status.st_ctime_ns:", "if True:"),
    ),
    filed(
        "a lost race is an error",
        "lose_any_race",
        (HOLDING, "except FileNotFoundError:  # another", "except ZeroDivisionError:  # another"),
    ),
    filed("what has lapsed is not given back", "let_lapse", (FOLDER, "and first[0] <= now:", "and first[0] < 0:")),
    filed(
        "what is half written is delivered",
        "being_written",
        (SPOOL, "        elif is_written(entry.path):", "        elif True:"),
    ),
    filed("orphans stay", "dead_sender", (FILE_TIMES, "return age > ORPHANED", "return False and age > ORPHANED")),
    filed(
        "a drop takes no lock and a create neither",
        "many_creators or while_it_is_dropped",
        (SIDECAR, "        self._lock.take()\n", ""),
    ),
    filed(
        "the record of an extension comes after the rename",
        "killed_after_its_rename",
        (HOLDING, "            folder.write_received(id, received, durable=lasting)\n", ""),
        (
            HOLDING,
            "            if seal := layout.seal(id, until):\n"
            "                folder.write_received(id, received._replace(seal=seal))",
            "            seal = layout.seal(id, until)\n"
            "            folder.write_received(id, received._replace(seal=seal), durable=lasting)",
        ),
    ),
    locked("a lock is waited for for ever", "frozen", ("patience.py", "if now >= give_up_at:", "if False:")),
    locked(
        "threads add up their timeouts",
        "counts_as_waiting",
        (LOCKS, "timeout=patience.timeout - self.spent", "timeout=patience.timeout"),
    ),
    locked("the wait for other threads is forgotten", "counts_as_waiting", (BATCHES, "spent = waited", "spent = 0.0")),
    locked(
        "a lock is given back by a close alone",
        "has_a_copy",
        (LOCKS, "            flock(handle, LOCK_UN)  # first", "            pass  # first"),
    ),
    locked("a child keeps copies of locks", "left_to_its_child", (LOCKS, "os.register_at_fork(after_in_child=", "print(")),
    locked(
        "a child gives its parent's lock back", "leaves_the_lock", (LOCKS, "handle, lock.handle = lock.handle, -1", "continue")
    ),
    locked(
        "an interrupt leaves a lock behind",
        "interrupt",
        (BATCHES, "        for lock in list(self.locks.open):", "        for lock in []:"),
        (FOLDER, "        if failed:\n            self.sidecar.give()", "        if failed:\n            pass"),
    ),
    locked(
        "one frozen writer keeps the others from being tended",
        "tends",
        (PUBLISHING, "except StoreBusy as error:", "except ZeroDivisionError as error:"),
    ),
    filed(
        "a mark counts for whatever has its number",
        "same_number",
        (MARKS, "return mark is not None and digest(mark) == name", "return True"),
    ),
    filed(
        "a failed send leaves its mark",
        "fails_or_dies",
        (FILED_SENDS, "self._marks.drop_draft(id, fresh[id].mark)", "self._marks.drop_draft(id, None)"),
    ),
    filed(
        "a dead sender's draft goes before its mark",
        "outlive_its_draft",
        (SWEEPING, 'self._marks.drop_draft(id, Extra.unpack(self._sidecar.read_json("head", id)).mark)', "os.unlink(path)"),
    ),
    filed(
        "a mark is not looked at again before its message is published",
        "makes_ours_the_duplicate",
        (
            FILED_SENDS,
            "for id, entry in fresh.items() if entry.mark and (first",
            "for id, entry in {}.items() if entry.mark and (first",
        ),
    ),
    filed(
        "a mark is written after its message is published",
        "sent_again",
        (FILED_SENDS, "                    self._marks.write(rows)\n", ""),
        (
            FILED_SENDS,
            "        self._end_insert(rows)\n        return",
            "        self._marks.write(rows); self._end_insert(rows)\n        return",
        ),
    ),
    filed(
        "a mark counts whether its message was published or not",
        "sent_again",
        (MARKS, "return not self._folder.is_draft(id) or", "return True or"),
    ),
    filed(
        "an extension that fails voids the receipt",
        "extension_that_fails",
        (HOLDING, "                self._keep_receipt(id, ", "                print(id, "),
    ),
    filed(
        "a failed send takes the head of a message that it cannot remove",
        "leaves_no_message_or_a_whole_one",
        (
            FILED_SENDS,
            "                os.unlink(path)\n                self._folder.forget(id)",
            "                self._folder.forget(id); os.unlink(path)",
        ),
    ),
    filed(
        "a failed send leaves what it has published",
        "leaves_no_message_or_a_whole_one",
        (FILED_SENDS, "if id in published and not self._folder.is_draft(id):", "if False:"),
    ),
    passing(
        "sends do not pass through new/",
        "watches_new",
        (
            SPOOL,
            "        if hidden:\n            self._move(self.draft(id)",
            "        if True:\n            self._move(self.draft(id)",
        ),
    ),
    passing(
        "what is delayed passes through new/",
        "does_not_pass",
        (
            SPOOL,
            "        if hidden:\n            self._move(self.draft(id)",
            "        if False:\n            self._move(self.draft(id)",
        ),
    ),
    passing(
        "a quicker mover is an error",
        "quicker",
        (SPOOL, "if os.path.exists(passing):", "if True:"),
    ),
    passing("a failed send stays in new/", "fails_on_its_way", (SPOOL, ', f"{self._new}/{self._queue}:{id}"]', "]")),
    passing(
        "a send lets every other queue be listed",
        "let_nobody_list",
        (SPOOL, "return queue, 0, delay", "return queue, new, delay"),
    ),
    passing(
        "what comes into new/ is overlooked",
        "comes_into_new",
        (SPOOL, "            if os.listdir(self._new):", "            if False:"),
    ),
    reserved(
        "a send that finds no space does not ask for clearing",
        "drained_takes_messages_again",
        (
            "queue/sending.py",
            "        except StoreFull:\n            self._queue.tend_for_space(now)\n",
            "        except StoreFull:\n",
        ),
    ),
    reserved(
        "a new member that finds no space does not ask for clearing",
        "drained_takes_messages_again",
        ("queue/sets.py", "            queue.tend_for_space(now)\n", ""),
    ),
    reserved(
        "few pages are kept although the reserve is given up",
        "although_they_are_few",
        (SQLITE_DATABASE, "(reserve.size() != 0 and (free < RECLAIM_PAGES", "((free < RECLAIM_PAGES"),
    ),
    reserved(
        "pages are returned in parts that a small disk has no room for",
        "drained_takes_messages_again",
        (SQLITE_DATABASE, "max(1, min(RECLAIM_AT_ONCE, reserve.goal() // 8192))", "RECLAIM_AT_ONCE"),
    ),
    reserved(
        "clearing goes on although it gains nothing",
        "comes_to_an_end",
        (
            SQLITE_DATABASE,
            '        return 0 < self.pragma("freelist_count") < free\n\n    def give_back',
            "        return True\n\n    def give_back",
        ),
    ),
    reserved(
        "the reserve is never given up",
        "full_to_the_last_byte or without_a_file or in_an_instant",
        (RESERVE, "os.truncate(self._pieces[0], 0)", "pass"),
        (RESERVE, "os.unlink(piece)", "pass"),
    ),
    reserved("a send uses the reserve", "full_to_the_last_byte", (RESERVE, "self.size() == 0)", "False)")),
    reserved(
        "what was given up is made again at once",
        "taken_by_the_next_send",
        (RESERVE, "if free[0] < 2 * each * len(self._pieces) or", "if"),
    ),
    reserved(
        "the reserve is not made again",
        "made_again",
        (
            RESERVE,
            "        if self.size():\n            return True\n",
            "        return bool(self.size()) if self.size() is not None else self._first()\n\n    def _first(self) -> bool:\n",
        ),
    ),
    reserved(
        "no file is kept back",
        "without_a_file",
        (BATCHES, "RESERVED_FILES, RESERVED_BYTES = 64, 4096", "RESERVED_FILES, RESERVED_BYTES = 1, 262144"),
    ),
    reserved("a receiver gets all or nothing", "lets_it_have", (HOLDING, "if not claimed or not is_full(error):", "if True:")),
    reserved(
        "a small disk's log grows as any other",
        "stays_smaller",
        (SQLITE_FILE, "if (goal := self.reserve.goal()) < RESERVED:", "if (goal := 0):"),
    ),
    reserved("a store without a reserve refuses", "never_had_room", (RESERVE, "self.size() == 0)", "True)")),
    named("ids are hexadecimal", "can_be_any", (SPOOL, "[!-.0-~]{1,200}", "[0-9a-fA-F-]{1,64}")),
    named("ids with one beginning are one", "bear_no_time", (SPOOL, "blake2b(id.encode()", "blake2b(id.encode()[:5]")),
    named(
        "what is no message is not told",
        "counted_and_named",
        ("queue/retention.py", "            if names:\n", "            if False:\n"),
    ),
    named(
        "what is no message is not counted",
        "counted_and_named",
        (FILE_QUEUE, "foreign=self._foreign(),\n", "foreign=[],\n"),
    ),
    named(
        "a second file of one id replaces the first",
        "waits_in_new",
        (SPOOL, ' or os.path.exists(f"{root}/delay/{entry.name}")', ""),
    ),
    named("a fractional expiry is unreadable", "expiry", (VSQS, "if number is None or", "if True or")),
    named("two files of one number become one", "not_made_one", (VSQS, " or files[id] > 1", "")),
    named("a pipe is read", "no_file", (FOLDER, "if not stat.S_ISREG(status.st_mode):", "if False:")),
    named(
        "a foreign id has the first retention",
        "retention_of_now",
        (FOLDER, "if since < number or undated][-1]", "if since < number][-1]"),
    ),
    named("a UUID of version 1 has no time", "version_1", (SPOOL, "_number_of_version_1(id) or ", "")),
    hurt(
        "records are not checked",
        (RECORDS, "def need(fits: bool) -> None:\n    if not fits:", "def need(fits: bool) -> None:\n    if False:"),
    ),
    hurt("a damaged record is an error", (RECORDS, "DAMAGE = (ValueError, TypeError, ", "DAMAGE = (KeyError, TypeError, ")),
    hurt("a damaged head is no damage", (RECORDS, 'DAMAGED_HEAD = {"intact": False}', 'DAMAGED_HEAD = {"intact": True}')),
    hurt("what is damaged is not counted", (FILE_QUEUE, "damaged=aside + self.sidecar.damaged()", "damaged=aside")),
    hurt("what is damaged is not told", ("broker.py", "        store.on_damage = _log_damage\n", "")),
    hurt(
        "what is damaged is removed",
        (
            RECORDS,
            "        os.rename(path, target)\n        if read(target) == content:",
            "        os.unlink(path)\n        if True:",
        ),
    ),
    hurt(
        "a claim that is damaged keeps its messages",
        (SWEEPING, "        if self._sidecar.damaged():", "        if False:"),
    ),
    hurt(
        "settings have no copy", (SIDECAR, '        self.write_json(record, "settings.copy")\n\n    def keep', "\n    def keep")
    ),
    hurt(
        "a damaged message is deleted with its claim",
        (CLAIM_FILES, "if received is None or received.released != ASIDE:", "if True:"),
    ),
    hurt("what was written anew is set aside", (RECORDS, "if read(target) == content:", "if True:")),
    hurt("any last number is believed", (SIDECAR, "if 0 <= last <= most else (0, 0)", "if True else (0, 0)")),
    filed("peers are ignored", "with_peers", (FOLDER, "if not self.layout.peers or first is None:", "if True:")),
    filed(
        "who removes nothing is given it",
        "another_takes_first or another_removes_first",
        ("queue/receiving.py", "zip(delivered, settled, strict=True) if gone]", "zip(delivered, settled, strict=True)]"),
    ),
    filed(
        "at most once looks only once",
        "gave_back",
        (HOLDING, "return 0 if self._sidecar.received(receipt.id) == brief.before else None", "return 0"),
    ),
    filed(
        "what was looked at stays in mind",
        "another_takes_first",
        (FOLDER, "        self.brief.clear()\n", ""),
    ),
    filed(
        "new settings are taken for old ones",
        "looks_the_same",
        (SIDECAR, "None if is_recent(max(seen[1:])) else seen", "seen"),
    ),
    filed(
        "what an interrupted receive has left out of the picture stays out",
        "receive_was_interrupted",
        (FOLDER, "            if self.changes:", "            if False:"),
    ),
    filed(
        "what an interrupted receive at most once has left out of the picture stays out",
        "receive_was_interrupted",
        (HOLDING, "        folder.changes = True\n", ""),
    ),
    filed(
        "what an interrupted receive under the lock has left out of the picture stays out",
        "receive_was_interrupted",
        (FOLDER, "            folder.changes = True\n", ""),
    ),
    filed(
        "a sweep of files goes through everything at once",
        "part_at_a_time or part_of_a_long",
        (SWEEPING, "list(islice(records, SLICE))", "list(records)"),
    ),
    filed(
        "a sweep leaves a folder open",
        "leaves_no_folder_open",
        (SWEEPING, "        self._records = None\n\n    def _begin", "        pass\n\n    def _begin"),
    ),
    filed(
        "a sweep that failed goes on where it was",
        "failed_begins_anew",
        (SWEEPING, "records, self._records = self._records, None  #", "records = self._records  #"),
    ),
    filed(
        "a sweep takes the head of what another process has sent",
        "while_a_sweep_goes_on",
        (SWEEPING, "        self._folder.refresh()  # another", "        pass  # another"),
    ),
    filed(
        "a sweep takes the history of what another process has settled",
        "while_a_sweep_goes_on",
        (FILE_HISTORY, " and self._folder.find(id) is not None", ""),
    ),
    filed("a manifest is ignored", "interrupted_publication", (PUBLISHING, "if found.name == MANIFEST)", "if False)")),
    filed("a journal is ignored", "interrupted_publication", (JOURNAL, 'begun["place"] == place', "False")),
    filed(
        "a begun publication is taken back",
        "fails_half_way",
        (FILED_SENDS, "            if not begun:  #", "            if True:  #"),
    ),
    filed(
        "any receipt tells how a message ended (files)",
        "unfinished_has_failed",
        (FILE_HISTORY, "message is not None and receipt.delivery in (None, message.delivery)", "message is not None"),
    ),
    filed(
        "files: a redriven message stands beside an equal one",
        "an_equal_message_is_in_its_queue",
        (HOLDING, "if lasting and there._marks.is_marked(lasting):", "if False:"),
    ),
    filed(
        "files: a redriven message has no mark",
        "of_a_redriven_one",
        (HOLDING, "there._marks.write([MarkRow(id, message.sent_at, now, lasting, new.mark_until)])", "pass"),
    ),
    filed(
        "a file's delivery is a count again",
        "numbered_by_its_instant",
        (HOLDING, "next_delivery(received.delivery, now)", "received.delivery + 1"),
    ),
    filed(
        "a file's record does not name its holder", "sees_who_holds", (HOLDING, "        holder=holder,\n    )\n", "    )\n")
    ),
    filed(
        "a released file keeps its holder",
        "given_back_has_no_holder",
        (HOLDING, "received = received._replace(holder=None)", "pass"),
    ),
    filed(
        "what a longer name has left is read",
        "shorter_name",
        (RECORDS, "content[RECEIVED.size + 1 :][: content[RECEIVED.size]]", "content[RECEIVED.size + 1 :]"),
    ),
    filed(
        "a record from before there were holders is nothing",
        "before_there_were_holders",
        (RECORDS, "need(len(content) >= RECEIVED.size)", "need(len(content) > RECEIVED.size)"),
    ),
    filed(
        "files: processes have a clock each",
        "wall_clock",
        (
            "stores/files/store.py",
            'return machine_clock(ClockFiles(self.root / FOLDER / ".clock", str(self)))',
            "return super().clock()",
        ),
    ),
    filed(
        "what is received is never synced",
        "only_receives_since",
        (HOLDING, "self._transactions.claimed.add(self._sidecar.received_path(id))", "pass"),
    ),
    filed(
        "what is received is synced with each commit",
        "carries_along",
        (BATCHES, "now >= self._claims_synced + CLAIMS_EVERY", "True"),
    ),
    filed(
        "what is gone is synced",
        "carries_along",
        (HOLDING, "self._transactions.claimed.discard(self._sidecar.received_path(id))", "pass"),
    ),
    filed(
        "a record that the disk refuses fails a send",
        "refuses_the_record",
        (
            BATCHES,
            "        with suppress(OSError):\n            if len(claimed)",
            "        with suppress(ValueError):\n            if len(claimed)",
        ),
    ),
    filed("after a power cut a file's receipt fits again", "before_a_power_cut", (MESSAGE, "max(last + 1, now)", "last + 1")),
    locked(
        "a second interrupt leaves a lock behind",
        "second_interrupt",
        (BATCHES, "if self._torn:", "if False:"),
    ),
    filed(
        "an interrupt at the end of a batch of files leaves it open",
        "interrupt_at_any_instant",
        (BATCHES, "with self.lock:\n            waited", "if self.lock.acquire():\n            waited"),
        (
            BATCHES,
            "                    self._opener = None\n",
            "                    self._opener = None\n                self.lock.release()\n",
        ),
    ),
]

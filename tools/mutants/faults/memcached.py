"""Faults in the memcached store."""

from __future__ import annotations

from planted import Mutant

SENDING = "stores/memcached/sending.py"
PAGES = "stores/memcached/pages.py"
CONTENTS = "stores/memcached/contents.py"
MOVING = "stores/memcached/moving.py"
MEMCACHED_QUEUE = "stores/memcached/queue.py"
SLICES = "stores/memcached/sweeping.py"
SLOTS = "stores/memcached/formats.py"


def cached(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the memcached store."""
    return Mutant(name, tests, changes, ("tests/test_memcached.py", "tests/test_memcached_faults.py"))


def late(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the memcached store that shows when a process is late."""
    return Mutant(name, tests, changes, ("tests/test_memcached_late.py",))


def relayed(name: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in an interrupted move between queues in memcached."""
    return Mutant(name, "move", changes, ("tests/test_memcached_moves.py",))


FAULTS = [
    late(
        "a page is made of messages that nobody sends",
        "three_that_send",
        (PAGES, "                if self._records.is_outrun(at, record):\n                    continue\n", ""),
    ),
    cached(
        "settled at once, it is hidden for a minute",
        "random_calls",
        (MEMCACHED_QUEUE, "                message.visible_at = FOREVER\n", "                pass\n"),
    ),
    cached(
        "a slot is filled without comparing",
        "threads or processes",
        (
            SENDING,
            'if keys.link.cas(keys.key("p", at), page.pack(), token):',
            'keys.link.put({keys.key("p", at): page.pack()})\n            if True:',
        ),
    ),
    cached(
        "a page is written without comparing",
        "threads or processes or one_wins",
        (
            PAGES,
            "return self._link.cas(key, packed, token)\n        except",
            "return self._link.put({key: packed}) is None\n        except",
        ),
    ),
    cached(
        "the mark of a dead putter counts",
        "killed_between",
        (
            CONTENTS,
            "        if page.states[slot] == EMPTY:\n            page = self.finish_send",
            "        if False:\n            page = self.finish_send",
        ),
        (CONTENTS, "return number if page.is_live(slot) else 0", "return number"),
    ),
    cached(
        "a mark is set without comparing",
        "add_a_member",
        (SENDING, "if link.cas(key, value, token, seconds):", "link.put({key: value})\n    if True:"),
    ),
    cached(
        "an evicted message is not counted",
        "evicted_message",
        (PAGES, 'if self._link.incr(self._keys.key("lost"), 1) is None:', "if False:"),
    ),
    cached(
        "an evicted page stays lost",
        "evicted_page",
        (PAGES, "for at, record in records.items():\n                if", "for at, record in ():\n                if"),
    ),
    cached(
        "another's lock is deleted",
        "new_holder",
        ("stores/memcached/link.py", "link.delete_if(key, token.__eq__)", "link.forget([key])"),
    ),
    cached(
        "nothing is spared for a full server",
        "still_be_emptied",
        (
            PAGES,
            "for spare in range(SPARES):\n                self._link.forget",
            "for spare in range(0):\n                self._link.forget",
        ),
    ),
    cached(
        "a move that was cut short is made again",
        "killed_between",
        (MOVING, "if self._target.finish_send(number, records.load_one(number)).state(number % SLOTS) != VOID:", "if False:"),
    ),
    cached(
        "who publishes does not renew its lock",
        "outlasts_its_lock",
        ("stores/memcached/outbox.py", '        self.servers.renew(f"writer:{writer}")\n', "        pass\n"),
    ),
    cached(
        "marks that have served stay",
        "publication_leaves_no_marks",
        ("publishing/publishing.py", "                forget()\n", "                pass\n"),
    ),
    cached("a release is found late", "behind_a_full_page", (PAGES, "bounds[number % FAN] = 0", "pass")),
    relayed(
        "a late mover takes along what another has moved",
        (MOVING, "if not self._give_up(head, self._record):", "if records.discard(record):"),
    ),
    cached(
        "any receipt tells how a message ended (memcached)",
        "unfinished_has_failed",
        (CONTENTS, "in states and delivery in (None, page.delivery[slot])", "in states"),
    ),
    cached(
        "memcached: a redriven message stands beside an equal one",
        "an_equal_message_is_in_its_queue",
        (MOVING, "FOREVER and self._target.in_force(value, 0):", "FOREVER and False:"),
    ),
    cached("memcached: a letter that stays is hidden", "stays_as_long", (MOVING, "page.become(slot, *before[0])", "pass")),
    cached(
        "memcached: the history ends a window",
        "big_message",
        (
            CONTENTS,
            "                if record.is_marked:\n",
            "                if True:\n",
        ),
    ),
    cached(
        "a slot's delivery is a count again",
        "numbered_by_its_instant",
        (SLOTS, "next_delivery(self.delivery[slot], now)", "self.delivery[slot] + 1"),
    ),
    cached(
        "a released slot keeps its holder",
        "given_back_has_no_holder",
        (SLOTS, "if state in (State.QUEUED, State.DAMAGED):", "if state is None:"),
    ),
    cached("an old page is gone", "before_there_were_holders", (SLOTS, "if len(packed) == OLD_PAGE_BYTES:", "if False:")),
    cached(
        "a moved message's delivery has four bytes",
        "deliveries_were_instants",
        (SLOTS, "-self.delivery if self.delivery else", "-(self.delivery % 2**32) if self.delivery else"),
    ),
    late(
        "memcached: a tombstone does not tell what was void",
        "send_that_is_late or burial_that_is_late",
        (SLOTS, "if self.states.count(GONE) == SLOTS:\n            return b", "if self.is_dead():\n            return b"),
    ),
    late(
        "memcached: a page that is past takes a message",
        "makes_again",
        (SENDING, "if pages.is_past(at, found):", "if False:"),
    ),
    late(
        "memcached: a page that is past is made again, and stays",
        "makes_again",
        (PAGES, "if self.is_past(number, found):", "if False:"),
    ),
    late(
        "memcached: a message that others find has no mark",
        "died_before_its_mark",
        (PAGES, "                self._records.restore_mark(at, record)\n", ""),
    ),
    late(
        "memcached: a late sender is a duplicate of itself",
        "send_that_is_late",
        (SENDING, "if number not in sent}, dead=True)", "if number not in sent})"),
    ),
    late(
        "memcached: a mark counts whose message was never there",
        "past_and_died",
        (CONTENTS, "return 0 if self.records.load_one(number) else number", "return number"),
    ),
    cached(
        "memcached: processes have a clock each",
        "wall_clock or agree_about",
        (
            "stores/memcached/store.py",
            "return machine_clock(MemcachedClock(self._servers))",
            "return super().clock()",
        ),
    ),
    cached(
        "memcached: a signal handler reads the answers of the call that it has interrupted",
        "handler",
        ("stores/memcached/link.py", "                refuse_handlers(self, self._opener)\n", "                pass\n"),
    ),
    relayed(
        "memcached: what is being moved is received",
        (MEMCACHED_QUEUE, "if not Mover(self._catalogue, contents).resume(at, page, slots, now):", "if True:"),
    ),
    relayed(
        "memcached: a redrive does not see that a move was cut short",
        (MOVING, "            if page.states[slot] & MOVING:\n                return False\n", ""),
    ),
    relayed(
        "memcached: a late mover moves what was taken from it",
        (MOVING, "            if latest > attempt:\n", "            if False:\n"),
    ),
    relayed(
        "memcached: a move is undone without telling a late mover",
        (MOVING, "if self._link.cas(self._note, MARK.pack(0, attempt), token, MOVED_SECONDS):", "if True:"),
    ),
    relayed(
        "memcached: nobody knows that a moved message has been and gone",
        ("stores/memcached/records.py", "        self._tell_movers(records)\n", ""),
    ),
    relayed(
        "memcached: a move to a server that is gone blocks the others",
        (MOVING, "with suppress(StoreError):  # the other queue's", "if True:  # the other queue's"),
    ),
    cached(
        "memcached: what a killed process has given back is never seen",
        "killed_between and give_up",
        (SLICES, "if min(page.visible) < self._survey.bound(at):", "if False:"),
    ),
    cached(
        "memcached: a full server loses what it has just taken",
        "before_the_server_was_full",
        (SENDING, "for number, record in records.items() if number not in sent}", "for number, record in records.items()}"),
    ),
    cached(
        "memcached: a send fails for a hint",
        "before_the_server_was_full",
        (PAGES, "with suppress(StoreFull):  # if this fails", "if True:  # if this fails"),
    ),
    cached(
        "memcached: an exchange forgets what it deleted",
        "exchange_whose_receive_fails",
        (MEMCACHED_QUEUE, "        except StoreError:  # the deletion", "        except KeyError:  # the deletion"),
    ),
    cached(
        "memcached: one sweep clears the whole history",
        "a_slice_at_a_time",
        (SLICES, "            if left <= 0:\n                break\n", ""),
    ),
    cached(
        "memcached: one sweep deletes all that a dropped queue has left",
        "dropped_queue_goes",
        ("stores/memcached/catalogue.py", "end = min(survey.tail + CLEARED, survey.last + 1)", "end = survey.last + 1"),
    ),
    cached(
        "memcached: an interrupt leaves settings that are never read again",
        "interrupted_while_it_reads_the_settings",
        (
            "stores/memcached/records.py",
            "        settings = unpack_settings(packed)\n",
            "        self.raw = raw\n        settings = unpack_settings(packed)\n",
        ),
    ),
    cached(
        "memcached: an interrupt leaves a queue that a process knows without its settings",
        "never_finished_reading",
        (
            "stores/memcached/catalogue.py",
            "            known = Contents(self._keyspace(name, salt))\n",
            "            known = self._known[name] = Contents(self._keyspace(name, salt))\n",
        ),
    ),
    cached(
        "memcached: a sweep clears what was settled since it looked",
        "settled_during_a_sweep",
        (
            CONTENTS,
            "[slot for slot in old if page.state(slot) in SETTLED]",
            "[slot for slot in range(SLOTS) if page.state(slot) in SETTLED]",
        ),
    ),
    cached(
        "memcached: what a reader hid for ever stays hidden",
        "confirmation_that_was_cut_short",
        (SLICES, "        self._give_back(at, page)\n", ""),
    ),
    relayed(
        "memcached: a sweep leaves a move that was cut short",
        (SLICES, "        self._mover.resume(at, page, page.ready(self._now), self._now)\n", ""),
    ),
]

"""Faults in the page: who gets in, and what jobs do."""

from __future__ import annotations

from planted import Mutant

PAGE, JOBS = "server/page/", "server/jobs/"
AUTH, SESSIONS, DIALECT = "server/auth.py", f"{PAGE}sessions.py", f"{PAGE}dialect.py"
BULK, BOOK, WORK, FILTERS, NATIVE = (
    "queue/bulk.py",
    f"{JOBS}book.py",
    f"{JOBS}work.py",
    f"{JOBS}filters.py",
    "server/dialects/native_jobs.py",
)


def entered(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, f"({tests}) and not vsqs and not postgresql", changes, ("tests/test_page_access.py",))


def done(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, f"({tests}) and not vsqs and not spool and not Postgresql", changes, ("tests/test_jobs.py",))


FAULTS = [
    entered(
        "a change needs no CSRF token",
        "csrf",
        (SESSIONS, "        if request.method not in SAFE:\n            self.check_csrf(session, request)\n", ""),
    ),
    entered(
        "the CSRF token of any session will do",
        "csrf",
        (SESSIONS, 'return _prove(self.key, f"csrf {self.nonce}")', 'return _prove(self.key, "csrf")'),
    ),
    entered("anybody signs others out", "csrf", (DIALECT, "            self._sessions.check_csrf(found, request)\n", "")),
    entered(
        "a cookie counts from any origin",
        "no_other_site and locked",
        (SESSIONS, "        check_origin(request.headers)\n", ""),
    ),
    entered(
        "another site signs a person in",
        "no_other_site and locked",
        (AUTH, "        check_origin(headers)\n\n    def grant_signed", "\n    def grant_signed"),
    ),
    entered("any name leads to the page", "link_from or no_other_site", (AUTH, "not self._is_known(host)", "False")),
    entered("no link leads to the page", "link_from", (AUTH, "own=not (follows_link and shown", "own=not (False and shown")),
    entered("a frame shows the page", "link_from", (AUTH, '== ("navigate", "document")', '>= ("navigate", "")')),
    entered(
        "a cookie counts in every dialect",
        "dialect_of_the_page",
        (
            "server/dialects/base.py",
            "        return guard.grant(request.headers)\n",
            "        return guard.grant_own(request)\n",
        ),
    ),
    entered("a cookie is not proven", "forged", (SESSIONS, "if hmac.compare_digest(_prove(key, told), proof):", "if True:")),
    entered("a cookie is proven by a file of settings", "forged", (SESSIONS, 'key=store or b""', 'key=b""')),
    entered("a session lasts for ever", "not_renewed", (SESSIONS, "found.expires > self._clock() and ", "")),
    entered(
        "a session is renewed for ever",
        "not_renewed",
        (SESSIONS, "        most = self.started + LONGEST\n", "        most = self.started + 10 * LONGEST\n"),
    ),
    entered("a session outlives its token's time", "with_its_token", (SESSIONS, "min(most, int(self.token.expires))", "most")),
    entered("a session outlives its token", "stream_ends", (SESSIONS, "        return is_known and ", "        return ")),
    entered(
        "a copy of a cookie outlives the sign-out", "signs_in_works", (SESSIONS, "session.nonce not in self._ended and ", "")
    ),
    entered(
        "the key is made anew",
        "through_a_restart",
        (SESSIONS, "            if KEY not in labels:\n", "            if True:\n"),
        (SESSIONS, "        settings = self._broker.store.load(QUEUE)\n", "        settings = None\n"),
    ),
    entered("a planted cookie counts", "planted", (SESSIONS, 'found.pop() if len(found) == 1 else ""', "max(found)")),
    entered(
        "the key is shown",
        "shown_the_key",
        ("server/dialects/base.py", "if any(name.startswith(OWN_LABELS)", "if not any(name"),
    ),
    Mutant(
        "a client writes the labels of servers",
        "attack or label or forge",
        (("server/dialects/base.py", "if isinstance(name, str) and name.startswith(OWN_LABELS):", "if False:"),),
        ("tests/test_page_attacks.py",),
    ),
    entered("wrong tokens are not counted", "wrong_tokens", (SESSIONS, "            self._attempts.count(address)\n", "")),
    entered(
        "wrong tokens are counted for ever", "forgotten_in_time", (f"{PAGE}attempts.py", "if left > 0 and count", "if count")
    ),
    entered(
        "addresses are remembered for ever",
        "forgotten_in_time",
        (f"{PAGE}attempts.py", "            del self._wrong[next(iter(self._wrong))]\n", "            pass\n"),
    ),
    entered("a script reads the cookie", "no_script", (SESSIONS, "HttpOnly; ", "")),
    entered("other sites send the cookie", "no_script", (SESSIONS, "SameSite=Strict", "SameSite=None")),
    entered("the cookie travels unencrypted", "with_tls", (SESSIONS, "secure = self._tls or", "secure = False and")),
    entered(
        "a token for mqs signs in", "other_dialects", (SESSIONS, "if token.grant.dialects and DIALECT not in", "if DIALECT in")
    ),
    entered("a read-only page changes queues", "read_only", (AUTH, "grant.scopes & LOOKING", "grant.scopes")),
    entered(
        "a read-only page without tokens changes queues",
        "read_only",
        (AUTH, "self.narrow(EVERYTHING) if", "EVERYTHING if"),
    ),
    entered("the page can be framed", "strict_policy", (f"{PAGE}assets.py", '"frame-ancestors": "\'none\'"', '"x": "y"')),
    entered("a program gets the page", "root", (DIALECT, "html > 0 and html >= max(wanted.values())", "html > 0")),
    entered("a file is sent again and again", "kept_by_browsers", (f"{PAGE}assets.py", "304 if same else 200", "200")),
    done("a job takes what does not fit", "what_fits", (BULK, "            and wanted(message, now)\n", "")),
    done(
        "a job takes what comes later",
        "comes_later",
        (BULK, "if came_at(message) <= came_by\n            and wanted", "if wanted"),
    ),
    done("a job takes what a reader has claimed", "by_name", (BULK, "message.holder in readers", "False")),
    done(
        "a job begins anew at each part",
        "what_fits",
        (WORK, "            self._next = part.next\n", "            self._next = 0\n"),
    ),
    done("a state is ignored", "by_state", (FILTERS, "state_of(message, now) == self.state", "True")),
    done("true is 1", "compared_as_json", (FILTERS, "isinstance(one, bool) == isinstance(other, bool) and ", "")),
    done("an old message is young", "by_age", (FILTERS, "age >= self.older_than", "age > 2 * self.older_than")),
    done("any reason will do", "by_reason", (FILTERS, "death.reason == self.reason", "True")),
    done("any number of jobs", "few_jobs", (BOOK, "if len(active) >= MOST_OF_QUEUE:", "if False:")),
    done(
        "a job without its label is done",
        "makes_a_job",
        (BOOK, "job if job is not None and job.proof == plan.proof else None", "job"),
    ),
    done("a job may look into bodies", "rights", (NATIVE, "    if plan.wanted.reads_body:\n", "    if False:\n")),
    done("a job moves messages anywhere", "rights", (NATIVE, "        grant.check(Scope.ADMIN, plan.to)\n", "        pass\n")),
    done("a redrive needs no right", "rights", (NATIVE, "plan.action == Action.REDRIVE and not", "False and not")),
    done(
        "a filter is shown to all",
        "rights",
        (NATIVE, "job.filter if grant.allows(Scope.READ, job.queue) else None", "job.filter"),
    ),
    done("all jobs are shown to all", "rights", (NATIVE, " if grant.allows(Scope.COUNT, job.queue)]", "]")),
    done("anybody cancels a job", "rights", (NATIVE, "        request.grant.check(Scope.ADMIN, job.queue)\n", "")),
    done("order is lost", "their_order", (NATIVE, "if here.groups and not there.groups:", "if False:")),
    done("what stays is not counted", "duplicates_stay", (WORK, "        self._stayed += part.stayed\n", "")),
    done("a job that has just ended was lost", "looked_at", (BOOK, "        if lost:  # or", "        if False:  # or")),
    done("ended jobs are forgotten", "last_one_first", (BOOK, ", history=REMEMBERED", "")),
    done(
        "changes are not told",
        "audit",
        ("server/app.py", "            if request.deed and response.status < 400:\n", "            if False:\n"),
    ),
]

"""Faults in access rights and limits of the service."""

from __future__ import annotations

from planted import Mutant


def watched(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the access rights and limits of the service."""
    files = ("server_settings", "server_tokens", "server_quotas", "server_receipts")
    return Mutant(name, tests, changes, tuple(f"tests/test_{file}.py" for file in files))


def private(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """Somebody learns what is not for them."""
    return Mutant(name, tests, changes, ("tests/test_privacy.py",))


FAULTS = [
    watched("any token will do", "known_token", ("server/auth.py", "hmac.compare_digest(known, presented)", "presented")),
    watched(
        "a page of another site may send requests",
        "takes_no_message",
        ("server/auth.py", 'headers.get("sec-fetch-site", "none") not in OWN_SITE', "False"),
    ),
    watched(
        "the server is known by any name",
        "address_is_known",
        ("server/auth.py", "not self._is_known(host))", "False)"),
    ),
    watched("every name needs no token", "every_page", ("server/auth.py", '<= {"*", "?", "."}', "<= set()")),
    watched(
        "a message is run as a page",
        "never_a_page",
        ("server/app.py", "            response.headers.setdefault(name, value)\n", "            pass\n"),
    ),
    watched("a token never expires", "expired_token", ("server/auth.py", "found.expires <= self._clock()", "False")),
    watched(
        "only the last secret is known",
        "both_are_known",
        ("server/auth.py", "for known in token.grant.keys:", "for known in token.grant.keys[-1:]:"),
    ),
    watched(
        "an emptied file opens the server",
        "after_sighup_the_tokens",
        ("server/auth.py", "if not self.is_open and not tokens and not sqs_keys:", "if False:"),
    ),
    watched("SIGHUP kills", "after_sighup", ("server/running.py", "loop.add_signal_handler(signal.SIGHUP", "(lambda *_: 0)(0")),
    watched("a count shows bodies", "no_body", ("server/dialects/native.py", '"peek": Scope.READ', '"peek": Scope.COUNT')),
    watched(
        "metrics show the queues of others",
        "its_own_queues",
        ("server/dialects/base.py", "for name in names if grant.allows(scope, name)]", "for name in names]"),
    ),
    watched(
        "metrics count what others send",
        "its_own_queues",
        ("server/metrics.py", "if wanted(queue):", "if True:"),
    ),
    watched(
        "a token speaks every dialect",
        "its_dialects",
        ("server/app.py", "dialect.name not in grant.dialects", "not grant.dialects"),
    ),
    watched(
        "any certificate will do",
        "without_a_certificate",
        ("server/running.py", "context.verify_mode = ssl.CERT_REQUIRED", "pass"),
    ),
    watched("a bucket that never empties", "bucket_gives", ("server/quotas.py", "        self._left -= count\n", "")),
    watched(
        "the rate of a token has no limit", "on_the_same_connection", ("server/app.py", "self.quotas.admit(request)", "pass")
    ),
    watched(
        "a token has any number of connections",
        "until_they_close",
        ("server/quotas.py", "self._clients[request.client] = grant.name", "pass"),
    ),
    watched(
        "closed connections count for ever",
        "until_they_close",
        ("server/quotas.py", "if client in self._open}", "if True}"),
    ),
    watched("a queue that is there counts twice", "may_have", ("server/quotas.py", "queue in usage.queues", "False")),
    watched(
        "what is under way does not count",
        "under_way",
        ("server/quotas.py", " - self.pending[what]", ""),
    ),
    watched(
        "what was sent since the last count does not count",
        "may_wait",
        ("server/quotas.py", "usage.since[what] += count", "pass"),
    ),
    watched(
        "a full token stays full",
        "may_wait",
        ("server/quotas.py", "        usage.since.clear()\n", ""),
    ),
    watched(
        "a token at its limit keeps the store busy",
        "count_all_the_time",
        ("server/quotas.py", "now < usage.rests_until or", ""),
    ),
    watched(
        "what was deleted takes room",
        "makes_room_at_once",
        ("server/quotas.py", "self._usage(grant).since.subtract(", "dict("),
    ),
    watched(
        "a claim passes the limit in flight",
        "in_flight",
        ("server/dialects/native.py", 'verb == "claim" and isinstance', "False and isinstance"),
    ),
    watched(
        "a guessed receipt settles",
        "no_other_can_settle",
        ("server/receipts.py", "hmac.compare_digest(given.to_bytes(8), known.to_bytes(8))", "known"),
    ),
    watched(
        "a receipt without a proof settles",
        "no_other_can_settle",
        ("server/receipts.py", "    return any(hmac", "    return given == 0 or any(hmac"),
    ),
    watched(
        "an id alone settles",
        "no_other_can_settle",
        (
            "server/receipts.py",
            "not _is_proven(grant, receipt, plain)",
            "plain is not None and not _is_proven(grant, receipt, plain)",
        ),
    ),
    watched(
        "a new receipt is proven with the old secret",
        "change_of_the_secret",
        ("server/receipts.py", "proof(grant.keys[-1],", "proof(grant.keys[0],"),
    ),
    watched(
        "the server forgets the receipt without its proof",
        "under_its_own_receipt",
        ("server/receipts.py", "message = copy(message)", "message = message"),
    ),
    private(
        "every token learns where the store is",
        "where_the_store_is",
        ("server/auth.py", "return type(error)(text)", "return error"),
    ),
    private(
        "the log does not say why",
        "where_the_store_is",
        ("server/app.py", "response.cause = str(error)", "response.cause = ''"),
    ),
    private(
        "a hidden name is shown",
        "dead_letter_queue_of_others",
        ("server/dialects/base.py", "Redrive(HIDDEN,", "Redrive(settings.redrive.dead_letter_queue,"),
    ),
    private(
        "a hidden name cannot be kept",
        "dead_letter_queue_of_others",
        ("server/dialects/mqs.py", "(settings.redrive, self.seen(request, settings).redrive)", "(settings.redrive,)"),
    ),
    private("a slash ends the password", "malformed", ("urls.py", 'r".*(?:@|%40)"', 'r"(?<=://)[^/]*@"')),
    private(
        "a parser shows the password",
        "malformed",
        ("urls.py", 'why = error if shown(url) == f"{url!r:.200}" else', "why = error or"),
    ),
    private(
        "an unknown argument shows the password", "command_line", ("cli/output.py", 'USER.sub("", shown(text))', "shown(text)")
    ),
    private("everybody reads the queue file", "owner_alone", ("stores/sqlite/file.py", "make_private(self.path)", "pass")),
    private(
        "everybody reads what is staged", "owner_alone", ("stores/staging.py", "if self._beside is not None:", "if False:")
    ),
    private(
        "everybody reads the clock", "owner_alone", ("stores/sqlite/database.py", "str(self), self.file.path)", "str(self))")
    ),
    private(
        "everybody reads a folder of messages",
        "owner_alone",
        ("stores/files/store.py", "self.root.mkdir(0o700", "self.root.mkdir(0o755"),
    ),
    private(
        "a shared file is no longer shared",
        "file_that_is_shared",
        ("stores/disk.py", "mode = os.stat(beside).st_mode & 0o666", "mode = PRIVATE"),
    ),
]

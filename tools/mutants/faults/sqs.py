"""Faults in the SQS dialect."""

from __future__ import annotations

from planted import Mutant

SIGNATURE = "server/dialects/sqs/signature.py"


def signed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in the signatures of SQS requests."""
    return Mutant(name, tests, changes, ("tests/test_sqs_signature.py", "tests/test_sqs_keys.py"))


SIGNATURES = [
    signed("any SQS signature will do", "another_secret", (SIGNATURE, "        if not matches:\n", "        if False:\n")),
    signed("a path is not signed", "no_byte", (SIGNATURE, 'quote(request.raw_path, safe="/" + UNRESERVED)', '"/"')),
    signed("a query is not signed", "no_byte", (SIGNATURE, "_canonical_query(request.query),", '"",')),
    signed("a method is not signed", "no_byte", (SIGNATURE, "                request.method,\n", '                "POST",\n')),
    signed("an empty parameter is not signed", "no_byte", (SIGNATURE, 'query.split("&")]', 'query.split("&") if part]')),
    signed(
        "a body's digest is believed",
        "body_is_always_signed",
        (SIGNATURE, 'elif not hmac.compare_digest(claim.payload.encode("latin-1"), digest.encode()):', "elif False:"),
    ),
    signed(
        "a stranger's digest is checked late",
        "before_the_body_comes",
        (SIGNATURE, "        if claim.payload is not None:\n            self._compare(claim, claim.payload)\n", ""),
    ),
    signed(
        "a header of Amazon's needs no signature", "not_signed_is_refused", (SIGNATURE, "and name not in names:", "and False:")
    ),
    signed("the host needs no signature", "host_must_be_signed", (SIGNATURE, 'if "host" not in names:', "if False:")),
    signed("a signature never expires", "of_another_time", (SIGNATURE, "if signed_at < now - valid:", "if False:")),
    signed("a signature of the future is good", "of_another_time", (SIGNATURE, "if signed_at > now + SKEW:", "if False:")),
    signed(
        "a pre-signed URL never ends",
        "ends_when_it_says",
        (
            SIGNATURE,
            "valid = SKEW if given.expires is None else given.expires",
            "valid = SKEW if given.expires is None else 10**9",
        ),
    ),
    signed("any day will do", "the_day_of_the_scope", (SIGNATURE, "if day != given.date[:8]:", "if False:")),
    signed("a signature for SNS will do", "for_something_else", (SIGNATURE, "if service != SERVICE:", "if False:")),
    signed(
        "what a header says besides is ignored", "whatever_the_header", (SIGNATURE, "or name not in HEADER_PARTS:", "or False:")
    ),
    signed(
        "only the last secret of a key is known",
        "both_sign",
        (SIGNATURE, "for secret in claim.key.secrets:", "for secret in claim.key.secrets[-1:]:"),
    ),
    signed(
        "an old secret is cached", "after_sighup or both_sign", ("server/auth.py", "self._signatures.replace(sqs_keys)", "pass")
    ),
    signed("an SQS key never expires", "expired_key", (SIGNATURE, "key.expires is not None and key.expires <= now", "False")),
    signed(
        "a replay comes in",
        "cannot_be_sent_again or comes_once",
        ("server/dialects/sqs/replays.py", "return once or now - self._seen_at[place] > ALIKE", "return False"),
    ),
    signed(
        "a retry is taken for a replay",
        "cannot_be_sent_again",
        ("server/dialects/sqs/replays.py", "return once or now - self._seen_at[place] > ALIKE", "return True"),
    ),
    signed("a pre-signed URL is good once", "may_be_used_again", (SIGNATURE, "if given.expires is None:  #", "if True:  #")),
    signed(
        "with keys alone, the other dialects are open",
        "no_dialect_lets_anybody_in",
        ("server/auth.py", "return EVERYTHING if self.is_open else", "return EVERYTHING if not self._tokens else"),
    ),
    signed(
        "a page's form reaches SQS",
        "page",
        (
            "server/auth.py",
            "        headers = request.headers\n        self._check_page(headers)\n",
            "        headers = request.headers\n",
        ),
    ),
    signed(
        "strangers fill the memory",
        "leave_room",
        ("server/strangers.py", "if self._bodies and held + length > self._most:", "if False:"),
    ),
    signed(
        "the bodies of strangers that left count",
        "leave_room",
        ("server/strangers.py", "self._bodies.items() if client in self._open}", "self._bodies.items()}"),
    ),
    signed(
        "a key's secret is shown",
        "never_shows_its_secret",
        ("server/sqs_keys.py", "field(repr=False, compare=False)", "field(compare=False)"),
    ),
    signed(
        "a stranger is known by its signature's form",
        "an_altered_one_refused",
        ("server/app.py", "request.grant = request.prove(digest.hexdigest())", "request.grant = EVERYTHING"),
        ("server/app.py", "import LEFT, Refused", "import EVERYTHING, LEFT, Refused"),
    ),
]

FAULTS = [*SIGNATURES]

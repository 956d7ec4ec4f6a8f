"""Faults in what the page shows: the stream of changes, counting, the history, and reports of pipelines."""

from __future__ import annotations

from planted import Mutant

CONNECTION = "server/http/connection.py"
CHANGES = "server/page/changes.py"
COUNTING = "server/page/counting.py"
HISTORY = "server/page/history.py"
DATA = "server/page/data.py"


def shown(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, tuple(f"tests/test_page_{part}.py" for part in ("changes", "data", "history")))


FAULTS = [
    shown(
        "a stream that its client has left goes on",
        "hangs_up",
        (
            CONNECTION,
            "        elif self._feed is not None:\n            self._end_answer(unheard=False)\n            self.abort()\n",
            "",
        ),
    ),
    shown(
        "a server that stops leaves its streams open",
        "stops_ends",
        (CONNECTION, "        elif self._feed is not None:\n            self._end_feed()\n", ""),
    ),
    shown(
        "an idle stream is cut",
        "neither_the_time",
        (CONNECTION, " or (self._feed is not None and not left)", ""),
    ),
    shown(
        "a client that takes nothing holds its stream for ever",
        "takes_nothing",
        (CONNECTION, "if left != self._left or (", "if self._feed is not None or ("),
    ),
    shown(
        "a slow client gets a backlog",
        "no_backlog",
        (CONNECTION, "while self._feed is not None and not self._blocked and", "while self._feed is not None and"),
    ),
    shown(
        "a stream of HTTP/1.0 comes in chunks",
        "http_1_0",
        ("server/http/conversation.py", 'self.chunks = line.version == b"1.1"', "self.chunks = True"),
    ),
    shown(
        "a stream outlives its token",
        "no_longer_counts",
        (CHANGES, "if not stream.still():", "if False:"),
    ),
    shown(
        "a stream tells of queues that a token may not count",
        "hears_only",
        (CHANGES, " and self._grant.allows(Scope.COUNT, name)", ""),
    ),
    shown(
        "a row names a dead letter queue that a token may not know",
        "hears_only or may_count",
        (
            "server/page/board.py",
            "if target is not None and not grant.allows(Scope.COUNT, target):",
            "if False:",
        ),
    ),
    shown(
        "there is no limit of streams",
        "limit_of_streams",
        (CHANGES, "if len(self.streams) >= MOST_STREAMS:", "if False:"),
    ),
    shown(
        "what other processes do is not heard",
        "another_process",
        (COUNTING, "if version != self._version:", "if False:"),
        (COUNTING, "if now >= self._through_at:", "if False:"),
    ),
    shown(
        "what becomes visible by itself is not told",
        "by_itself",
        (COUNTING, "while self._due and self._due[0][0] <= self.at:", "while False:"),
    ),
    shown(
        "a rate stays where it was",
        "rise_and_fall",
        (COUNTING, 'if row and (row["rate_in"] or row["rate_out"])', "if False"),
    ),
    shown(
        "every queue is counted, however many there are",
        "only_so_many",
        (COUNTING, "names[: self.most]", "names"),
    ),
    shown("a job that has ended is not told", "until_it_has_ended", ("server/page/job_news.py", "if short:", "if False:")),
    shown(
        "the history is written though nothing has changed",
        "nothing_is_written",
        (HISTORY, "        elif not changed:\n            return\n", ""),
    ),
    shown(
        "a server leaves a history behind at once",
        "less_than_a_minute",
        (HISTORY, "            if only_if_there:\n                return\n", ""),
    ),
    shown(
        "the last minute is not written",
        "writes_down_the_rest",
        (HISTORY, "        if self._unwritten:\n            try:", "        if False:\n            try:"),
    ),
    shown(
        "there is a history without the page",
        "without_the_page",
        (HISTORY, 'if self._core.settings.page != "off":', "if True:"),
    ),
    shown(
        "the past is remembered without a bound",
        "bounded_and_counted",
        ("server/page/past.py", "while self._bytes > MOST_BYTES:", "while False:"),
    ),
    shown(
        "garbage in the history is unpacked whole",
        "garbage or no_record",
        ("server/page/records.py", "RecursionError):\n        return None", "RecursionError):\n        raise"),
    ),
    shown(
        "what others did is not in the rates",
        "done_by_others or more",
        ("server/page/curves.py", "came = max(came, left + more, 0)", "came = max(came, 0)"),
    ),
    shown(
        "the path of the store is for everybody",
        "where_the_store_is",
        (DATA, "tell(place=request.grant.allows_all(Scope.ADMIN))", "tell(place=True)"),
    ),
    shown(
        "the server tells of itself to any token",
        "tells_of_itself",
        (
            DATA,
            "        if not request.grant.allows_all(Scope.COUNT):\n            raise",
            "        if False:\n            raise",
        ),
    ),
    shown(
        "anybody reports on any queue",
        "needs_rights",
        (DATA, "                request.grant.check(scope, queue)\n", "                pass\n"),
    ),
    shown(
        "reports of pipelines pile up",
        "last_report_counts",
        ("pipeline_reports.py", "            if gone:\n                queue.delete_many(gone)\n", ""),
    ),
    shown(
        "a pipeline links to a script",
        "cannot_be_one",
        ("pipeline_reports.py", "and LINK.fullmatch(link)", ""),
    ),
]

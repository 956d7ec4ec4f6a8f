"""The command line, as users and programs see it."""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import build, main
from penstock.queue.queue import LocalQueue

ROOT = Path(__file__).parent.parent
PENSTOCK = str(Path(sysconfig.get_path("scripts")) / "penstock")
BINARY = bytes(range(256))


class Shell:
    """Runs command lines in this process; what they printed is in `out` and `err`."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capfdbinary
        self._monkeypatch = monkeypatch
        self.raw = b""
        self.err = ""

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __call__(self, line: str | list[str], stdin: bytes | None = None) -> int:
        self._monkeypatch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(shlex.split(line) if isinstance(line, str) else line)
        captured = self._capture.readouterr()
        self.raw, self.err = captured.out, captured.err.decode()
        return code


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///queues.db")
    return Shell(capfdbinary, monkeypatch)


@pytest.fixture
def jobs(shell: Shell) -> Shell:
    assert shell("create jobs") == 0
    return shell


def bodies(shell: Shell, queue: str = "jobs") -> list[str]:
    shell(f"peek {queue} --limit 1000 --json")
    return [message["body"] for message in shell.json_lines]


def received(shell: Shell, options: str = "", queue: str = "jobs") -> str:
    """Receive one message; returns its receipt."""
    assert shell(f"receive {queue} --json {options}") == 0
    receipt = shell.json["receipt"]
    assert isinstance(receipt, str)
    return receipt


# queues


def test_create_makes_a_queue_with_the_settings_given(shell: Shell) -> None:
    shell("create dead")
    options = "--visibility 5 --retention 60 --delay 1.5 --deduplicate 10 --redrive dead:3 --groups --mode at_most_once"
    assert shell(f"create jobs {options} --history 7 --json") == 0
    assert shell.json == {
        "name": "jobs",
        "created": True,
        "visibility": 5,
        "retention": 60,
        "delay": 1.5,
        "deduplicate": 10,
        "redrive": {"dead_letter_queue": "dead", "max_receives": 3},
        "groups": True,
        "mode": "at_most_once",
        "history": 7,
        "labels": {},
        "paused": False,
        "retry": None,
    }


def test_a_queue_that_exists_is_bad_input_unless_that_is_ok(jobs: Shell) -> None:
    assert jobs("create jobs") == 2
    assert jobs.err == "penstock: queue 'jobs' already exists\n"
    assert jobs("create jobs --exist-ok --visibility 99 --json") == 0
    assert (jobs.json["created"], jobs.json["visibility"]) == (False, 30)
    assert jobs("create jobs --exist-ok") == 0
    assert jobs.out == "jobs exists, and was left as it is\n"


def test_queues_are_listed_with_their_counts(jobs: Shell) -> None:
    jobs("create other")
    jobs("send jobs a b c")
    jobs("send jobs later --delay 100")
    jobs("receive jobs")
    assert jobs("queues") == 0
    heads, first, second = jobs.out.splitlines()
    assert heads.split("  ")[0] == "name"
    *counts, age = re.split(r"\s{2,}", first)
    assert counts == ["jobs", "4", "2", "1", "1"]
    assert re.fullmatch(r"\d s", age)
    assert re.split(r"\s{2,}", second) == ["other", "0", "0", "0", "0", "-"]
    assert jobs("queues --json") == 0
    assert [(queue["name"], queue["messages"], queue["in_flight"]) for queue in jobs.json] == [("jobs", 4, 1), ("other", 0, 0)]


def test_a_listing_can_be_had_in_parts(shell: Shell) -> None:
    assert shell("queues") == 0
    assert "no queues yet" in shell.err
    for name in "abc":
        shell(f"create {name}")
    assert shell("queues --offset 1 --limit 1 --json") == 0
    assert [queue["name"] for queue in shell.json] == ["b"]
    assert shell("queues --limit 2") == 0
    assert shell.err == "penstock: 2 of 3 queues shown\n"
    assert shell("queues --offset -1") == 2


def test_settings_are_shown_and_changed(jobs: Shell) -> None:
    jobs("create dead")
    assert jobs("settings jobs --visibility 7 --redrive dead:2 --deduplicate on") == 0
    changed = (
        "visibility 7 retention 345600 delay 0 deduplicate on redrive dead:2 groups off mode at_least_once history 0 "
        "paused off retry none"
    )
    assert " ".join(jobs.out.split()) == changed
    assert jobs("settings jobs --no-redrive --deduplicate off --json") == 0
    assert jobs("settings jobs --json") == 0
    assert (jobs.json["visibility"], jobs.json["redrive"], jobs.json["deduplicate"]) == (7, None, False)
    assert jobs("settings jobs --groups") == 2
    assert "fixed when the queue is created" in jobs.err


def test_a_queue_is_paused_and_resumed(jobs: Shell) -> None:
    jobs("send jobs x")
    assert (jobs("pause jobs"), jobs.out) == (0, "jobs is paused\n")
    assert jobs("receive jobs") == 1
    assert jobs("pause jobs --json") == 0
    assert jobs.json == {"name": "jobs", "paused": True}
    assert (jobs("resume jobs"), jobs.out) == (0, "jobs is not paused\n")
    assert jobs("receive jobs") == 0


def test_messages_are_cancelled_by_their_ids_or_a_key(jobs: Shell) -> None:
    jobs("send jobs x --json")
    sent = jobs.json["id"]
    assert (jobs(f"cancel jobs {sent}"), jobs.out) == (0, f"cancelled {sent}\n")
    assert jobs(f"cancel jobs {sent}") == 1
    assert "was not cancelled: somebody holds it, or there is no such message" in jobs.err
    jobs("settings jobs --deduplicate on")
    jobs("send jobs x --key k")
    assert jobs("cancel jobs --key k --json") == 0
    assert jobs.json == [{"message": "k", "cancelled": True}]
    assert jobs("cancel jobs") == jobs("cancel jobs x --key k") == 2
    assert "the ids of messages, or one --key" in jobs.err


def test_labels_are_set_shown_and_removed(shell: Shell) -> None:
    assert shell("create jobs --label team=a --label note=x=y --json") == 0
    assert shell.json["labels"] == {"note": "x=y", "team": "a"}
    assert shell("settings jobs --visibility 7 --label team=b") == 0
    assert [line.split() for line in shell.out.splitlines()[-2:]] == [["label", "note=x=y"], ["label", "team=b"]]
    assert shell("settings jobs --no-label note --label more= --json") == 0
    assert (shell.json["visibility"], shell.json["labels"]) == (7, {"more": "", "team": "b"})
    assert shell("settings jobs --label team") == 2
    assert "'team' is not NAME=TEXT" in shell.err
    assert shell("settings jobs --label =x") == 2
    assert "label ''" in shell.err
    assert shell("settings jobs --no-label more --no-label team") == 0
    assert "label" not in shell.out


def test_delete_queue_deletes_it(jobs: Shell) -> None:
    assert jobs("delete-queue jobs --json") == 0
    assert jobs.json == {"name": "jobs", "deleted": True}
    assert jobs("delete-queue jobs") == 3
    jobs("create jobs")
    assert jobs("delete-queue jobs") == 0
    assert jobs.out == "deleted jobs\n"


def test_stats_counts_every_kind_of_message(jobs: Shell) -> None:
    jobs("send jobs a b")
    received(jobs)
    assert jobs("stats jobs") == 0
    assert "messages   2\nvisible    1\nin flight  1\n" in jobs.out
    assert jobs("stats jobs --json") == 0
    assert jobs.json["name"] == "jobs"
    assert (jobs.json["messages"], jobs.json["visible"], jobs.json["in_flight"]) == (2, 1, 1)
    assert jobs.json["oldest_at"] > 1_700_000_000_000_000


def test_purge_refuses_without_a_terminal_and_without_yes(jobs: Shell) -> None:
    jobs("send jobs a b")
    assert jobs("purge jobs") == 2
    assert jobs.err == "penstock: purge deletes all messages of queue 'jobs': add --yes if you mean it\n"
    assert bodies(jobs) == ["a", "b"]
    assert jobs("purge jobs --yes") == 0
    assert jobs.out == "deleted 2 messages\n"
    assert jobs("purge jobs --yes --json") == 0
    assert jobs.json == {"name": "jobs", "purged": 0}


def test_readers_are_shown_and_given_up(jobs: Shell) -> None:
    assert jobs("readers jobs") == 1
    jobs("send jobs one two three")
    with penstock.open("sqlite:///queues.db") as broker:
        queue = broker["jobs"]
        queue.claim("spark-1", 1, 1)
        queue.confirm("spark-1", 1)
        queue.settle("spark-1", 1)
        queue.claim("spark-1", 2, 1)
        queue.confirm("spark-1", 2)
        queue.claim("spark-2", 1, 1)
    assert jobs("readers jobs") == 0
    first, second = [line.split() for line in jobs.out.splitlines() if line.startswith("spark")]
    assert first == ["spark-1", "1", "1", "0", "-"]
    assert second[:4] == ["spark-2", "-", "0", "1"]
    assert jobs("readers jobs --json") == 0
    assert [(reader["reader"], reader["settled"], len(reader["claims"])) for reader in jobs.json] == [
        ("spark-1", 1, 1),
        ("spark-2", None, 1),
    ]
    assert jobs("readers jobs --give-up spark-1") == 0
    assert jobs.out == "gave up spark-1: 1 message is visible again\n"
    assert sorted(bodies(jobs)) == ["three", "two"]
    assert jobs("readers jobs --give-up spark-1") != 0
    assert "has no reader 'spark-1'" in jobs.err
    assert jobs("readers jobs --give-up spark-2 --json") == 0
    assert jobs.json == {"name": "jobs", "given_up": "spark-2", "messages": 1}


def test_redrive_sends_dead_letters_back(jobs: Shell) -> None:
    jobs("create dead")
    jobs("settings jobs --redrive dead:1")
    jobs("send jobs poison poison poison")
    jobs("receive jobs --limit 3 --visibility 0")
    assert jobs("receive jobs") == 1
    assert jobs("peek dead --limit 1") == 0
    assert re.search(r"^died .* UTC in jobs, max_receives after 1 receives$", jobs.out, re.M)
    assert jobs("redrive dead --limit 1") == 0
    assert jobs.out == "sent 1 message back\n"
    assert jobs("redrive dead --json") == 0
    assert jobs.json == {"name": "dead", "redriven": 2, "duplicates": 0, "homeless": 0}
    assert jobs("redrive dead") == 1
    jobs("create elsewhere")
    assert jobs("redrive jobs --to elsewhere") == 0
    assert bodies(jobs, "elsewhere") == ["poison"] * 3


def test_redrive_tells_how_many_letters_stay_and_why(jobs: Shell) -> None:
    jobs("create dead")
    jobs("settings jobs --redrive dead:1 --deduplicate on")
    for body in ("same", "same", "other"):
        jobs(f"send jobs {body}")
        jobs("receive jobs --visibility 0")
        assert jobs("receive jobs") == 1
    jobs("send jobs same")
    jobs("send dead direct")
    assert jobs("redrive dead") == 0
    assert jobs.out == "sent 1 message back\n"
    assert "2 letters stay: their queue takes equal messages once, and has an equal one" in jobs.err
    assert (
        "1 letter stays: the queue where they died is gone or not for this token, or they did not die in one: use --to NAME"
        in jobs.err
    )
    assert jobs("redrive dead --json") == 1
    assert jobs.json == {"name": "dead", "redriven": 0, "duplicates": 2, "homeless": 1}


# sending


def test_each_argument_is_a_message(jobs: Shell) -> None:
    assert jobs(["send", "jobs", "a b", "--delay", "0", "ü", "--", "-x"]) == 0
    assert len(set(jobs.out.split())) == 3
    assert bodies(jobs) == ["a b", "ü", "-x"]


def test_without_arguments_standard_input_is_one_message(jobs: Shell) -> None:
    assert jobs("send jobs --json", stdin=b"two\nlines\n") == 0
    assert jobs.json["duplicate"] is False
    assert bodies(jobs) == ["two\nlines\n"]
    assert jobs("send jobs", stdin=None) == 2
    assert "standard input is closed" in jobs.err


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_each_line_is_a_message(jobs: Shell, end: bytes) -> None:
    assert jobs("send jobs --lines", stdin=b"one\n\nthree\r" + end) == 0
    assert jobs.out == "sent 3 messages\n"
    assert bodies(jobs) == ["one", "", "three\r"]


def test_no_lines_are_nothing(jobs: Shell) -> None:
    assert jobs("send jobs --lines", stdin=b"") == 1
    assert jobs.out == "sent 0 messages\n"


def test_many_lines_keep_their_order_over_batches_and_chunks(jobs: Shell) -> None:
    lines = [f"{number} {'x' * (number * 7 % 1000)}" for number in range(5000)]
    assert jobs("send jobs --lines --json", stdin="\n".join(lines).encode()) == 0
    assert len(jobs.json_lines) == 5000
    jobs("peek jobs --limit 5000 --json")
    assert [message["body"] for message in jobs.json_lines] == lines


def test_a_line_that_is_too_long_is_named_and_those_before_it_are_sent(jobs: Shell) -> None:
    for rest in (b"", b"\nmore"):
        assert jobs("send jobs --lines", stdin=b"one\ntwo\n" + b"x" * (2**20 + 1) + rest) == 2
        assert (
            jobs.err == "penstock: line 3 has more than 1048576 bytes, the limit of a message; safely sent: the first 2 lines\n"
        )
    assert bodies(jobs) == ["one", "two"] * 2
    assert jobs("send jobs --lines", stdin=b"x" * 3 * 2**20) == 2
    assert jobs.err.endswith("; nothing was sent\n")


def test_a_line_of_exactly_the_limit_is_sent(jobs: Shell) -> None:
    assert jobs("send jobs --lines", stdin=b"x" * 2**20 + b"\n" + b"y" * 2**20) == 0
    assert [len(body) for body in bodies(jobs)] == [2**20, 2**20]


def test_binary_files_come_back_byte_for_byte(jobs: Shell, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BINARY)
    (tmp_path / "b").write_bytes(b"\r\n")
    assert jobs("send jobs --files a b") == 0
    assert jobs.out == "sent 2 messages\n"
    assert jobs("receive jobs --limit 2 --body --delete") == 0
    assert jobs.raw == BINARY + b"\r\n"
    assert jobs.err == ""
    assert jobs("peek jobs") == 1


def test_a_file_that_cannot_be_sent_is_named_and_those_before_it_are_sent(jobs: Shell, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "big").write_bytes(bytes(2**20 + 1))
    assert jobs("send jobs --files a nowhere a") == 2
    assert jobs.err == "penstock: file 'nowhere': No such file or directory; safely sent: the first file\n"
    assert jobs("send jobs --files big") == 2
    assert jobs.err == "penstock: file 'big': it has more than 1048576 bytes, the limit of a message; nothing was sent\n"
    assert jobs("send jobs --files .") == 2
    assert bodies(jobs) == ["a"]


def test_a_message_is_sent_with_all_that_is_asked_for(jobs: Shell) -> None:
    options = ["--content-type", "text/plain", "--attribute", "colour=red", "--attribute", "n:number=5"]
    options += ["--attribute", "f:number=0.5", "--attribute", "raw:base64=/wA=", "--attribute", "a:b:text=x=y"]
    options += ["--delay", "10", "--visibility", "20", "--deadline", "2100-01-01T00:00Z", "--group", "g"]
    assert jobs(["send", "jobs", "hello", *options]) == 0
    assert jobs("peek jobs --json") == 0
    (message,) = jobs.json_lines
    assert message["attributes"] == {"colour": "red", "n": 5, "f": 0.5, "raw": {"base64": "/wA="}, "a:b": "x=y"}
    assert (message["content_type"], message["group"], message["visibility"]) == ("text/plain", "g", 20)
    assert message["visible_at"] - message["sent_at"] == 10_000_000
    assert message["deadline_at"] == 4102444800_000_000
    assert jobs("peek jobs") == 0
    assert "attribute     colour = red\n" in jobs.out
    assert "deadline      2100-01-01 00:00:00.000 UTC\n" in jobs.out


def test_a_duplicate_is_said_to_be_one(shell: Shell) -> None:
    shell("create mails --deduplicate on")
    assert shell("send mails hello --key k") == 0
    first = shell.out.strip()
    assert shell("send mails other --key k") == 0
    assert shell.out == f"{first} (a duplicate)\n"
    assert shell("send mails other --key k --json") == 0
    assert shell.json == {"id": first, "duplicate": True}
    assert shell("send mails --lines", stdin=b"a\na\n") == 0
    assert shell.out == "sent 2 messages, 1 of them duplicates\n"


# receiving and settling


def test_receive_prints_what_a_person_needs(jobs: Shell) -> None:
    jobs(["send", "jobs", "two\nlines \x1b[31mred"])
    assert jobs("receive jobs") == 0
    lines = jobs.out.splitlines()
    assert re.fullmatch(rf"receipt       {lines[0].split()[1]}#\d{{16}}", lines[1])
    assert [line.split("  ")[0] for line in lines[2:5]] == ["sent", "hidden until", "expires"]
    assert lines[5:] == ["body          two", "              lines \\x1b[31mred"]


def test_a_body_that_is_not_text_is_shown_in_base64(jobs: Shell) -> None:
    jobs("send jobs", stdin=BINARY)
    assert jobs("receive jobs --visibility 0") == 0
    assert f"(256 bytes that are not UTF-8, in base64) {base64.b64encode(BINARY).decode()}" in jobs.out
    assert jobs("receive jobs --json") == 0
    assert "body" not in jobs.json
    assert base64.b64decode(jobs.json["body_base64"]) == BINARY


def test_a_message_in_json_has_the_fields_of_a_message(jobs: Shell) -> None:
    jobs("send jobs hello")
    jobs("receive jobs --json --visibility 0")
    fields = set(penstock.Message.__dataclass_fields__) - {"home", "blocked"}
    assert set(jobs.json) == fields | {"receipt"}
    assert jobs.json["receipt"] == f"{jobs.json['id']}#{jobs.json['delivery']}"
    assert (jobs.json["body"], jobs.json["state"], jobs.json["receives"]) == ("hello", "consumed", 1)
    jobs("peek jobs --json")
    assert set(jobs.json) == fields


def test_receive_takes_up_to_the_limit_one_object_a_line(jobs: Shell) -> None:
    jobs("send jobs a b c")
    assert jobs("receive jobs --limit 2 --json") == 0
    assert [message["body"] for message in jobs.json_lines] == ["a", "b"]
    assert jobs("receive jobs --limit 2000 --json") == 0
    assert [message["body"] for message in jobs.json_lines] == ["c"]


def test_receive_takes_several_of_a_group_together(shell: Shell) -> None:
    shell("create lines --groups")
    shell("send lines 1 2 3 --group a")
    assert shell("receive lines --limit 2 --together --body") == 0
    assert shell.out == "12"
    assert shell("receive lines --limit 2 --together --body") == 1


def test_receive_of_nothing_exits_1(jobs: Shell) -> None:
    assert jobs("receive jobs") == 1
    assert (jobs.out, jobs.err) == ("", "penstock: queue 'jobs' has no visible message\n")
    assert jobs("receive jobs --json --wait 0.01") == 1
    assert (jobs.out, jobs.err) == ("", "")


def test_receive_can_wait_for_what_is_delayed(jobs: Shell) -> None:
    jobs("send jobs soon --delay 0.05")
    assert jobs("receive jobs --wait 60 --body") == 0
    assert jobs.out == "soon"


def test_receive_and_delete_settles_what_it_printed(jobs: Shell) -> None:
    jobs("settings jobs --history 60")
    jobs("send jobs a b")
    assert jobs("receive jobs --limit 2 --delete --json") == 0
    assert jobs("stats jobs --json") == 0
    assert (jobs.json["messages"], jobs.json["settled"]) == (0, 2)


def test_receive_and_delete_of_what_lapsed_meanwhile_exits_1(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs("send jobs a")
    monkeypatch.setattr(LocalQueue, "delete_many", lambda self, messages: [False for _ in messages])
    assert jobs("receive jobs --delete --body") == 1
    assert re.search(r"#\d+ was not deleted: its visibility ended before it was printed\n$", jobs.err)


def test_at_most_once_is_settled_by_the_receive_itself(jobs: Shell) -> None:
    jobs("send jobs a b")
    assert jobs("receive jobs --mode at_most_once --body") == 0
    assert jobs("receive jobs --mode at_most_once --delete --body") == 0
    assert jobs.err == ""
    assert jobs("peek jobs") == 1


def test_a_receipt_or_an_id_settles_a_message(jobs: Shell) -> None:
    jobs("send jobs a b")
    first, second = received(jobs), received(jobs)
    assert jobs(["delete", "jobs", first, second.partition("#")[0]]) == 0
    assert jobs.out == f"deleted {first}\ndeleted {second.partition('#')[0]}\n"
    assert jobs("peek jobs") == 1


def test_a_stale_receipt_exits_1(jobs: Shell) -> None:
    jobs("send jobs a b")
    stale = received(jobs, "--visibility 0")
    jobs("receive jobs --limit 2 --json")
    first, second = sorted(message["receipt"] for message in jobs.json_lines)
    assert first.partition("#")[0] == stale.partition("#")[0]
    assert first > stale
    assert jobs(["delete", "jobs", stale, "--json", second]) == 1
    assert jobs.json == [{"receipt": stale, "deleted": False}, {"receipt": second, "deleted": True}]
    assert jobs.err == f"penstock: {stale} was not deleted: the receipt is stale\n"
    assert jobs(["extend", "jobs", stale]) == 1
    assert jobs(["release", "jobs", stale]) == 1
    assert jobs("delete jobs nobody") == 1
    assert jobs.err == "penstock: nobody was not deleted: there is no such message\n"


def test_a_retry_policy_is_set_shown_and_removed(jobs: Shell) -> None:
    assert jobs("create mails --retry attempts=3,delay=2,curve=linear") == 0
    jobs("settings mails")
    assert "retry        attempts=3,delay=2,curve=linear,max_delay=3600,jitter=0.1" in jobs.out
    jobs("settings mails --retry attempts=none")
    assert "attempts=none,delay=1,curve=exponential" in jobs.out
    assert jobs("settings mails --retry attempts=1 --no-retry") == 2
    jobs("settings mails --no-retry --json")
    assert jobs.json["retry"] is None
    for wrong, words in [
        ("attempts", "is not NAME=VALUE"),
        ("attempts=1,attempts=2", "is not NAME=VALUE"),
        ("delay=soon", "'soon' is not a number"),
        ("tries=3", "a retry policy has no 'tries'"),
        ("curve=steep", "'steep' is not one of fixed, linear, exponential"),
    ]:
        assert jobs(f"settings mails --retry {wrong}") == 2
        assert words in jobs.err


def test_a_message_s_failures_are_shown_and_it_is_buried(jobs: Shell) -> None:
    jobs("create jobs-dead")
    jobs("settings jobs --redrive jobs-dead:9")
    jobs("send jobs resize --retry attempts=4")
    jobs("receive jobs --json")
    receipt = jobs.json["receipt"]
    assert jobs(["release", "jobs", receipt, "--error", "OSError: no\nroom"]) == 0
    jobs("peek jobs --json")
    assert (jobs.json["failures"], jobs.json["error"], jobs.json["retry"]["attempts"]) == (1, "OSError: no\nroom", 4)
    jobs("peek jobs")
    assert re.search(r"^failures  1, last: OSError: no\n +room\nretry     attempts=4,", jobs.out, re.MULTILINE)
    jobs("receive jobs --json")
    assert jobs(["bury", "jobs", jobs.json["receipt"], "--reason", "no use"]) == 0
    assert jobs.out.startswith("buried ")
    jobs("peek jobs-dead")
    assert "in jobs, no use after 2 receives" in jobs.out
    assert jobs(["bury", "jobs", receipt, "--reason", "no use"]) == 1
    assert "was not buried: the receipt is stale" in jobs.err


def test_a_released_message_is_received_again(jobs: Shell) -> None:
    jobs("send jobs a")
    receipt = received(jobs)
    assert jobs(["release", "jobs", receipt]) == 0
    assert jobs.out == f"released {receipt}\n"
    receipt = received(jobs)
    assert jobs(["release", "jobs", receipt, "--delay", "60", "--json"]) == 0
    assert jobs.json == [{"receipt": receipt, "released": True}]
    assert jobs("receive jobs") == 1


def test_an_extended_message_stays_hidden(jobs: Shell) -> None:
    jobs("send jobs a")
    receipt = received(jobs, "--visibility 60")
    assert jobs(["extend", "jobs", receipt, "--json"]) == 0
    assert jobs.json == [{"receipt": receipt, "extended": True}]
    assert jobs(["extend", "jobs", receipt, "--visibility", "0"]) == 0
    assert jobs.out == f"extended {receipt}\n"
    again = received(jobs)
    assert again.partition("#")[0] == receipt.partition("#")[0]
    assert again > receipt


def test_peek_shows_the_state_asked_for(jobs: Shell) -> None:
    jobs("send jobs a b")
    receipt = received(jobs)
    assert jobs("peek jobs --state consumed --json") == 0
    assert [message["id"] for message in jobs.json_lines] == [receipt.partition("#")[0]]
    assert jobs("peek jobs --limit 5") == 0
    assert jobs.out.count("\nstate ") == 2
    assert jobs("peek jobs --state damaged") == 1
    assert jobs.err == "penstock: queue 'jobs' has no damaged message\n"


def test_peek_shows_who_holds_a_message(jobs: Shell) -> None:
    jobs("send jobs a b")
    assert jobs("receive jobs --holder worker-7 --json") == 0
    assert jobs.json_lines[0]["holder"] == "worker-7"
    assert jobs("peek jobs --state consumed") == 0
    assert re.search(r"^holder +worker-7$", jobs.out, re.MULTILINE)
    jobs("peek jobs --limit 5 --json")
    assert sorted(str(message["holder"]) for message in jobs.json_lines) == ["None", "worker-7"]


def test_settled_shows_the_history(jobs: Shell) -> None:
    assert jobs("settled jobs") == 1
    assert "keeps no history" in jobs.err
    jobs("settings jobs --history 60")
    jobs("send jobs a b")
    jobs("receive jobs --limit 2 --delete")
    assert jobs("settled jobs --limit 1") == 0
    assert re.search(r"^state +processed$", jobs.out, re.M)
    assert re.search(r"^settled +\d{4}-.* UTC$", jobs.out, re.M)
    assert jobs("settled jobs --json") == 0
    assert [message["state"] for message in jobs.json_lines] == ["processed", "processed"]


# errors


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("stats nowhere", 3, "there is no queue 'nowhere'; the store is sqlite:///queues.db"),
        ("create a/b", 2, "queue name 'a/b': no '/', '\\', ':' or control characters"),
        ("send jobs x --delay -1", 2, "delay -1 is not between 0 and 2147483647 seconds"),
        ("receive jobs --limit 0", 2, "--limit 0 is less than 1"),
        ("receive jobs --wait nan", 2, "wait nan is not between 0 and 2147483647 seconds"),
        ("create x --redrive nowhere:3", 3, "there is no queue 'nowhere'; the store is sqlite:///queues.db"),
        ("create x --redrive dead", 2, "argument --redrive: 'dead' is not DLQ:N, such as jobs-dead:5"),
        ("create x --deduplicate maybe", 2, "argument --deduplicate: 'maybe' is not off, on or a number of seconds"),
        ("send jobs x --deadline soon", 2, "argument --deadline: 'soon' is neither seconds nor a time such as"),
        ("send jobs x --deadline 2030-01-31T12:00", 2, "deadline 2030-01-31T12:00:00 has no time zone"),
        ("create x --delay soon", 2, "argument --delay: invalid seconds value: 'soon' (see: penstock create --help)"),
        ("create x --mode twice", 2, "argument --mode: invalid choice: 'twice'"),
        ("queues --store nonsense", 2, "URL 'nonsense' does not begin with one of "),
        ("queues --store sqlite:///no/where.db", 4, "the queue file no/where.db: there is no folder no"),
        ("queues --store sqlite:///text", 4, "the queue file text is damaged or no SQLite file"),
        ("send jobs x --lines", 2, "BODY, --lines and --files exclude each other"),
        ("send jobs x y --key k", 2, "with one --key all messages but the first would be duplicates"),
        ("send jobs x --attribute a", 2, "attribute 'a' is not NAME=VALUE"),
        ("send jobs x --attribute a:number=x", 2, "attribute 'a:number=x': the value is not a number"),
        ("send jobs x --attribute a:base64=?", 2, "attribute 'a:base64=?': the value is not base64"),
        ("send jobs x --attribute a:colour=x", 2, "attribute 'a:colour=x': the type after ':' is text, number or base64"),
        ("send jobs x --attribute a=1 --attribute a=2", 2, "attribute 'a' is given twice"),
        ("receive jobs --body --json", 2, "--body writes bytes and --json writes JSON: choose one"),
        ("delete jobs a#b", 2, "receipt 'a#b' is not ID#DELIVERY, as receive prints it"),
        ("delete jobs a#4611686018427387905", 2, "delivery 4611686018427387905 is not between 0 and"),
        ("delete jobs", 2, "the following arguments are required: ID|RECEIPT (see: penstock delete --help)"),
        ("send", 2, "the following arguments are required: NAME (see: penstock send --help)"),
        ("stats jobs --colour", 2, "stats does not know --colour (see: penstock stats --help)"),
        ("frobnicate", 2, "argument COMMAND: invalid choice: 'frobnicate'"),
        ("redrive jobs --to jobs", 2, "queue 'jobs' cannot be redriven to itself"),
        ("watch nowhere", 3, "there is no queue 'nowhere'; the store is sqlite:///queues.db"),
        ("watch --interval 0", 2, "interval 0 is not between 0.1 and 2147483647 seconds"),
        ("watch --count 0", 2, "count 0 is not between 1 and 2147483647"),
        ("watch --json", 2, "watch is for people; for programs there is: penstock queues --json"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(jobs: Shell, tmp_path: Path, line: str, code: int, says: str) -> None:
    (tmp_path / "text").write_text("this is no database, whatever its name may be; " * 100)
    assert jobs(line) == code
    assert jobs.err.startswith(f"penstock: {says}")
    assert jobs.err.count("\n") == 1
    assert jobs.out == ""


def test_a_body_over_the_limit_is_refused_wherever_it_comes_from(jobs: Shell) -> None:
    body = b"x" * (2**20 + 1)
    assert jobs(["send", "jobs", body.decode(), "small"]) == 2
    assert jobs.err == "penstock: the body has 1048577 bytes, the limit is 1048576\n"
    assert jobs("send jobs", stdin=body) == 2
    assert "more than 1048576 bytes" in jobs.err
    assert jobs("peek jobs") == 1


def test_what_is_typed_cannot_break_the_line_of_an_error(jobs: Shell) -> None:
    assert jobs(["stats", "jobs", "two\nlines\x1b[31m"]) == 2
    assert jobs.err == "penstock: stats does not know two\\nlines\\x1b[31m (see: penstock stats --help)\n"


def test_a_password_in_the_url_is_not_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = penstock.open("memory:")
    monkeypatch.setattr(penstock, "open", lambda url: broker)
    assert shell("stats jobs --store postgresql://me:secret@host/db") == 3
    assert shell.err == "penstock: there is no queue 'jobs'; the store is postgresql://host/db\n"


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@host/db", "postgresql://me:hun@ter2@host/db", "mysql://host/db?password=hunter2"]
)
def test_a_password_in_the_url_is_not_shown_by_the_service(shell: Shell, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    server = pytest.importorskip("penstock.server")
    monkeypatch.setattr("penstock.cli.serving.open_local", lambda _url: nullcontext())
    monkeypatch.setattr(server, "serve", lambda _broker, _settings, started, **_: started("http://127.0.0.1:7843"))
    assert shell(f"serve --store {url}") == 0
    assert "://host/db" in shell.err
    assert "ter2" not in shell.err


def test_a_server_is_not_served_by_another(shell: Shell) -> None:
    pytest.importorskip("penstock.server")
    assert shell("serve --store http://127.0.0.1:1") == 2
    assert shell.err == "penstock: URL 'http://127.0.0.1:1' is the URL of a server; a store is needed here\n"


def test_a_file_may_have_an_at_sign(shell: Shell) -> None:
    assert shell("stats jobs --store sqlite:///jobs@home.db") == 3
    assert "the store is sqlite:///jobs@home.db" in shell.err


def test_a_defect_is_one_line_too(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LocalQueue) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(LocalQueue, "stats", fail)
    assert jobs("stats jobs") == 4
    assert jobs.err == "penstock: a defect in Penstock: ZeroDivisionError: surprise (PYTHONDEVMODE=1 shows where)\n"


def test_a_store_that_fails_in_the_middle_tells_what_is_safe(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    send_many = LocalQueue.send_many

    def fill(self: LocalQueue, drafts: Any) -> list[penstock.Sent]:
        if self.stats().messages:
            raise penstock.StoreFull("no space left")
        return send_many(self, drafts)

    monkeypatch.setattr(LocalQueue, "send_many", fill)
    assert jobs("send jobs --lines", stdin=b"x\n" * 1500) == 4
    assert jobs.err == "penstock: no space left; safely sent: the first 1000 lines\n"


def test_ctrl_c_exits_130_and_tells_what_is_safe(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalQueue, "send_many", interrupt)
    monkeypatch.setattr(LocalQueue, "receive", interrupt)
    assert jobs("send jobs --lines", stdin=b"x") == 130
    assert jobs.err == "penstock: interrupted; at least 0 lines are safely sent\n"
    assert jobs("receive jobs") == 130
    assert jobs.err == ""


def test_without_a_command_the_help_is_shown(shell: Shell) -> None:
    assert shell([]) == 2
    assert shell.out.startswith("usage: penstock")
    assert shell("--help") == 0
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "130"):
        assert f"\n  {code}" in shell.out
    assert shell("--version") == 0
    assert shell.out == f"penstock {penstock.__version__}\n"


def test_options_for_all_commands_may_stand_before_or_after(shell: Shell) -> None:
    assert shell("--store sqlite:///a.db --json create jobs") == 0
    assert shell.json["created"] is True
    assert shell("create jobs --json --store sqlite:///a.db") == 2
    assert shell("--json create jobs --store sqlite:///b.db") == 0
    assert shell.json["created"] is True


def test_without_a_store_the_queues_are_in_the_folder(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_STORE")
    assert shell("create jobs") == 0
    assert (tmp_path / "penstock.db").exists()


def test_bench_gets_its_own_arguments(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.bench

    monkeypatch.setattr(penstock.bench, "main", lambda argv: 7 if argv == ["--quick", "x", "--json", "--help"] else 8)
    assert shell("bench --quick x --json --help") == 7


# as a process


def run(*command: str, input: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([PENSTOCK, *command], input=input, capture_output=True, timeout=60, **options)


def test_a_reader_that_leaves_is_no_error(jobs: Shell) -> None:
    jobs("send jobs --lines", stdin=b"x" * 100 + b"\n" * 5000)
    line = f"{shlex.quote(PENSTOCK)} receive jobs --limit 5000 --delete --json | head -c 1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"{", b"")
    assert jobs("stats jobs --json") == 0
    assert jobs.json["messages"] == 5000  # unread messages are not deleted


def test_what_cannot_be_printed_is_not_deleted(jobs: Shell) -> None:
    jobs("send jobs precious")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([PENSTOCK, "receive", "jobs", "--delete"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr.count(b"\n")) == (4, 1)
    assert done.stderr.startswith(b"penstock: input or output failed: ")
    assert bodies(jobs) == ["precious"]


def test_an_output_that_is_closed_receives_nothing(jobs: Shell) -> None:
    jobs("send jobs precious")
    done = subprocess.run(["sh", "-c", f"{shlex.quote(PENSTOCK)} receive jobs >&-"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (4, b"penstock: standard output is closed\n")
    assert jobs("receive jobs") == 0


def test_output_in_another_encoding_does_not_fail(jobs: Shell) -> None:
    jobs("send jobs naïve")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert b"na\\xefve" in run("peek", "jobs", env=environment).stdout
    assert json.loads(run("peek", "jobs", "--json", env=environment).stdout)["body"] == "naïve"


def test_without_rich_all_but_watch_works(jobs: Shell) -> None:
    program = "import sys; sys.modules['rich'] = None; from penstock.cli import main; sys.exit(main(sys.argv[1:]))"

    def bare(*command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-c", program, *command], input=b"x\n", capture_output=True, timeout=60)

    assert bare("send", "jobs", "--lines").stdout == b"sent 1 message\n"
    assert bare("queues").returncode == 0
    done = bare("watch")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b'penstock: watch needs an optional library: pip install "penstock[cli]"\n'


def test_watch_prints_one_table_where_there_is_no_terminal(jobs: Shell) -> None:
    jobs(["create", "[bold]"])
    assert jobs("watch") == 0
    assert [line.split()[0] for line in jobs.out.splitlines()] == ["name", "[bold]", "jobs"]
    assert jobs("watch jobs --count 2 --interval 0.1") == 0
    assert [line.split()[0] for line in jobs.out.splitlines()] == ["name", "jobs"] * 2


def test_watch_does_not_miss_a_ctrl_c_that_python_ignores(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def overview(*_: object, **__: object) -> list[object]:
        with suppress(KeyboardInterrupt):  # as Python does in a finalizer
            signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr("penstock.cli.watch.overview", overview)
    assert jobs("watch --count 3 --interval 0.1") == 130
    assert len(jobs.out.splitlines()) == 1


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, *command: str, stdout: int | None = None) -> None:
        self._screen, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs if stdout is None else stdout, stderr=theirs, env=environment
        )
        os.close(theirs)
        self.text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)

    def read_until(self, sign: Callable[[str], bool]) -> str:
        """What is on the screen once the text appears, or everything when the process has ended."""
        while not sign(self.text):
            assert select.select([self._screen], [], [], 60)[0], self.text
            try:
                self.text += os.read(self._screen, 65536).decode(errors="replace")
            except OSError:  # EIO: the other side is closed
                break
        return self.text

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        self.read_until(lambda _: False)
        return self._process.wait(60)


def test_watch_is_live_on_a_terminal_until_ctrl_c(jobs: Shell) -> None:
    with Terminal(PENSTOCK, "watch", "--interval", "0.1") as terminal:
        assert "in flight" in terminal.read_until(lambda text: "Ctrl-C ends" in text)
        jobs("send jobs a b c d e")
        terminal.read_until(lambda text: re.search(r"jobs +5 +5 ", text) is not None)
        terminal.interrupt()
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text
        assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")  # the cursor is back


def test_watch_on_a_terminal_ends_after_the_count(jobs: Shell) -> None:
    with Terminal(PENSTOCK, "watch", "jobs", "--count", "2", "--interval", "0.1") as terminal:
        assert terminal.end() == 0
        assert "jobs" in terminal.text


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, ["a"]), ("", 1, ["a"]), ("y", 0, [])])
def test_purge_asks_on_a_terminal(jobs: Shell, answer: str, code: int, left: list[str]) -> None:
    jobs("send jobs a")
    with Terminal(PENSTOCK, "purge", "jobs") as terminal:
        terminal.read_until(lambda text: "Delete all messages (1) of queue 'jobs'? [y/N] " in text)
        terminal.type(f"{answer}\n")
        assert terminal.end() == code
    assert bodies(jobs) == left


def test_a_message_can_be_typed(jobs: Shell) -> None:
    with Terminal(PENSTOCK, "send", "jobs", "--lines") as terminal:
        terminal.read_until(lambda text: "end with Ctrl-D" in text)
        terminal.type("one\ntwo\x04\x04")  # the first Ctrl-D ends the line, the second the input
        assert terminal.end() == 0
        assert terminal.text.endswith("sent 2 messages\r\n")
    assert bodies(jobs) == ["one", "two"]


def test_progress_is_on_the_terminal_and_json_is_not(jobs: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "answers").open("wb") as answers:
        command = (PENSTOCK, "send", "jobs", "--json", "--files", *["file"] * 10)
        with Terminal(*command, stdout=answers.fileno()) as terminal:
            assert terminal.end() == 0
    assert "100%" in terminal.text
    assert "10 sent" in terminal.text
    assert "duplicate" not in terminal.text
    assert len((tmp_path / "answers").read_text().splitlines()) == 10


# schedules


def test_a_schedule_is_made_changed_paused_resumed_and_removed(jobs: Shell) -> None:
    jobs("create others")
    assert jobs("schedule add tick jobs hello --every 5 --content-type text/plain --attribute n:number=1 --key k --json") == 0
    made = jobs.json
    assert made == {
        "name": "tick",
        "queue": "jobs",
        "cron": None,
        "every": 5,
        "zone": "UTC",
        "missed": "once",
        "paused": False,
        "next_at": made["next_at"],
        "last_at": None,
        "runs": 0,
        "body": "hello",
        "content_type": "text/plain",
        "attributes": {"n": 1},
        "key": "k",
    }
    assert jobs("schedule change tick --cron @daily --zone Asia/Tokyo --missed all --queue others --body new") == 0
    assert re.fullmatch(r"tick: next .* 15:00:00\.000 UTC\n", jobs.out)
    assert jobs("schedule pause tick") == 0
    assert jobs.out == "tick: paused\n"
    assert jobs("schedule list --json") == 0
    (shown,) = jobs.json
    assert (shown["paused"], shown["next_at"], shown["missed"], shown["body"]) == (True, None, "all", "new")
    assert jobs("schedule list") == 0
    _, row = jobs.out.splitlines()
    assert re.split(r"\s{2,}", row) == ["tick", "others", "@daily Asia/Tokyo", "paused", "-", "0"]
    assert jobs("schedule resume tick --json") == 0
    assert jobs.json["next_at"]
    assert jobs("schedule remove tick") == 0
    assert jobs.out == "removed tick\n"
    assert jobs("schedule list") == 0
    assert jobs.err.startswith("penstock: there are no schedules yet")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("schedule", 2, ""),
        ("schedule remove none", 3, "there is no schedule 'none'; the store is"),
        ("schedule add tick nowhere x --every 5", 3, "there is no queue 'nowhere'"),
        ("schedule add tick jobs x", 2, "either cron, such as"),
        ("schedule add tick jobs x --every 5 --zone Mars", 2, "there is no time zone 'Mars'"),
        ("schedule add tick jobs x --every soon", 2, "--every"),
        ("schedule change tick", 2, "give what is to be changed"),
    ],
)
def test_a_schedule_that_cannot_be_is_one_line_and_an_exit_code(jobs: Shell, line: str, code: int, says: str) -> None:
    assert jobs(line) == code
    assert says in jobs.err
    assert jobs.err.count("\n") == bool(says)


def test_the_scheduler_sends_what_is_due_until_it_is_told_to_end(jobs: Shell, tmp_path: Path) -> None:
    assert jobs("schedule add tick jobs --every 1", stdin=b"from stdin") == 0
    scheduler = subprocess.Popen([PENSTOCK, "scheduler"], cwd=tmp_path)
    try:
        assert jobs("receive jobs --wait 60 --body") == 0
        assert jobs.out == "from stdin"
    finally:
        scheduler.terminate()
        assert scheduler.wait(60) == 0


def test_the_scheduler_may_end_when_it_has_sent_what_is_due(jobs: Shell) -> None:
    assert jobs("scheduler --once") == 0
    with penstock.open("sqlite:///queues.db", clock=lambda: 10**15) as broker:  # long ago
        broker.schedule("tick", queue="jobs", every=1, body=b"now")
    assert jobs("scheduler --once") == 0
    assert jobs("receive jobs --body") == 0
    assert jobs.out == "now"


# documents


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


COMMANDS = subcommands(build())
PIPELINES = subcommands(COMMANDS["pipeline"])
DEEDS = subcommands(COMMANDS["schedule"])


def sections() -> list[str]:
    return re.split(r"^##+ ", (ROOT / "docs/cli.md").read_text(), flags=re.M)


def check_documented(command: str, mine: list[str], parser: argparse.ArgumentParser, shared: str) -> None:
    assert len(mine) == 1, f"docs/cli.md needs one section on {command}"
    assert f"penstock {command}" in mine[0]
    for action in parser._actions:
        for option in action.option_strings:
            where = shared if option in ("-h", "--help", "--store", "--json") else mine[0]
            assert option == "-h" or re.search(rf"`[^`]*{option}\b", where), f"{option} of {command} is not in docs/cli.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    heads = {section: section.partition("\n")[0] for section in sections()}
    mine = [part for part, head in heads.items() if name in re.split(r",? ", head) and not head.startswith("pipeline ")]
    check_documented(name, mine, COMMANDS[name], "".join(heads))


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_and_option_is_documented(name: str) -> None:
    (group,) = [section for section in sections() if section.startswith("pipeline\n")]
    mine = [section + group for section in sections() if section.startswith(f"pipeline {name}\n")]
    check_documented(f"pipeline {name}", mine, PIPELINES[name], "".join(sections()))


@pytest.mark.parametrize("name", DEEDS)
def test_every_deed_on_schedules_and_its_options_are_documented(name: str) -> None:
    (mine,) = [section for section in sections() if section.startswith("schedule\n")]
    check_documented(f"schedule {name}", [mine], DEEDS[name], "".join(sections()))


def test_the_exit_codes_are_documented_as_the_help_tells_them(shell: Shell) -> None:
    shell("--help")
    told = re.findall(r"^  (\d+) +(.+)$", shell.out[shell.out.index("exit codes:") :], re.M)
    assert len(told) == 6
    page = (ROOT / "docs/cli.md").read_text()
    for code, meaning in told:
        assert f"| {code} | {meaning} |" in page


def test_the_examples_of_the_manual_are_true(tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_STORE": "sqlite:///penstock.db"}
    environment["PATH"] = f"{Path(PENSTOCK).parent}{os.pathsep}{environment['PATH']}"
    lines = [
        line
        for block in re.findall(r"^```console\n(.*?)^```", (ROOT / "docs/cli.md").read_text(), re.M | re.S)
        for line in block.splitlines()
    ]
    steps: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    assert len(steps) > 20
    with subprocess.Popen(
        ["sh"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        env=environment,
        text=True,
    ) as shell:  # one shell, because examples may set variables
        assert shell.stdin is not None
        assert shell.stdout is not None
        for command, expected in steps:
            shell.stdin.write(f"{command}\necho; echo '--- done'\n")
            shell.stdin.flush()
            printed = "".join(iter(shell.stdout.readline, "--- done\n")).rstrip("\n")
            wanted = re.sub(r"(?:\\ )+…", " +.*", re.escape("\n".join(expected)))  # of any width
            pattern = wanted.replace("…", ".*")
            assert re.fullmatch(pattern, printed), f"$ {command}\n{printed}"


def test_the_tour_runs() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "examples/tour.py")], capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ">>> [m.text for m in jobs.receive(wait=5)]\n['wake up']\n" in done.stdout
    assert "\nNext: " in done.stdout

"""Nobody learns what is not for them: passwords in URLs, where the store is, names of queues, and files of other users."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock import Redrive
from penstock.broker import open_desk, open_local
from penstock.publishing.segments import pack_drafts
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http
from penstock.urls import shown, without_password

SECRET, ALL = "a-secret-of-some-length", "another-secret-of-some-length"
HUNTER = "hunter2"

# passwords in URLs

MALFORMED = [
    "{0}://me:hunter2@127.0.0.1:port/x",
    "{0}://me:hun/ter2@127.0.0.1/x",
    "{0}://me:hun?ter2@127.0.0.1/x",
    "{0}://me:hun#ter2@127.0.0.1/x",
    "{0}://me:hun@ter2@127.0.0.1:port/x",
    "{0}://me:hun%zzter2@127.0.0.1/x",
    "{0}://me:hun:ter2@[127.0.0.1/x",
    "{0}://me:hunter2\u2100@127.0.0.1/x",
    "{0}:me:hunter2@127.0.0.1/x",
    "{0}:/me:hunter2@127.0.0.1/x",
    "{0}//me:hunter2@127.0.0.1/x",
    "{0}://me:" + "hunter2" * 40 + "@127.0.0.1:port/x",
    "{0}://127.0.0.1:port/x?password=hunter2",
    "{0}://127.0.0.1/x?sslpassword=hunter2&colour=red&password=hunter2",
]


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "memcached", "sqlite", "spool", "vsqs", "memory", "http", "ftp"])
@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_url_never_shows_its_password(
    scheme: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if scheme in ("sqlite", "spool", "vsqs") and url.startswith("{0}:/me"):
        return  # that is a path
    for options in ({}, {"colour": "red"}):
        with pytest.raises(penstock.PenstockError) as caught:
            penstock.open(url.format(scheme), **options)
        told = str(caught.value)
        for part in ("hunter2", "hun", "ter2"):
            assert part not in told, told


def test_a_url_is_shown_as_far_as_it_is_known_to_be_no_password() -> None:
    assert shown("postgresql://me:x@db/jobs?pool=5") == "'postgresql://db/jobs?pool=5'"
    assert shown("sqlite:///a@b.db?timeout=5") == "'sqlite:///a@b.db?timeout=5'"
    assert shown("me:x@db") == "'…@db'"
    assert without_password("postgresql://me:x@db/jobs?application_name=a@b") == "postgresql://db/jobs?application_name=a@b"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "postgresql://me:hun/ter2@127.0.0.1/x", "list"],
        ["serve", "--store", "mysql://me:hun/ter2@127.0.0.1/x"],
        ["serve", "postgresql://me:hunter2@127.0.0.1/x"],
        ["postgresql://me:hunter2@127.0.0.1/x", "list"],
        ["--store", "ftp://me:hunter2@127.0.0.1/x", "mover"],
    ],
)
def test_no_line_of_the_command_line_shows_a_password(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "penstock.cli", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("penstock: ")
    for part in ("hunter2", "hun/", "ter2"):
        assert part not in done.stderr


# what the service tells


@contextmanager
def serving(url: str) -> Iterator[tuple[penstock.broker.LocalBroker, BackgroundServer, io.StringIO]]:
    """A server with a token for mail-*, and one for all queues."""
    tables = [{"name": "shop", "secret": SECRET, "queues": ["mail-*"]}, {"name": "all", "secret": ALL}]
    log = io.StringIO()
    with open_local(url) as broker:
        for name in ("mail-in", "mail-dead", "secret"):
            broker.create(name)
        with BackgroundServer(broker, ServerSettings(port=0, tokens=read_tokens(tables, "test", "")), log=log) as server:
            yield broker, server, log


def as_(server: BackgroundServer, secret: str) -> Http:
    return Http(server.url, {"Authorization": f"Bearer {secret}"})


ASKED = [
    ("POST", "/messages/mail-in", b"x"),
    ("GET", "/messages/mail-in", None),
    ("POST", "/mail-in/messages", b"x"),
    ("GET", "/mail-in", None),
    ("POST", "/penstock/queues/mail-in/stats", {"arguments": {}}),
    ("POST", "/penstock/broker/names", {"arguments": {}}),
    ("GET", "/queues", None),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize("scheme", ["sqlite", "vsqs"])
def test_where_the_store_is_only_those_learn_who_may_change_all_queues(scheme: str, tmp_path: Path) -> None:
    with serving(f"{scheme}:///{tmp_path}/place") as (broker, server, log):
        broker.store.close()
        for method, path, body in ASKED:
            answer = as_(server, SECRET)(method, path, body)
            assert (answer.status >= 500, "the store was closed" in answer.json["error"]) == (True, True), path
            assert "place" not in answer.body.decode(), path
            assert f"{tmp_path}/place" in as_(server, ALL)(method, path, body).json["error"], path
        health = Http(server.url)("GET", "/health")
        assert (health.status, "place" in health.body.decode()) == (503, False)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert all(f"{tmp_path}/place" in line["cause"] for line in lines)
    assert len(lines) == 2 * len(ASKED) + 1


def test_a_token_does_not_learn_the_name_of_a_dead_letter_queue_of_others() -> None:
    with serving("memory:") as (broker, server, _):
        queue = broker["mail-in"]
        queue.update(redrive=Redrive("secret", 3))
        http = as_(server, SECRET)
        hidden = {"max_receives": 3, "dead_letter_queue": ":hidden"}
        assert http("GET", "/queues/mail-in").json["redrive_policy"] == hidden
        assert http("GET", "/queues").json["queues"][1]["redrive_policy"] == hidden
        with penstock.open(server.url, token=SECRET) as remote, penstock.open(server.url, token=ALL) as all:
            assert remote["mail-in"].settings.redrive == Redrive(":hidden", 3)
            assert remote["mail-in"].update(delay=1).redrive == Redrive(":hidden", 3)
            assert all["mail-in"].settings.redrive == Redrive("secret", 3)
            body = {"retention_timeout": 60, "visibility_timeout": 60}
            kept = http("POST", "/queues/mail-in", {**body, "redrive_policy": hidden})
            assert (kept.status, kept.json["redrive_policy"]) == (200, hidden)
            assert queue.settings.redrive == Redrive("secret", 3)
            changed = http("POST", "/queues/mail-in", {**body, "redrive_policy": {**hidden, "max_receives": 1}})
            assert (changed.status, "secret" in changed.body.decode()) == (400, False)
            queue.update(redrive=Redrive("mail-dead", 3))
            assert remote["mail-in"].settings.redrive == Redrive("mail-dead", 3)
            queue.update(redrive=Redrive("secret", 3))
            assert remote.delete("mail-in").redrive == Redrive(":hidden", 3)
        broker.create("mail-in", redrive=Redrive("secret", 3))
        assert http("DELETE", "/queues/mail-in").json["redrive_policy"] == hidden


# files


def mode(path: str | Path) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


@contextmanager
def umask(number: int) -> Iterator[None]:
    before = os.umask(number)
    try:
        yield
    finally:
        os.umask(before)


def use(url: str) -> None:
    with penstock.open(url) as broker:
        broker.create("orders", exist_ok=True).send(b"x")
        broker.stage("writer", 0, "a", pack_drafts("orders", [penstock.Draft(b"x")]))
        broker["orders"].receive()


def readable_by_others(folder: Path, above: int = 0o007) -> set[str]:
    """The files that a user without rights of the owner or the group can reach."""
    found = set()
    for entry in os.scandir(folder):
        if entry.is_dir() and mode(entry.path) & above & 0o111:
            found |= {f"{entry.name}/{name}" for name in readable_by_others(Path(entry.path), above)}
        if not entry.is_dir() and mode(entry.path) & above & 0o444:
            found.add(entry.name)
    return found


@pytest.mark.parametrize("scheme", ["sqlite", "vsqs", "spool"])
def test_what_a_store_makes_is_for_its_owner_alone(scheme: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with umask(0o022):
        use(f"{scheme}:///{tmp_path}/place")
        assert readable_by_others(tmp_path, 0o077) == set()
        with open_desk(f"{scheme}:///{tmp_path}/place") as desk:
            desk.stage("second", 0, "a", pack_drafts("orders", [penstock.Draft(b"x")]))
        assert readable_by_others(tmp_path, 0o077) == set()


def test_the_log_of_a_queue_file_is_as_private_as_the_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with umask(0o022), penstock.open(f"sqlite:///{tmp_path}/place") as broker:
        broker.create("orders").send(b"x")
        assert {name: mode(tmp_path / name) for name in ("place", "place-wal", "place-shm")} == dict.fromkeys(
            ("place", "place-wal", "place-shm"), 0o600
        )


def test_a_queue_file_that_is_shared_stays_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    file = tmp_path / "place"
    with umask(0o007):
        use(f"sqlite:///{file}")
        file.chmod(0o660)
        for name in ("place-clock", "place-staged"):
            subprocess.run(["rm", "-r", tmp_path / name], check=True)
        use(f"sqlite:///{file}")
    assert mode(file) == 0o660
    assert (mode(tmp_path / "place-clock"), mode(tmp_path / "place-staged") & 0o777) == (0o2770, 0o770)


@pytest.mark.parametrize("scheme", ["vsqs", "spool"])
def test_a_folder_that_is_shared_stays_shared(scheme: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o755)
    with umask(0o022):
        use(f"{scheme}:///{place}")
    assert mode(place) == 0o755
    assert readable_by_others(place) != set()

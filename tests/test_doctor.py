"""What the doctor finds: on real folders, disks, databases, servers and hosts, each with one thing wrong."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

import penstock
from penstock.cli import main
from penstock.clock import system_clock
from penstock.operations.doctor import Finding, Severity, examine
from penstock.operations.doctor.file_systems import Mount
from penstock.operations.doctor.folders import _examine_file_system
from penstock.operations.doctor.machine import fits, read_requirement
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.tokens import read_tokens
from penstock.testing.power import need_mounts
from penstock.testing.servers import DatabaseServer, MemcachedServer, PostgresqlServer, free_port

HOUR = 3_600_000_000
PATIENCE = 60.0
"""On a busy machine everything is slow, and nothing but the tests of it hangs."""
SERVED = ServerSettings(port=0, access_log=False)
SECRET = "a-secret-of-some-length"


def wrongs(url: str, **options: Any) -> list[tuple[str, str]]:
    found = examine(url, **{"patience": PATIENCE, **options})
    return [(finding.subject, finding.what) for finding in found if finding.severity is Severity.WRONG]


def told(url: str, subject: str) -> list[Finding]:
    return [finding for finding in examine(url, patience=PATIENCE) if finding.subject == subject]


def sole(found: list[tuple[str, str]]) -> tuple[str, str]:
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(params=["sqlite", "vsqs", "spool"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made = f"{request.param}:///{tmp_path}/store"
    with penstock.open(made) as broker:
        broker.create("jobs").send(b"one")
    return made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[penstock.broker.LocalBroker]:
    with penstock.broker.open_local(f"sqlite:///{tmp_path}/served.db") as broker:
        yield broker


# files


def test_nothing_is_wrong_with_a_store_that_is_in_use(url: str) -> None:
    with penstock.open(url) as broker:
        assert wrongs(url) == []
        assert broker["jobs"].stats().messages == 1


@pytest.mark.parametrize("kind", ["sqlite", "vsqs", "spool"])
def test_a_store_that_is_not_there_is_not_made(kind: str, tmp_path: Path) -> None:
    (finding,) = told(f"{kind}:///{tmp_path}/none", "store")
    assert (finding.severity, "there is no store" in finding.what) == (Severity.NOTE, True)
    assert list(tmp_path.iterdir()) == []
    assert sole(wrongs(f"{kind}:///{tmp_path}/no/where/x")) == ("disk", f"there is no folder {tmp_path}/no/where")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    need_mounts()
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("kind", ["sqlite", "vsqs", "spool"])
def test_a_disk_in_memory_nearly_full_full_or_read_only_is_told(kind: str, disk: Path) -> None:
    url = f"{kind}:///{disk}/store"
    found = wrongs(url)
    assert [what for _, what in found] == [
        f"{disk} is in memory (tmpfs): a reboot loses all messages",
        "it is nearly full: 1 MiB of 1 MiB are free",
    ]
    with pytest.raises(OSError, match="No space left"):
        (disk / "filler").write_bytes(bytes(2_000_000))
    assert ("disk", f"{disk} has no room for one more page: No space left on device") in wrongs(url)
    (disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert {what for _, what in wrongs(url)} >= {
        f"{disk} is mounted read-only",
        f"no file can be made in {disk}: Read-only file system",
    }


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("nfs4", "rw", "is on a network file system (nfs4)"),
        ("fuse.sshfs", "rw", "is on a network file system"),
        ("ext4", "rw,nobarrier", "is mounted without barriers"),
        ("ext4", "ro", "is mounted read-only"),
    ],
)
def test_a_file_system_that_does_not_suit_a_queue_is_told(kind: str, options: str, says: str, tmp_path: Path) -> None:
    """Not mounted here, but as Linux would name it."""
    found = list(_examine_file_system(tmp_path, Mount(kind, frozenset(options.split(","))), "its locks"))
    assert any(finding.severity is Severity.WRONG and says in finding.what for finding in found)


STRANGER = """
import os, sys
from penstock.operations.doctor import examine
examine(sys.argv[1], patience=60)  # before, so that nothing is left to import
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print([finding.what for finding in examine(sys.argv[1], patience=60) if finding.severity == "wrong"])
"""


@pytest.mark.parametrize("kind", ["sqlite", "vsqs", "spool"])
def test_a_store_of_another_user_is_told(kind: str) -> None:
    need_mounts()  # that is: root
    folder = Path(tempfile.mkdtemp(prefix="penstock-doctor-"))
    try:
        url = f"{kind}:///{folder}/store"
        with penstock.open(url) as broker:
            broker.create("jobs").send(b"x")
        folder.chmod(0o777)
        done = subprocess.run([sys.executable, "-c", STRANGER, url], capture_output=True, text=True, check=True)
        assert f"user 65534 may not read and write {folder}/store" in done.stdout
        assert "which is user 0's" in done.stdout
        folder.chmod(0o755)
        done = subprocess.run([sys.executable, "-c", STRANGER, url], capture_output=True, text=True, check=True)
        assert "user 65534 may not read and write" in done.stdout
    finally:
        shutil.rmtree(folder)


def test_a_file_that_is_no_database_or_too_new_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 1000)
    assert sole(wrongs(f"sqlite:///{tmp_path}/text")) == ("store", f"{tmp_path}/text is no SQLite database")
    with penstock.open(f"sqlite:///{tmp_path}/new"):
        pass
    connection = apsw.Connection(str(tmp_path / "new"))
    connection.execute("UPDATE penstock_meta SET value = 9999 WHERE name = 'version'")
    connection.close()
    assert "has schema 9999; this Penstock knows" in sole(wrongs(f"sqlite:///{tmp_path}/new"))[1]


def test_a_clock_that_was_set_is_told(url: str) -> None:
    found = sole(wrongs(url, wall=lambda: system_clock() + HOUR))
    assert found[0] == "clock"
    assert found[1].startswith("the clock of the store is 3,600 s behind")
    assert "years behind" in wrongs(url, wall=lambda: 0)[0][1]


def test_a_library_that_makes_syncs_do_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libeatmydata.so")
    assert "libeatmydata" in sole(wrongs(f"sqlite:///{tmp_path}/x"))[1]


# libraries


def test_requirements_are_read_as_our_metadata_has_them() -> None:
    assert read_requirement("apsw>=3.51.3.0") == (None, "apsw", [(">=", "3.51.3.0")])
    assert read_requirement("psycopg[binary]>=3.2; extra == 'postgres'") == ("postgres", "psycopg", [(">=", "3.2")])
    assert read_requirement('pandas<3; extra == "connect"') == ("connect", "pandas", [("<", "3")])
    assert read_requirement("old>=1; python_version < '3.11' and extra == 'x'") is None
    assert fits("3.51.3.0", [(">=", "3.51.3")])
    assert not fits("3.9", [(">=", "3.51.3")])
    assert not fits("3.0.1", [("<", "3")])
    assert fits("2.3.3", [("<", "3")])


def test_a_library_that_is_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.operations.doctor import machine

    before = machine.version
    monkeypatch.setattr(machine, "version", lambda name: "4.0.1" if name == "celery" else before(name))
    found = sole(wrongs(f"sqlite:///{tmp_path}/x"))
    assert found == ("libraries", "celery 4.0.1: Penstock needs >= 5.3")


# databases


def test_settings_that_lose_messages_are_told_on_postgresql(postgresql: DatabaseServer) -> None:
    url = postgresql.new_url()
    fsync = ("sync", "fsync is off: a power cut may lose messages, and damage the database")
    assert wrongs(url) == [fsync]
    (finding,) = told(url, "store")
    assert (finding.severity, finding.what) == (Severity.NOTE, "there is no store yet")
    with penstock.open(url) as broker:
        broker.create("jobs").send(b"x")
    assert wrongs(url) == [fsync]
    ahead = ("clock", "the server's clock is 3,600 s behind this machine's wall clock")
    assert wrongs(url, wall=lambda: system_clock() + HOUR) == [ahead, fsync]
    base, _, schema = url.partition("?options=-csearch_path%3D")
    with postgresql.connect() as connection:
        connection.execute("CREATE ROLE guest LOGIN; ALTER ROLE guest SET synchronous_commit = off")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO guest")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO guest")
    try:
        guest = url.replace("penstock@", "guest@")
        assert next(what for subject, what in wrongs(guest) if subject == "permissions").startswith(
            "this user may not INSERT messages"
        )
        assert any("synchronous_commit is off; Penstock turns it on" in finding.what for finding in told(guest, "sync"))
        unmade = base.replace("penstock@", "guest@") + "?options=-csearch_path%3Dpg_catalog"
        assert ("permissions", "this user may not make tables in its schema") in wrongs(unmade)
    finally:
        with postgresql.connect() as connection:
            connection.execute("DROP OWNED BY guest; DROP ROLE guest")


def test_a_database_that_syncs_has_nothing_wrong() -> None:
    with PostgresqlServer(sync=True) as server:
        url = server.new_url()
        with penstock.open(url):
            assert wrongs(url) == []


def test_settings_that_lose_messages_are_told_on_mariadb(mariadb: DatabaseServer) -> None:
    url = mariadb.new_url()
    flush = ("sync", "innodb_flush_log_at_trx_commit is 2: a power cut may lose messages")
    assert wrongs(url) == [flush]
    with penstock.open(url) as broker:
        broker.create("jobs").send(b"x")
    assert wrongs(url) == [flush]
    assert len(wrongs(url, wall=lambda: system_clock() - HOUR)) == 2
    name = url.rpartition("/")[2]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER guest@'127.0.0.1'")
        cursor.execute(f"GRANT SELECT ON {name}.* TO guest@'127.0.0.1'")
        try:
            guest = wrongs(url.replace("root@", "guest@"))
            assert guest[-1][1].startswith("this user may not INSERT messages"), guest
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
            cursor.execute("SET GLOBAL read_only = 1")
            assert wrongs(url) == [("server", "it is read-only")]
        finally:
            cursor.execute("SET GLOBAL read_only = 0")
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
            cursor.execute("DROP USER guest@'127.0.0.1'")


# memcached


def test_memcached_that_evicts_is_told(memcached: MemcachedServer) -> None:
    assert wrongs(memcached.new_url()) == []
    with MemcachedServer("-m", "64") as evicts:
        found = sole(wrongs(evicts.new_url()))
        assert found == (
            "server",
            f"memcached at 127.0.0.1:{evicts.port} throws values away when its memory is full, so messages may be lost",
        )


# services


def test_a_service_is_asked_for_its_clock_its_version_and_whether_it_lets_us_in(
    served: penstock.broker.LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    with BackgroundServer(served, SERVED) as server:
        assert wrongs(server.url) == []
        assert "the clock of the service's store" in sole(wrongs(server.url, wall=lambda: system_clock() + HOUR))[1]
        monkeypatch.setattr(penstock, "__version__", "9.9")
        assert any("Penstock 9.9, as here" in finding.what for finding in told(server.url, "server"))
    locked = replace(SERVED, tokens=read_tokens([{"name": "boss", "secret": SECRET}], "test", ""))
    with BackgroundServer(served, locked) as server:
        assert sole(wrongs(server.url))[0] == "store"
        monkeypatch.setenv("PENSTOCK_TOKEN", SECRET)
        assert wrongs(server.url) == []
        monkeypatch.setenv("PENSTOCK_TOKEN", "another-secret-of-some-length")
        assert "token" in sole(wrongs(server.url))[1]


def test_a_certificate_that_nobody_vouches_for_is_told(
    served: penstock.broker.LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = tmp_path / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", pem, "-out", f"{pem}.crt", "-days", "5"]
    subprocess.run(
        [*command, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    with BackgroundServer(served, replace(SERVED, tls_cert=f"{pem}.crt", tls_key=str(pem))) as server:
        subject, what = sole(wrongs(server.url))
        assert (subject, "is refused: self" in what) == ("store", True), what
        assert "does not speak TLS" not in what
        monkeypatch.setenv("SSL_CERT_FILE", f"{pem}.crt")
        assert wrongs(server.url) == []
        (finding,) = told(server.url, "tls")
        assert finding.severity is Severity.NOTE, "five days"
        assert [subject for subject, _ in wrongs(server.url.replace("https:", "http:"))] == ["store"]


def test_a_token_without_tls_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way to another host. This one's own address is not loopback, and reached without a network."""
    monkeypatch.setenv("PENSTOCK_TOKEN", SECRET)
    here = socket.gethostbyname(socket.gethostname())
    if here.startswith("127."):
        here = "0.0.0.0"
    with penstock.broker.open_local("memory:") as broker:
        locked = replace(SERVED, host="0.0.0.0", tokens=read_tokens([{"name": "boss", "secret": SECRET}], "test", ""))
        with BackgroundServer(broker, locked) as server:
            port = server.url.rpartition(":")[2]
            assert ("token", "the token travels without TLS, and everybody on the way can read it") in wrongs(
                f"http://{here}:{port}"
            )


# what does not answer


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield listener.getsockname()[1]


PLACES = ["http://127.0.0.1:{}", "https://127.0.0.1:{}", "postgresql://u:pw@127.0.0.1:{}/d", "mysql://u:pw@127.0.0.1:{}/d"]
PLACES.append("memcached://127.0.0.1:{}/x")


@pytest.mark.parametrize("place", PLACES)
def test_a_host_that_says_nothing_is_one_line_in_seconds(place: str, silent: int) -> None:
    subject, what = wrongs(place.format(silent), patience=6)[-1]
    assert subject == "store"
    assert "\n" not in what
    assert "pw" not in what


@pytest.mark.parametrize("place", PLACES)
def test_a_port_where_nothing_is_is_one_line(place: str) -> None:
    found = [what for subject, what in wrongs(place.format(free_port())) if subject == "store"]
    assert len(found) == 1
    assert "pw" not in found[0]


def test_a_folder_that_hangs_is_told_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the doctor waited, it would get an answer in the end."""

    def hang(_: int) -> None:
        time.sleep(20)

    from penstock.operations.doctor import folders

    monkeypatch.setattr(folders.os, "fsync", hang)
    subject, what = wrongs(f"sqlite:///{tmp_path}/x", patience=2)[-1]
    assert (subject, what) == ("store", "no answer within 2 s")


# the command


def test_the_command_prints_a_page_or_json_and_says_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    assert main(["doctor", "--store", url]) == 0
    page = capsys.readouterr()
    assert "ok     python" in page.out
    assert len(page.out.splitlines()) < 30, "one page"
    assert page.err == "penstock: nothing is wrong\n"
    assert main(["doctor", "--store", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"subject": "store", "severity": "note"}.items() <= document[-1].items()
    assert main(["doctor", "--store", "vsqs:////no/such/place"]) == 1
    page = capsys.readouterr()
    assert "wrong  disk       there is no folder /no/such\n" in page.out
    assert "→ make it" in page.out
    assert page.err == "penstock: 1 thing is wrong\n"
    assert main(["doctor", "--store", "jobs.db"]) == 1
    assert main(["doctor", "--store", "redis://user:pw@host/0"]) == 1
    assert "pw" not in capsys.readouterr().out
    assert main(["doctor", "--timeout", "0"]) == 2
    assert main(["doctor", "--store", "memory:"]) == 0
    assert list(tmp_path.iterdir()) == []

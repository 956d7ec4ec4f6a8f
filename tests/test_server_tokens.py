"""Tokens over their life: two secrets while one changes, expiry, a file that is read again, and what each scope shows."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from test_serve import serving

import penstock
from penstock import BadSetting
from penstock.server import BackgroundServer, ServerSettings, read_settings
from penstock.server.auth import Guard
from penstock.server.http.request_response import Refused
from penstock.server.tokens import TOKEN_SETTINGS, Token, read_tokens
from penstock.testing.http import Http
from penstock.testing.serving import until

SECRET, NEW = "a-secret-of-some-length", "another-secret-of-some-length"


def as_(url: str, secret: str) -> Http:
    return Http(url, {"Authorization": f"Bearer {secret}"})


def tokens_of(tmp_path: Path, text: str) -> tuple[Token, ...]:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return read_settings({}, {}, file).tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("expires = 2027-01-01", "expires is '2027-01-01'; write a date, a time and an offset"),
        ("expires = 2027-01-01T00:00:00", "write a date, a time and an offset"),
        ("expires = 'soon'", "expires is 'soon'"),
        ("max_rate = 0", "max_rate is 0; it must be a number above 0"),
        ("name = 'x'\nmax_rate = nan", "max_rate is nan; it must be a number above 0"),
        ("max_queues = 1.5", "max_queues is 1.5; it must be a whole number"),
        ("max_queues = true", "max_queues is True; it must be a number above 0"),
        ("max_queues = 3", "a token with limits needs a name"),
        ("name = 3", "name must be text"),
        ("dialects = ['smtp']", "there is no dialect 'smtp'; there are mqs, mq-core, penstock"),
    ],
)
def test_a_bad_token_is_named_and_no_secret_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadSetting) as caught:
        tokens_of(tmp_path, f"[[token]]\nsecret = '{SECRET}'\n{text}")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        (f"secret = ['{SECRET}', 'short']", "at least 16 characters"),
        ("secret = []", "there are 0 secrets"),
        (f"secret = ['{SECRET}', '{NEW}', '{SECRET}x']", "there are 3 secrets; a token has one, or 2 while it changes"),
        ("sha256 = ['abc']", "64 hexadecimal digits"),
    ],
)
def test_a_token_has_one_secret_or_two(tmp_path: Path, secrets: str, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        tokens_of(tmp_path, f"[[token]]\n{secrets}")


def test_every_setting_of_a_token_stands_in_the_table_of_the_docs() -> None:
    page = (Path(__file__).parent.parent / "docs/service.md").read_text()
    for name, help in TOKEN_SETTINGS.items():
        assert f"| `{name}` | {help} |" in page, f"| `{name}` | {help} |"


def test_while_a_secret_changes_both_are_known(tmp_path: Path) -> None:
    guard = Guard(tokens_of(tmp_path, f"[[token]]\nname = 'shop'\nsecret = ['{SECRET}', '{NEW}']"), "localhost")
    for secret in (SECRET, NEW):
        assert guard.grant({"authorization": f"Bearer {secret}"}).name == "shop"
    with pytest.raises(Refused, match="knows"):
        guard.grant({"authorization": f"Bearer {SECRET}{NEW}"})


def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    now = 0.0
    tokens = tokens_of(tmp_path, f"[[token]]\nsecret = '{SECRET}'\nexpires = 2027-01-01T00:00:00+01:00")
    guard = Guard(tokens, "localhost", clock=lambda: now)
    expires = 1798758000
    for now in (0.0, expires - 1.0):  # noqa: B007
        assert guard.grant({"authorization": f"Bearer {SECRET}"})
    for now in (float(expires), expires + 1.0):  # noqa: B007
        with pytest.raises(Refused, match="expired") as caught:
            guard.grant({"authorization": f"Bearer {SECRET}"})
        assert caught.value.status == 401


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[str]:
    """A server with messages in three queues, and a token that may count those of two."""
    text = f"[[token]]\nname = 'all'\nsecret = '{SECRET}'\n[[token]]\nname = 'watch'\nsecret = '{NEW}'\n"
    tokens = tokens_of(tmp_path, text + "scopes = ['count']\nqueues = ['mail-*']")
    with penstock.open("memory:") as broker:
        for name in ("mail-in", "mail-out", "other"):
            broker.create(name)
        with BackgroundServer(broker, ServerSettings(port=0, tokens=tokens)) as server:
            for name in ("mail-in", "mail-out", "other"):
                assert as_(server.url, SECRET)("POST", f"/messages/{name}", b"the body").status == 201
            yield server.url


def test_a_token_that_may_count_sees_numbers_and_no_body(counting: str) -> None:
    watch = as_(counting, NEW)
    assert watch("GET", "/queues/mail-in").json["status"]["messages"] == 1
    assert [queue["name"] for queue in watch("GET", "/queues").json["queues"]] == ["mail-in", "mail-out"]
    assert watch("GET", "/mail-in").status == 200
    for verb in ("stats", "settings", "pulse", "span", "scard"):
        assert watch("POST", f"/penstock/queues/mail-in/{verb}", {"arguments": {}}).status == 200, verb
        assert watch("POST", f"/penstock/queues/other/{verb}", {"arguments": {}}).status == 403, verb
    for method, path in [("GET", "/messages/mail-in"), ("GET", "/mail-in/messages"), ("POST", "/messages/mail-in")]:
        assert watch(method, path).status == 403
    for verb in ("peek", "find", "scan", "settled", "receive", "sismember", "spop", "read", "purge", "send_many"):
        assert watch("POST", f"/penstock/queues/mail-in/{verb}", {"arguments": {}}).status == 403, verb
    with penstock.open(counting, token=NEW) as broker:
        assert broker["mail-in"].stats().visible == 1


def test_metrics_show_a_token_its_own_queues(counting: str) -> None:
    seen = as_(counting, NEW)("GET", "/metrics").body.decode()
    assert 'penstock_queue_messages{queue="mail-in"} 1' in seen
    assert 'penstock_messages_total{deed="sent",queue="mail-out"} 1' in seen
    assert "other" not in seen
    assert "penstock_connections" not in seen
    assert "penstock_requests_total" not in seen
    all = as_(counting, SECRET)("GET", "/metrics").body.decode()
    assert 'penstock_queue_messages{queue="other"} 1' in all
    assert "penstock_connections 1\n" in all


def test_a_token_speaks_its_dialects_only(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, f"[[token]]\nname = 'x'\nsecret = '{SECRET}'\ndialects = ['penstock']")
    with penstock.open("memory:") as broker, BackgroundServer(broker, ServerSettings(port=0, tokens=tokens)) as server:
        broker.create("orders").send(b"x")
        assert as_(server.url, SECRET)("GET", "/messages/orders").status == 403
        assert as_(server.url, SECRET)("GET", "/orders/messages").status == 403
        assert as_(server.url, SECRET)("GET", "/metrics").status == 200
        with penstock.open(server.url, token=SECRET) as remote:
            assert remote["orders"].receive()[0].delete()


def test_after_sighup_the_tokens_of_the_file_count(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f"[[token]]\nname = 'shop'\nsecret = '{SECRET}'\n")
    with serving("memory:", "--config", str(file), "--access-log", "off") as (process, url):
        assert process.stderr
        assert as_(url, SECRET)("PUT", "/orders").status == 201

        def tell() -> str:
            process.send_signal(signal.SIGHUP)
            assert process.stderr
            return process.stderr.readline()

        file.write_text(f"[[token]]\nname = 'shop'\nsecret = '{NEW}'\n")
        assert tell() == "penstock: after SIGHUP, there are 1 tokens\n"
        assert (as_(url, SECRET)("GET", "/queues").status, as_(url, NEW)("GET", "/queues").json["total"]) == (401, 1)
        for bad in ("[[token", f"[[token]]\nsecret = '{SECRET}'\nscopes = ['fly']", "", "[server]\nport = 'x'"):
            file.write_text(bad)
            assert tell().startswith("penstock: after SIGHUP, the old tokens stay: ")
            assert (as_(url, SECRET)("GET", "/queues").status, as_(url, NEW)("GET", "/queues").status) == (401, 200)
        file.unlink()
        assert "cannot be read" in tell()
        assert as_(url, NEW)("GET", "/queues").status == 200
        process.send_signal(signal.SIGTERM)
        assert (process.wait(60), process.stderr.read()) == (0, "")


def test_sighup_without_tokens_keeps_the_server_alive() -> None:
    with serving("memory:", "--access-log", "off") as (process, url):
        process.send_signal(signal.SIGHUP)
        assert process.stderr
        assert process.stderr.readline() == "penstock: after SIGHUP, there are 0 tokens\n"
        assert Http(url)("PUT", "/orders").status == 201


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_token_that_travels_unencrypted_is_worth_a_warning(host: str, warned: bool) -> None:
    with serving("memory:", "--host", host, "--access-log", "off", PENSTOCK_TOKEN=SECRET) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr
        assert ("tokens travel unencrypted to 0.0.0.0" in process.stderr.read()) == warned


def make_authority(folder: Path) -> None:
    """A certificate for the server (server.pem), and one for a client that the authority ca.pem has signed (client.pem)."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run = ["openssl", "req", "-x509", *key, "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"]
    for name in ("server", "ca", "stranger"):
        files = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem", "-subj", f"/CN={name}"]
        subprocess.run([*run, *files], check=True, capture_output=True)
    files = ["-keyout", f"{folder}/client.key", "-out", f"{folder}/client.csr", "-subj", "/CN=client"]
    subprocess.run(["openssl", "req", "-new", *key, *files], check=True, capture_output=True)
    signed = ["-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key", "-days", "2", "-out", f"{folder}/client.pem"]
    subprocess.run(["openssl", "x509", "-req", "-in", f"{folder}/client.csr", *signed], check=True, capture_output=True)


def ask(url: str, folder: Path, client: str | None) -> bytes:
    """The answer; empty if the server has closed the connection."""
    context = ssl.create_default_context(cafile=f"{folder}/server.pem")
    if client:
        context.load_cert_chain(f"{folder}/{client}.pem", f"{folder}/{client}.key")
    address = urlsplit(url)
    with (
        socket.create_connection((address.hostname, address.port or 0), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return tls.recv(1000)


def test_a_client_without_a_certificate_of_the_authority_stays_out(tmp_path: Path) -> None:
    make_authority(tmp_path)
    tls = {"tls_cert": f"{tmp_path}/server.pem", "tls_key": f"{tmp_path}/server.key", "tls_client_ca": f"{tmp_path}/ca.pem"}
    with penstock.open("memory:") as broker, BackgroundServer(broker, ServerSettings(port=0, **tls)) as server:
        assert ask(server.url, tmp_path, "client").startswith(b"HTTP/1.1 200 OK")
        shown = {"certfile": f"{tmp_path}/client.pem", "keyfile": f"{tmp_path}/client.key"}
        with penstock.open(server.url, cafile=f"{tmp_path}/server.pem", **shown) as remote:
            assert remote.create("orders").send(b"x")
        with pytest.raises(penstock.BadURL, match="certfile 'none' and keyfile None cannot be used"):
            penstock.open(server.url, certfile="none")
        for client in (None, "stranger"):
            try:
                answer = ask(server.url, tmp_path, client)
            except (ssl.SSLError, ConnectionError):
                answer = b""
            assert answer == b""
        until(lambda: not server.app.connections.open)
    for settings, words in [
        ({**tls, "tls_cert": "", "tls_key": ""}, "needs tls_cert"),
        ({"tls_client_ca": "none"}, "needs tls_cert"),
    ]:
        with pytest.raises(BadSetting, match=words):
            read_settings(settings, {})
    with penstock.open("memory:") as broker, pytest.raises(BadSetting, match="tls_client_ca 'none' cannot be used"):
        BackgroundServer(broker, ServerSettings(port=0, **{**tls, "tls_client_ca": "none"}))


def test_after_sighup_a_renewed_certificate_is_shown(tmp_path: Path) -> None:
    make_authority(tmp_path)
    cert, key = tmp_path / "now.pem", tmp_path / "now.key"

    def use(name: str) -> None:
        cert.write_bytes((tmp_path / f"{name}.pem").read_bytes())
        key.write_bytes((tmp_path / f"{name}.key").read_bytes())

    use("stranger")
    flags = ["--tls-cert", str(cert), "--tls-key", str(key), "--access-log", "off"]
    with serving("memory:", *flags, PENSTOCK_TOKEN=SECRET) as (process, url):
        assert process.stderr
        with pytest.raises(ssl.SSLError, match="certificate"):
            ask(url, tmp_path, None)
        cert.write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        assert "cannot be used" in process.stderr.readline()
        use("server")
        process.send_signal(signal.SIGHUP)
        assert process.stderr.readline() == "penstock: after SIGHUP, there are 1 tokens\n"
        assert ask(url, tmp_path, None).startswith(b"HTTP/1.1 200 OK")


def test_tokens_of_one_name_have_the_same_limits() -> None:
    """They are counted together: with different limits, each would begin the count of the other anew."""
    tables = [{"name": "a", "secret": SECRET, "max_rate": 5}, {"name": "a", "secret": NEW, "max_rate": 5}]
    assert len(read_tokens(tables, "x", "")) == 2
    for limits in ({"max_rate": 6}, {"max_rate": 5, "max_queues": 1}):
        with pytest.raises(BadSetting, match="tokens of the name 'a' are counted together"):
            read_tokens([tables[0], {"name": "a", "secret": NEW, **limits}], "x", "")

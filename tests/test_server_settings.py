"""The server's settings, tokens and TLS: from flags, environment and file; what each token may do; and how secrets are kept."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import penstock
from penstock import BadSetting
from penstock.server import BackgroundServer, ServerSettings, read_settings
from penstock.server.auth import Guard
from penstock.server.http.request_response import Refused, Scope
from penstock.server.settings import settings_by_name
from penstock.testing.http import Http

SECRET = "a-secret-of-some-length"


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[server]\nport = 1\nhost = "127.0.0.3"\nmax_wait = 5\naccess_log = false\n')
    environment = {"PENSTOCK_PORT": "2", "PENSTOCK_HOST": "127.0.0.2", "PENSTOCK_CONFIG": str(file)}
    settings = read_settings({"port": "3"}, environment)
    assert (settings.port, settings.host, settings.max_wait, settings.access_log) == (3, "127.0.0.2", 5, False)


def test_without_anything_the_defaults_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_settings({}, {}) == ServerSettings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 1", "there is no table [port]"),
        ("[serve]\nport = 1", "there is no table [serve]"),
        ("[server]\ncolour = 1", "there is no setting 'colour'"),
        ("[server]\nport = true", "port is True; it must be a whole number"),
        ("[server]\nport = 1.5", "port is 1.5; it must be a whole number"),
        ("[server]\nread_timeout = 0", "read_timeout is 0; it must be between 0.1"),
        ("[server]\nread_timeout = nan", "read_timeout is nan; it must be between 0.1"),
        ("[server]\nhost = 5", "host is 5; it must be text"),
        ("[server", "is not TOML"),
        ("[token]\nsecret = 'x'", "write [[token]]"),
        ("[[token]]\nsecret = 'short'", "at least 16 characters"),
        (f"[[token]]\nsecret = '{SECRET}'\nsha256 = 'x'", "either secret or sha256"),
        ("[[token]]\nname = 'x'", "either secret or sha256"),
        ("[[token]]\nsha256 = 'abc'", "64 hexadecimal digits"),
        (f"[[token]]\nsecret = '{SECRET}'\nscopes = ['fly']", "there is no scope 'fly'"),
        (f"[[token]]\nsecret = '{SECRET}'\nscopes = 'read'", "scopes must be a list"),
        (f"[[token]]\nsecret = '{SECRET}'\nqueues = []", "queues must be a list"),
        (f"[[token]]\nsecret = '{SECRET}'\ncolour = 1", "there is no setting 'colour'"),
    ],
)
def test_a_bad_value_in_the_file_is_named_and_no_secret_told(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(BadSetting) as caught:
        read_settings({}, {}, file)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_settings_never_show_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[[token]]\nsecret = '{SECRET}'\n")
    settings = read_settings({}, {"PENSTOCK_TOKEN": SECRET + "2"}, file)
    assert len(settings.tokens) == 2
    assert SECRET not in repr(settings)
    assert hashlib.sha256(SECRET.encode()).hexdigest()[:8] not in repr(settings)


def test_a_token_that_is_given_directly_counts_and_is_not_shown() -> None:
    settings = ServerSettings(port=0, token=SECRET, store="postgresql://app:hunter2@db/q")
    assert SECRET not in repr(settings)
    assert "hunter2" not in repr(settings)
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        assert Http(server.url)("GET", "/queues").status == 401
        assert as_(server.url, SECRET)("GET", "/queues").status == 200
    with pytest.raises(BadSetting, match="at least 16 characters"):
        ServerSettings(token="short")


def test_every_setting_stands_in_the_table_of_the_docs() -> None:
    page = (Path(__file__).parent.parent / "docs/service.md").read_text()
    for name, known in settings_by_name().items():
        default = (
            "" if known.default == "" else str(known.default).lower() if isinstance(known.default, bool) else str(known.default)
        )
        row = f"| `{name}` | {default} | {known.metadata['help']} |"
        assert row.replace("|  |", "| |") in page, row


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """A server whose tokens have different rights."""
    file = tmp_path / "penstock.toml"
    digest = hashlib.sha256(b"receive-only-secret").hexdigest()
    file.write_text(
        f"""
        [[token]]
        name = "all"
        secret = "{SECRET}"
        [[token]]
        name = "sender"
        secret = "send-only-secret-1"
        scopes = ["send", "read"]
        queues = ["mail-*"]
        [[token]]
        sha256 = "{digest}"
        scopes = ["receive"]
        queues = ["mail-in"]
        """
    )
    with penstock.open("memory:") as broker:
        for name in ("mail-in", "mail-out", "other"):
            broker.create(name).send(b"x")
        with BackgroundServer(broker, read_settings({"port": 0}, {}, file)) as server:
            yield server.url


def as_(url: str, secret: str) -> Http:
    return Http(url, {"Authorization": f"Bearer {secret}"})


@pytest.mark.parametrize(
    "header", ["", "Bearer ", "Bearer wrong", f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}"]
)
def test_without_a_known_token_nothing_is_done(guarded: str, header: str) -> None:
    http = Http(guarded, {"Authorization": header})
    for method, path in [
        ("GET", "/queues"),
        ("PUT", "/new"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("POST", "/penstock/broker/names"),
    ]:
        answer = Http(guarded, {"Authorization": header})(method, path)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="penstock"')
    assert http("GET", "/health").status == 200


def test_a_token_does_what_its_scopes_say_on_the_queues_that_match(guarded: str) -> None:
    sender, receiver, everything = as_(guarded, "send-only-secret-1"), as_(guarded, "receive-only-secret"), as_(guarded, SECRET)
    assert sender("POST", "/messages/mail-in", b"x").status == 201
    assert sender("POST", "/mail-out/messages", b"x").status == 201
    assert sender("POST", "/messages/other", b"x").status == 403
    assert sender("GET", "/messages/mail-in").status == 403
    assert sender("PUT", "/mail-new").status == 403
    assert sender("DELETE", "/queues/mail-in").status == 403
    assert receiver("GET", "/metrics").status == 403
    assert [queue["name"] for queue in sender("GET", "/queues").json["queues"]] == ["mail-in", "mail-out"]
    assert sender("POST", "/penstock/queues/mail-in/stats", {"arguments": {}}).status == 200
    assert sender("POST", "/penstock/queues/mail-in/purge", {"arguments": {}}).status == 403
    assert sender("POST", "/penstock/broker/create", {"arguments": {"name": "mail-new"}}).status == 403
    got = receiver("GET", "/messages/mail-in")
    assert got.status == 200
    assert receiver("GET", "/messages/mail-out").status == 403
    assert receiver("POST", "/messages/mail-in", b"x").status == 403
    assert receiver("DELETE", f"/messages/{got.headers['x-mqs-message-id']}").status == 204
    other = everything("GET", "/messages/other").headers["x-mqs-message-id"]
    assert receiver("DELETE", f"/messages/{other}").status == 404
    assert everything("DELETE", f"/messages/{other}").status == 204
    assert everything("GET", "/metrics").status == 200


def test_the_client_sends_its_token_and_tells_a_refusal(guarded: str) -> None:
    with penstock.open(guarded, token=SECRET) as broker:
        assert broker.queues().total == 3
    with penstock.open(guarded, token="wrong") as broker, pytest.raises(penstock.BadInput, match="token"):
        broker.queues()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:7843"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost", "Origin": "https://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none, cross-site"}, 403),
        ({"Host": "queues.example.org"}, 200),
        ({"Host": "a.mq.example.org:443"}, 200),
        ({"Host": "mq.example.org.evil.example"}, 403),
        ({"Host": "x" * 5000}, 403),
    ],
)
@pytest.mark.parametrize("token", ["", SECRET])
def test_no_web_page_gets_in_by_a_local_browser(headers: dict[str, str], status: int, token: str) -> None:
    settings = ServerSettings(port=0, token=token, hosts="queues.example.org, *.mq.Example.org")
    if token:
        headers = {**headers, "Authorization": f"Bearer {SECRET}"}
        if status == 403 and "Origin" in headers:
            status = 200  # no browser adds a token to the requests of a page that does not know it
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        assert Http(server.url, headers)("GET", "/queues").status == status


def test_a_page_of_another_site_takes_no_message() -> None:
    with penstock.open("memory:") as broker, BackgroundServer(broker) as server:
        queue = broker.create("orders", mode="at_most_once")
        queue.send(b"x")
        page = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        for path in ("/messages/orders", "/orders/messages"):
            assert Http(server.url, page)("GET", path).status == 403
        assert queue.stats().visible == 1


def test_a_name_that_every_page_can_have_needs_a_token() -> None:
    for hosts in ("*", "queues.example.org,*.*"):
        with pytest.raises(BadSetting, match="needs a token"):
            Guard((), "localhost", hosts)
        assert Guard(ServerSettings(token=SECRET).tokens, "localhost", hosts)


def test_an_address_is_known_whatever_host_says() -> None:
    """A client of a server that listens everywhere may call it by any of its addresses."""
    guard = Guard(ServerSettings(token=SECRET).tokens, "0.0.0.0")
    known = {"authorization": f"Bearer {SECRET}"}
    ours = ("192.0.2.7:7843", "[2001:db8::7]:7843", "localhost", "127.0.0.1", "mq.localhost:7843")
    amazons = (
        "sqs.eu-west-1.amazonaws.com",
        "queue.amazonaws.com",
        "eu-west-1.queue.amazonaws.com",
        "sqs.cn-north-1.amazonaws.com.cn",
    )
    for host in (*ours, *amazons):
        assert guard.grant({**known, "host": host}).name == "token"
    others = ("sqs.eu-west-1.amazonaws.com.example.org", "bucket.s3.amazonaws.com", "notlocalhost", "a.b.sqs.x.amazonaws.com")
    for host in ("queues.example.org", "192.0.2.7.example.org", "", "[", "localhost.example.org", *others):
        with pytest.raises(Refused, match="hosts"):
            guard.grant({**known, "host": host})


def test_with_tls_the_certificate_names_the_server() -> None:
    """A browser that is led here by another name refuses the certificate."""
    guard = Guard(ServerSettings(token=SECRET).tokens, "0.0.0.0", tls=True)
    assert guard.grant({"authorization": f"Bearer {SECRET}", "host": "queues.example.org"}).name == "token"
    with pytest.raises(Refused, match="another site"):
        guard.grant({"authorization": f"Bearer {SECRET}", "host": "queues.example.org", "sec-fetch-site": "cross-site"})


def test_what_a_message_holds_is_never_a_page_of_the_server() -> None:
    """A browser that shows a received message must neither guess its type nor run it with the rights of this server's pages."""
    with penstock.open("memory:") as broker, BackgroundServer(broker) as server:
        broker.create("orders").send_many([b"<script>"] * 5)
        http = Http(server.url)
        for method, path, body in [
            ("GET", "/messages/orders", None),
            ("GET", "/orders/messages", None),
            ("POST", "/penstock/queues/orders/receive", {"arguments": {}}),
            ("POST", "/penstock/queues/orders/peek", {"arguments": {}}),
            ("GET", "/messages/none", None),
            ("GET", "/none/messages/none", None),
        ]:
            headers = http(method, path, body).headers
            assert (headers["x-content-type-options"], headers["content-security-policy"]) == ("nosniff", "sandbox"), path
        assert "default-src 'none'" in http("GET", "/").headers["content-security-policy"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_only_loopback_needs_no_token(host: str) -> None:
    with pytest.raises(BadSetting, match="needs a token"):
        Guard((), host)
    for local in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"):
        assert Guard((), local).grant({}).allows(Scope.ADMIN, "x")


def test_https_is_spoken_with_a_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2"]
    subprocess.run(
        [*command, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    settings = ServerSettings(port=0, tls_cert=str(cert), tls_key=str(key))
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        assert server.url.startswith("https://")
        with penstock.open(server.url, cafile=str(cert)) as remote:
            queue = remote.create("orders")
            queue.send(b"x" * 1_000_000)
            assert queue.receive(wait=5)[0].delete()
        with penstock.open(server.url) as stranger, pytest.raises(penstock.StoreError, match="certificate"):
            stranger.queues()


def test_metrics_give_a_bounded_number_of_queues_lines_of_their_own() -> None:
    with penstock.open("memory:") as broker, BackgroundServer(broker) as server:
        http = Http(server.url)
        for number in range(230):
            broker.create(f"q{number:03}")
            http("POST", f"/messages/q{number:03}", b"x")
        text = http("GET", "/metrics").body.decode()
        assert text.count("penstock_queue_messages{") == 200
        assert text.count('deed="sent"') == 201
        assert 'penstock_messages_total{deed="sent",queue=":others"} 30' in text


def test_settings_are_values() -> None:
    assert all(known.metadata or known.name in ("tokens", "sqs_keys") for known in fields(ServerSettings))

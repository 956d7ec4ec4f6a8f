"""Who gets to the page and through it: its files, signing in, cookies, and what other sites may try."""

from __future__ import annotations

import hashlib
import re
import signal
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from test_serve import serving
from test_server_tokens import make_authority

import penstock
from penstock.broker import LocalBroker
from penstock.message import PRIVATE
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.http.request_response import Refused
from penstock.server.page.assets import POLICY, TYPES, VIEWS
from penstock.server.page.attempts import MOST, MOST_ADDRESSES, PERIOD, WrongTokens
from penstock.server.page.dialect import prefers_html
from penstock.server.page.sessions import IDLE, LONGEST, QUEUE, PageSession, Sessions, _join
from penstock.server.tokens import digest, read_tokens
from penstock.testing.http import Http, HttpAnswer
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import until

SECRET, OTHER, READER = "a-secret-of-some-length", "another-secret-of-some-length", "a-reader-of-some-length"
CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
LINK = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
OPEN = ServerSettings(port=0, access_log=False)
NAMES = {"arguments": {}}
ASSETS = Path(__file__).parent.parent / "src/penstock/server/page/assets"


def tables(*, secrets: str | list[str] = SECRET) -> list[dict[str, Any]]:
    return [
        {"name": "boss", "secret": secrets},
        {"name": "other", "secret": OTHER},
        {"name": "reader", "secret": READER, "scopes": ["read"], "queues": ["orders"]},
    ]


LOCKED = replace(OPEN, tokens=read_tokens(tables(), "test", ""))


@dataclass
class Browser:
    """What a browser does with cookies and the CSRF token of a page of ours."""

    url: str
    cookie: str = ""
    csrf: str = ""
    known: dict[str, Any] = field(default_factory=dict)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        given = {"Sec_Fetch_Site": "same-origin"}
        if self.cookie:
            given["Cookie"] = self.cookie
        if self.csrf and method != "GET":
            given["X_Penstock_CSRF"] = self.csrf
        http = Http(self.url)
        if method != "GET":
            given["Origin"] = self.url
        return http(method, path, body, **{**given, **headers})

    def sign_in(self, secret: str = SECRET) -> HttpAnswer:
        answer = self("POST", "/dashboard/session", {"token": secret})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = answer.json["csrf"]
        return answer

    def names(self, **headers: str) -> int:
        return self("POST", "/penstock/broker/names", NAMES, **headers).status


@contextmanager
def page(url: str = "memory:", settings: ServerSettings = LOCKED) -> Iterator[tuple[LocalBroker, BackgroundServer, Browser]]:
    with penstock.open(url) as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders", exist_ok=True)
        with BackgroundServer(broker, settings) as server:
            yield broker, server, Browser(server.url)


def sessions_of(server: BackgroundServer) -> Sessions:
    found = server.app.guard.signed_in
    assert isinstance(found, Sessions)
    return found


# the files


def test_every_view_is_the_page_and_has_the_strict_policy() -> None:
    with page() as (_, _, browser):
        for path in VIEWS:
            answer = browser("GET", path.replace("{queue}", "a%2Fb%3Cscript%3E").replace("{id}", "x"), Accept=CHROMIUM)
            assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert answer.body == (ASSETS / "index.html").read_bytes()
            assert answer.headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
                "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
            )
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert browser("GET", "/dashboard/nowhere", Accept=CHROMIUM).status == 404
        assert "'unsafe" not in str(POLICY)


def test_the_files_of_the_page_are_served_with_their_types_and_kept_by_browsers() -> None:
    with page() as (_, _, browser):
        for file in ASSETS.iterdir():
            answer = browser("GET", f"/dashboard/assets/{file.name}")
            assert (answer.status, answer.body) == (200, file.read_bytes())
            assert answer.headers["content-type"] == TYPES[file.suffix[1:]]
            assert answer.headers["cache-control"] == "no-cache"
            tag = answer.headers["etag"]
            for known in (tag, f"W/{tag}", f'"x", {tag}'):
                again = browser("GET", f"/dashboard/assets/{file.name}", If_None_Match=known)
                assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
            assert browser("GET", f"/dashboard/assets/{file.name}", If_None_Match='"x"').status == 200
        for name in ("none.js", "..%2Fdialect.py", "..", "", "index.html%00", "__init__.py"):
            assert browser("GET", f"/dashboard/assets/{name}").status == 404


def test_the_page_has_no_script_or_style_within() -> None:
    text = (ASSETS / "index.html").read_text()
    assert all("src=" in script for script in re.findall(r"<script[^>]*>", text))
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (CHROMIUM, True),
        ("text/html", True),
        ("TEXT/HTML;charset=utf-8", True),
        ("application/json, text/html;q=0.5", False),
        ("text/html;q=0.9, application/xml;q=0.8", True),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("text/*", False),
    ],
)
def test_a_browser_gets_the_page_at_the_root_and_a_program_what_it_got_before(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html
    with page(settings=OPEN) as (_, _, browser):
        body = browser("GET", "/", Accept=accept).body
        assert (b"/dashboard/assets/app.js" in body) is html
        assert (b"<td>GET /queues/{queue}</td>" in body) is not html


def test_a_program_with_a_token_still_needs_it_at_the_root() -> None:
    with page() as (_, _, browser):
        assert browser("GET", "/", Accept="*/*").status == 401
        assert browser("GET", "/dashboard/api").status == 401
        assert browser("GET", "/dashboard/api", Authorization=f"Bearer {SECRET}").status == 200


def test_the_wheel_has_the_files_of_the_page(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name.rpartition("/")[2] for name in zipfile.ZipFile(wheel).namelist() if "server/page/assets/" in name}
    assert packed == {file.name for file in ASSETS.iterdir()}


def test_without_the_page_its_addresses_belong_to_queues() -> None:
    with page(settings=replace(LOCKED, page="off")) as (_, _, browser):
        assert browser.sign_in().status == 401
        http = Http(browser.url, {"Authorization": f"Bearer {SECRET}"})
        assert http("PUT", "/dashboard").status == 201
        assert http("POST", "/dashboard/messages", b"x").status == 201
        assert b"<td>" in http("GET", "/", Accept=CHROMIUM).body


def test_serve_tells_where_the_page_is() -> None:
    for flags, told in (((), True), (("--page", "off"), False)):
        command = [sys.executable, "-m", "penstock.cli", "serve", "--store", "memory:", "--port", "0", *flags]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            line = process.stderr.readline()
            process.terminate()
        url = re.search(r" at (\S+)", line)
        assert url
        assert (f"(the page: {url[1]}/dashboard)" in line) is told


# signing in, on each kind of store


@pytest.fixture
def url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if store == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        return server.new_url()
    return {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/q.db", "vsqs": f"vsqs:///{tmp_path}/vsqs"}[store]


@pytest.mark.parametrize("store", ["memory", "sqlite", "vsqs", "postgresql"])
def test_a_person_signs_in_works_and_signs_out(url: str) -> None:
    with page(url) as (broker, _, browser):
        assert browser("GET", "/dashboard/session").json == {"signed_in": False, "tokens": True}
        assert browser.names() == 401
        answer = browser.sign_in()
        assert answer.json == {
            "signed_in": True,
            "tokens": True,
            "name": "boss",
            "scopes": ["admin", "count", "read", "receive", "send"],
            "queues": ["*"],
            "read_only": False,
            "csrf": browser.csrf,
            "expires_at": answer.json["expires_at"],
            "version": penstock.__version__,
        }
        assert answer.headers["cache-control"] == "no-store"
        assert browser.names() == 200
        assert browser("GET", "/dashboard/session").json["csrf"] == browser.csrf
        assert browser("GET", "/metrics").status == 200
        assert browser("GET", "/dashboard/api").status == 200
        assert browser("GET", "/openapi.json").status == 200
        stolen = replace(browser)
        answer = browser("DELETE", "/dashboard/session")
        assert (answer.status, "Max-Age=0" in answer.headers["set-cookie"]) == (204, True)
        assert stolen.names() == 401
        assert stolen("GET", "/dashboard/session").json == {"signed_in": False, "tokens": True}
        assert [line["deed"] for line in Http(browser.url, bearer())("GET", "/penstock/server").json["audit"]] == [
            "sign in",
            "sign out",
        ]
        assert len(broker[QUEUE].settings.labels) == 2


def bearer(secret: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("store", ["sqlite", "vsqs", "postgresql"])
def test_a_session_lasts_through_a_restart_and_counts_at_every_node(url: str) -> None:
    with page(url) as (_, _, browser), page(url) as (_, _, node):
        browser.sign_in()
        there = replace(browser, url=node.url)
        until(lambda: there.names() == 200)  # the other node reads the key when it sees the first cookie
        assert browser("DELETE", "/dashboard/session").status == 204
        until(lambda: there.names() == 401)
        browser.sign_in()
    with page(url) as (_, _, later):
        again = replace(browser, url=later.url)
        until(lambda: again.names() == 200)


def test_a_session_counts_in_every_worker(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/q.db", "--workers", "2", PENSTOCK_TOKEN=SECRET) as (_, address):
        browser = Browser(address)
        assert browser.sign_in().status == 200
        until(lambda: all(browser.names() == 200 for _ in range(20)))


def test_the_cookie_is_for_this_server_and_no_script() -> None:
    with page() as (_, _, browser):
        told = browser.sign_in().headers["set-cookie"]
        name, _, how = told.partition("=")
        assert name == "penstock_session_0"
        assert how.partition("; ")[2] == f"Path=/; HttpOnly; SameSite=Strict; Max-Age={IDLE}"
        told = browser("POST", "/dashboard/session", {"token": SECRET}, X_Forwarded_Proto="https").headers["set-cookie"]
        assert told.endswith("; Secure")


def test_with_tls_the_cookie_is_secure_and_for_this_host_only(tmp_path: Path) -> None:
    make_authority(tmp_path)
    settings = replace(LOCKED, tls_cert=f"{tmp_path}/server.pem", tls_key=f"{tmp_path}/server.key")
    with page(settings=settings) as (_, server, _):
        context = ssl.create_default_context(cafile=f"{tmp_path}/server.pem")
        from urllib.request import Request, urlopen

        request = Request(f"{server.url}/dashboard/session", b'{"token": "%b"}' % SECRET.encode())
        with urlopen(request, context=context) as answer:
            told = answer.headers["Set-Cookie"]
    assert told.startswith("__Host-penstock_session_0=")
    assert "; Secure" in told
    assert "Domain" not in told


def test_a_session_ends_when_it_is_not_renewed_and_after_its_longest_time() -> None:
    with page() as (_, server, browser):
        sessions, now = sessions_of(server), 1_800_000_000.0
        sessions._clock = lambda: now
        browser.sign_in()
        now += IDLE - 1
        assert browser.names() == 200
        renewed = browser("GET", "/dashboard/session")
        now += 2
        assert browser.names() == 401
        browser.cookie = renewed.headers["set-cookie"].partition(";")[0]
        assert browser.names() == 200
        while now < 1_800_000_000 + LONGEST - IDLE:
            now += IDLE // 2
            browser.cookie = browser("GET", "/dashboard/session").headers["set-cookie"].partition(";")[0]
        now = 1_800_000_000 + LONGEST - 1
        assert browser.names() == 200
        renewed = browser("GET", "/dashboard/session")
        assert renewed.json["expires_at"] == (1_800_000_000 + LONGEST) * 1_000_000
        now += 1
        assert browser.names() == 401


def test_a_session_ends_with_its_token() -> None:
    expires = 1_900_000_000
    boss, *others = LOCKED.tokens
    with page(settings=replace(LOCKED, tokens=(replace(boss, expires=float(expires)), *others))) as (_, server, browser):
        now = expires - 100.0
        sessions_of(server)._clock = server.app.guard._clock = lambda: now
        assert browser.sign_in().json["expires_at"] == expires * 1_000_000
        now = expires + 0.0
        assert browser.names() == 401


def test_after_sighup_the_sessions_of_a_removed_token_have_ended(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"

    def write(*secrets: str) -> None:
        listed = ", ".join(f"'{secret}'" for secret in secrets)
        file.write_text(f"[[token]]\nname = 'boss'\nsecret = [{listed}]\n[[token]]\nname = 'x'\nsecret = '{READER}'\n")

    write(SECRET)
    with serving("memory:", "--config", str(file), "--access-log", "off") as (process, address):
        old, new, bystander = Browser(address), Browser(address), Browser(address)
        for browser, secret in ((old, SECRET), (bystander, READER)):
            assert browser.sign_in(secret).status == 200

        def reload(*secrets: str) -> None:
            write(*secrets)
            process.send_signal(signal.SIGHUP)
            assert process.stderr
            assert "after SIGHUP, there are 2 tokens" in process.stderr.readline()

        reload(SECRET, OTHER)
        assert new.sign_in(OTHER).status == 200
        assert (old.names(), new.names(), bystander.names()) == (200, 200, 200)
        reload(OTHER)
        assert (old.names(), new.names(), bystander.names()) == (401, 200, 200)
        assert old("GET", "/dashboard/session").json["signed_in"] is False


def test_a_stream_ends_with_its_session() -> None:
    with page() as (_, server, browser):
        browser.sign_in()
        (session,) = [sessions_of(server)._parse(browser.cookie.partition("=")[2])]
        assert isinstance(session, PageSession)
        assert sessions_of(server)._counts(session)
        server.app.guard.replace(LOCKED.tokens[1:])
        assert not sessions_of(server)._counts(session)


def test_wrong_tokens_are_limited() -> None:
    with page() as (_, _, browser):
        for _ in range(MOST):
            assert browser.sign_in("a-wrong-token-of-some-length").status == 401
        answer = browser.sign_in()
        assert (answer.status, 0 < int(answer.headers["retry-after"]) <= PERIOD + 1) == (429, True)
        assert Http(browser.url, bearer())("POST", "/penstock/broker/names", NAMES).status == 200
        audit = Http(browser.url, bearer())("GET", "/penstock/server").json["audit"]
        assert [(line["deed"], line["address"]) for line in audit] == [("wrong token", "127.0.0.1")] * MOST
        assert "wrong-token-of" not in str(audit)


def test_wrong_tokens_are_counted_by_address_and_forgotten_in_time() -> None:
    now = 0.0
    attempts = WrongTokens(lambda: now)
    for _ in range(MOST):
        attempts.check("a")
        attempts.count("a")
    with pytest.raises(Refused, match="10 wrong tokens"):
        attempts.check("a")
    attempts.check("b")
    now = PERIOD
    attempts.check("a")
    for number in range(2 * MOST_ADDRESSES):
        attempts.count(str(number))
    assert len(attempts._wrong) == MOST_ADDRESSES


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 3}', b'{"token": "x", "more": 1}', b"\xff", b"{" * 9000])
def test_what_is_no_token_is_refused(body: bytes) -> None:
    with page() as (broker, _, browser):
        assert browser("POST", "/dashboard/session", body).status in (400, 413)
        assert QUEUE not in broker


def test_a_token_for_other_dialects_cannot_sign_in() -> None:
    tokens = read_tokens([{"name": "old", "secret": SECRET, "dialects": ["mqs"]}], "test", "")
    with page(settings=replace(OPEN, tokens=tokens)) as (_, _, browser):
        answer = browser.sign_in()
        assert (answer.status, "may not use the dialect penstock" in answer.json["error"]) == (403, True)


def test_a_session_may_do_what_its_token_may() -> None:
    with page() as (broker, _, browser):
        broker.create("secret")
        assert browser.sign_in(READER).json["scopes"] == ["count", "read"]
        assert browser("POST", "/penstock/broker/names", NAMES).json == {"answer": ["orders"]}
        assert browser("POST", "/penstock/queues/orders/stats", NAMES).status == 200
        assert browser("POST", "/penstock/queues/orders/purge", NAMES).status == 403
        assert browser("POST", "/penstock/queues/secret/stats", NAMES).status == 403


# attacks


def test_a_change_without_the_csrf_token_is_refused() -> None:
    with page() as (broker, _, browser):
        browser.sign_in()
        other = Browser(browser.url)
        other.sign_in()
        broker["orders"].send(b"x")
        before = broker.schedule("tick", queue="orders", every=3600, body=b"")
        for csrf in ("", "x", other.csrf, browser.csrf[:-1], browser.csrf.upper(), browser.cookie):
            browser_without = replace(browser, csrf=csrf)
            assert browser_without("POST", "/penstock/queues/orders/purge", NAMES).status == 403
            assert browser_without("POST", "/penstock/queues/orders/update", {"arguments": {"paused": True}}).status == 403
            for verb in ("change_schedule", "remove_schedule"):
                assert browser_without("POST", f"/penstock/broker/{verb}", {"arguments": {"name": "tick"}}).status == 403
            assert browser_without("DELETE", "/penstock/jobs/x").status == 403
            assert browser_without("DELETE", "/dashboard/session").status == 403
        assert (broker["orders"].stats().messages, broker["orders"].settings.paused) == (1, False)
        assert broker.schedules() == [before]
        assert browser("POST", "/penstock/queues/orders/purge", NAMES).status == 200
        assert browser("POST", "/penstock/broker/remove_schedule", {"arguments": {"name": "tick"}}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1.evil.example:7843"},
    ],
)
@pytest.mark.parametrize("settings", [OPEN, LOCKED], ids=["open", "locked"])
def test_no_other_site_gets_in_by_the_browser_of_a_person(settings: ServerSettings, headers: dict[str, str]) -> None:
    """Cross-site requests, pages at other ports, and names that were made to lead here (DNS rebinding)."""
    with page(settings=settings) as (broker, _, browser):
        if settings is LOCKED:
            browser.sign_in()
        broker["orders"].send(b"x")
        assert browser("POST", "/penstock/queues/orders/purge", NAMES, **headers).status == 403
        assert browser("POST", "/penstock/jobs", {"queue": "orders", "action": "delete"}, **headers).status == 403
        assert browser("DELETE", "/dashboard/session", **headers).status == 403
        assert browser("POST", "/dashboard/session", {"token": SECRET}, **headers).status == 403
        assert browser("GET", "/dashboard/session", **headers).status == 403
        assert browser("GET", "/penstock/overview", **headers).status == 403
        assert broker["orders"].stats().messages == 1
        assert browser("POST", "/penstock/queues/orders/purge", NAMES).status == 200


def test_a_link_from_another_site_shows_the_page_and_gets_no_data() -> None:
    for settings in (OPEN, LOCKED):
        with page(settings=settings) as (_, _, browser):
            for path in ("/", "/dashboard", "/dashboard/queues/orders"):
                assert browser("GET", path, Accept=CHROMIUM, **LINK).status == 200
                assert browser("GET", path, Accept=CHROMIUM, **LINK, Host="evil.example").status == 403
                framed = {**LINK, "Sec_Fetch_Dest": "iframe"}
                assert browser("GET", path, Accept=CHROMIUM, **framed).status == 403
            for path in ("/dashboard/session", "/dashboard/assets/app.js", "/dashboard/api", "/penstock/overview", "/metrics"):
                assert browser("GET", path, **LINK).status == 403


def test_a_cookie_counts_in_the_dialect_of_the_page_only() -> None:
    """In others a GET takes a message, and browsers send cookies by themselves."""
    with page() as (broker, _, browser):
        browser.sign_in()
        broker["orders"].send(b"x")
        amazon = {"X_Amz_Target": "AmazonSQS.ListQueues", "Content_Type": "application/x-amz-json-1.0"}
        for method, path, headers in [
            ("GET", "/messages/orders", {}),
            ("GET", "/queues", {}),
            ("GET", "/orders/messages", {}),
            ("DELETE", "/orders", {}),
            ("POST", "/", amazon),
            ("GET", "/?Action=ListQueues", {}),
            ("POST", "/000000000000/orders", {"Content_Type": "application/x-www-form-urlencoded"}),
        ]:
            answer = browser(method, path, **headers)
            assert answer.status in (401, 403), (method, path, answer.body)
        assert broker["orders"].stats().visible == 1


def test_a_forged_cookie_is_none() -> None:
    with page() as (broker, server, browser):
        browser.sign_in()
        name, _, text = browser.cookie.partition("=")
        started, expires, nonce, proof = text.split(".")
        key = bytes.fromhex(broker[QUEUE].settings.labels[f"{PRIVATE}key"])
        boss = server.app.guard.tokens[0]
        by_file = PageSession(boss, digest(SECRET), int(started), int(expires), nonce).text  # the digests of the settings
        without_store = PageSession(boss, _join(b"", digest(SECRET)), int(started), int(expires), nonce).text
        by_store = PageSession(boss, key, int(started), int(expires), nonce).text
        ours = PageSession(boss, _join(key, digest(SECRET)), int(started), int(expires), nonce).text
        assert ours == text
        for forged in [
            f"{started}.{int(expires) + 1}.{nonce}.{proof}",
            f"{int(started) + 1}.{expires}.{nonce}.{proof}",
            f"{started}.{expires}.{nonce}x.{proof}",
            f"{started}.{expires}.{nonce}.{proof[:-1]}0" if proof[-1] != "0" else f"{started}.{expires}.{nonce}.{proof[:-1]}1",
            f"{started}.{expires}.{nonce}.",
            f"{started}.{expires}.{nonce}",
            f"{proof}",
            "",
            "....",
            "9" * 5000,
            "\u00b2.\u00b2.x.y".encode().decode("latin-1"),
            by_file,
            without_store,
            by_store,
        ]:
            assert replace(browser, cookie=f"{name}={forged}").names() == 401, forged
        assert browser.names() == 200
        assert replace(browser, cookie=f"a=b; {browser.cookie}; c=d").names() == 200


def test_a_planted_cookie_does_not_become_a_session() -> None:
    """Session fixation: an attacker plants a cookie, and waits until its owner signs in."""
    with page() as (_, _, browser):
        attacker = Browser(browser.url)
        attacker.sign_in(READER)
        browser.cookie, browser.csrf = attacker.cookie, attacker.csrf
        browser.sign_in()
        assert browser.cookie != attacker.cookie
        assert attacker("GET", "/dashboard/session").json["name"] == "reader"
        both = replace(browser, cookie=f"{attacker.cookie}; {browser.cookie}")
        assert both.names() == 401
        assert both("GET", "/dashboard/session").json["signed_in"] is False


def test_nobody_is_shown_the_key_of_the_sessions() -> None:
    with page() as (broker, _, browser):
        browser.sign_in()
        assert f"{PRIVATE}key" in broker[QUEUE].settings.labels
        key = broker[QUEUE].settings.labels[f"{PRIVATE}key"]
        path = f"/penstock/queues/{QUEUE}"
        for answer in [
            browser("POST", f"{path}/settings", NAMES),
            browser("POST", f"{path}/update", {"arguments": {"visibility": 31}}),
            browser("GET", f"{path}/summary"),
            Http(browser.url, bearer())("GET", f"/queues/{QUEUE}"),
            browser("POST", "/penstock/broker/delete", {"arguments": {"name": QUEUE}}),
        ]:
            assert answer.status == 200, answer.body
            assert key not in answer.body.decode()


def test_the_digests_in_a_file_of_settings_do_not_open_the_page(tmp_path: Path) -> None:
    tokens = read_tokens([{"name": "boss", "sha256": hashlib.sha256(SECRET.encode()).hexdigest()}], "test", "")
    with page(settings=replace(OPEN, tokens=tokens)) as (_, _, browser):
        assert browser.sign_in(hashlib.sha256(SECRET.encode()).hexdigest()).status == 401
        assert browser.sign_in().status == 200


# the read-only page


def test_a_read_only_page_changes_nothing() -> None:
    for settings in (OPEN, LOCKED):
        with page(settings=replace(settings, page="read-only")) as (broker, _, browser):
            if settings is LOCKED:
                browser.sign_in()
            broker["orders"].send(b"x")
            told = browser("GET", "/dashboard/session").json
            assert (told["read_only"], told["scopes"]) == (True, ["count", "read"])
            for verb in ("purge", "receive", "redrive", "send_many", "update"):
                assert browser("POST", f"/penstock/queues/orders/{verb}", NAMES).status == 403, verb
            assert browser("POST", "/penstock/jobs", {"queue": "orders", "action": "delete"}).status == 403
            assert browser("POST", "/penstock/broker/create", {"arguments": {"name": "x"}}).status == 403
            made = broker.schedule("tick", queue="orders", every=3600, body=b"")
            for verb in ("change_schedule", "remove_schedule"):
                assert browser("POST", f"/penstock/broker/{verb}", {"arguments": {"name": "tick"}}).status == 403
            assert (broker.schedules(), browser("GET", "/penstock/schedules").status) == ([made], 200)
            assert browser("POST", "/penstock/queues/orders/peek", NAMES).status == 200
            program = Http(browser.url, bearer() if settings is LOCKED else {})
            assert program("POST", "/penstock/queues/orders/purge", NAMES).json == {"answer": 1}


def test_without_tokens_there_is_nothing_to_sign_in_to() -> None:
    with page(settings=OPEN) as (broker, _, browser):
        told = browser("GET", "/dashboard/session").json
        assert (told["signed_in"], told["tokens"], told["csrf"], told["expires_at"]) == (True, False, None, None)
        answer = browser.sign_in()
        assert (answer.status, "no tokens" in answer.json["error"]) == (400, True)
        assert browser("DELETE", "/dashboard/session").status == 204
        assert browser("POST", "/penstock/queues/orders/purge", NAMES).status == 200
        assert QUEUE not in broker

"""The server's settings: from flags, the environment and penstock.toml, in this order. docs/service.md has the table."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from penstock.errors import BadSetting
from penstock.server.sqs_keys import SqsKey, read_sqs_keys
from penstock.server.tokens import Token, check_names, read_tokens

FILE = "penstock.toml"
MEBI = 1024 * 1024
PAGES = ("on", "read-only", "off")


def _setting(default: Any, help: str, least: float | None = None, most: float | None = None, *, shown: bool = True) -> Any:
    return field(default=default, repr=shown, metadata={"help": help, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    store: str = _setting("sqlite:///penstock.db", "the store's URL", shown=False)  # the URL may contain a password
    host: str = _setting("127.0.0.1", "the address to listen on; any but loopback needs a token")
    hosts: str = _setting("", "more names of this server, with commas, * for any text; addresses, localhost and host are known")
    port: int = _setting(7843, "the port to listen on; 0: any free port", 0, 65535)
    token: str = _setting("", "one bearer token that may do everything", shown=False)
    workers: int = _setting(1, "processes that serve the port; several pay on a database server", 1, 64)
    tls_cert: str = _setting("", "certificate file (PEM); with it, the server speaks HTTPS")
    tls_key: str = _setting("", "the file of the certificate's key (PEM)")
    tls_client_ca: str = _setting("", "certificates (PEM) of an authority; clients must show a certificate that it has signed")
    oversize: str = _setting("cut", "a message of more than 1 MiB in the mqs dialect: cut, as mqs does, or refuse (413)")
    max_body: int = _setting(
        16 * MEBI,
        "bytes of a request's body, more gives 413; also roughly the bytes of messages in one answer",
        1024,
        1024 * MEBI,
    )
    max_head: int = _setting(16 * 1024, "bytes of a request's head; more gives 431", 1024, MEBI)
    max_memory: int = _setting(
        256 * MEBI, "bytes held for all clients: bodies, answers and what is made of them; more gives 503", 8 * MEBI, 2**40
    )
    max_connections: int = _setting(1000, "open connections; more give 503", 1, 100_000)
    max_per_address: int = _setting(500, "open connections from one address; more give 503", 1, 100_000)
    max_pending: int = _setting(1000, "operations that wait for the store; more give 503", 1, 100_000)
    max_wait: int = _setting(60, "seconds that a long poll may ask for", 0, 3600)
    max_receive: int = _setting(1000, "messages that one request may receive", 1, 100_000)
    read_timeout: float = _setting(10.0, "seconds for a request to arrive, and for the client to take the answer", 0.1, 3600)
    request_timeout: float = _setting(30.0, "seconds to answer a request, not counting a long poll's wait", 0.1, 3600)
    idle_timeout: float = _setting(75.0, "seconds that a connection may be idle between requests", 0.1, 86400)
    grace: float = _setting(10.0, "seconds to finish requests after SIGTERM", 0, 3600)
    page: str = _setting("on", "the page for people, at /dashboard: on, read-only, or off")
    sqs_account: str = _setting("000000000000", "the account (12 digits) of the queues without another one, in the SQS dialect")
    sqs_region: str = _setting("us-east-1", "the region of the queues without another one, in the SQS dialect")
    sqs_url: str = _setting(
        "", "this server's address in the URLs of SQS's queues, such as https://sqs.example.com; empty: as the client wrote it"
    )
    sqs_waits: bool = _setting(False, "SQS's waits: 60 s between purges of a queue, and until a deleted queue's name is free")
    access_log: bool = _setting(True, "write a line of JSON to stderr for each request")
    tokens: tuple[Token, ...] = ()
    """From the file's [[token]] tables, and `token`."""
    sqs_keys: tuple[SqsKey, ...] = ()
    """From the file's [[sqs_key]] tables."""

    def __post_init__(self) -> None:
        """Add ``token`` to the tokens, and drop its secret."""
        if self.token:
            object.__setattr__(self, "tokens", (*self.tokens, *read_tokens([], "", self.token)))
            object.__setattr__(self, "token", "")


def read_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, file: str | Path | None = None
) -> ServerSettings:
    """Flags override the environment (PENSTOCK_PORT, …), which overrides the file. An error names the value and its source."""
    path = Path(file or environment.get("PENSTOCK_CONFIG") or FILE)
    named = file is not None or "PENSTOCK_CONFIG" in environment
    tables = _read_file(path) if named or path.exists() else {}
    given: dict[str, Any] = {}
    for name in settings_by_name():
        variable = f"PENSTOCK_{name.upper()}"
        if flags.get(name) is not None:
            given[name] = _value(name, flags[name], f"--{name.replace('_', '-')}")
        elif environment.get(variable):
            given[name] = _value(name, environment[variable], f"${variable}")
        elif name in tables.get("server", {}):
            given[name] = _value(name, tables["server"][name], f"{path}: {name}")
    settings = ServerSettings(**given)
    tokens, sqs_keys = read_tokens(tables.get("token", []), str(path), ""), read_sqs_keys(tables.get("sqs_key", []), str(path))
    check_names([*(token.grant for token in tokens), *(key.grant for key in sqs_keys)], str(path))
    settings = replace(settings, tokens=(*tokens, *settings.tokens), sqs_keys=sqs_keys)
    if settings.oversize not in ("cut", "refuse"):
        raise BadSetting(f"oversize is {settings.oversize!r:.80}; it must be cut or refuse")
    if settings.page not in PAGES:
        raise BadSetting(f"page is {settings.page!r:.80}; it must be on, read-only or off")
    _check_sqs(settings)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise BadSetting("tls_cert and tls_key belong together: set both or none")
    if settings.tls_client_ca and not settings.tls_cert:
        raise BadSetting("tls_client_ca needs tls_cert and tls_key: without TLS, no client shows a certificate")
    return settings


def _check_sqs(settings: ServerSettings) -> None:
    if not re.fullmatch(r"[0-9]{12}", settings.sqs_account):
        raise BadSetting(f"sqs_account is {settings.sqs_account!r:.80}; it must be 12 digits")
    if not re.fullmatch(r"[a-z0-9-]{1,32}", settings.sqs_region):
        raise BadSetting(f"sqs_region is {settings.sqs_region!r:.80}; it must be a region's name, such as us-east-1")
    if settings.sqs_url and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", settings.sqs_url):
        raise BadSetting(f"sqs_url is {settings.sqs_url!r:.80}; it must be an address such as https://sqs.example.com")


def settings_by_name() -> dict[str, Any]:
    return {known.name: known for known in fields(ServerSettings) if known.metadata}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not TOML: {error}") from None
    for name, table in tables.items():
        if name not in ("server", "token", "sqs_key"):
            raise BadSetting(f"{path}: there is no table [{name}]; there are [server], [[token]] and [[sqs_key]]")
        if not isinstance(table, dict if name == "server" else list):
            raise BadSetting(f"{path}: write {'[server]' if name == 'server' else f'[[{name}]]'} for a table")
    for name in tables.get("server", {}):
        if name not in settings_by_name():
            raise BadSetting(f"{path}: there is no setting {name!r}; there are {', '.join(sorted(settings_by_name()))}")
    return tables


def _value(name: str, given: Any, source: str) -> Any:
    """Parse the text of a flag or variable, or take the file's own type."""
    known = settings_by_name()[name]
    kind = type(known.default)
    shown = "" if name == "token" else f" is {given!r:.80}"
    try:
        if kind is bool and isinstance(given, str):
            return {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}[given.lower()]
        if isinstance(given, bool) != (kind is bool) or (kind is str and not isinstance(given, str)):
            raise ValueError
        if kind is int and isinstance(given, float):
            raise ValueError
        value = kind(given)
    except (ValueError, TypeError, KeyError):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise BadSetting(f"{source}{shown}; it must be {words[kind]}") from None
    least, most = known.metadata["least"], known.metadata["most"]
    if least is not None and not least <= value <= most:
        raise BadSetting(f"{source}{shown}; it must be between {least} and {most}")
    return value

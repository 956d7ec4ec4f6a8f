"""A Penstock service: reachable, TLS, the token, its version and its clock."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import penstock
from penstock.client.broker import BrokerCalls, line_options
from penstock.client.connections import Line
from penstock.errors import StoreUnreachable
from penstock.operations.doctor.findings import Finding, Visit, compare_clocks, note, ok, wrong

SOON = 14
DAY = 86400


def examine_service(visit: Visit) -> Iterator[Finding]:
    options = line_options(visit.url, {}) | {"timeout": visit.timeout}
    line = Line(visit.url, **options)
    try:
        calls = line.calls
        yield from _examine_connection(calls.host, calls.port, calls.tls, visit.timeout)
        if options["token"] is None:
            yield note("token", "no token is given, so only a service without tokens lets you in", "export PENSTOCK_TOKEN=…")
        elif calls.tls is None and not _is_here(calls.host):
            yield wrong("token", "the token travels without TLS, and everybody on the way can read it", "use https:")
        else:
            yield ok("token", "a token is given")
        sent_at = visit.wall()
        described = BrokerCalls(line).describe()
        yield from _examine_answer(described, (sent_at + visit.wall()) / 2)
    finally:
        line.close()


def _examine_answer(described: dict[str, Any], at: float) -> Iterator[Finding]:
    version = described.get("version")
    if version == penstock.__version__:
        yield ok("server", f"Penstock {version}, as here; it lets this client in")
    else:
        what = f"the service is Penstock {version or 'of an older version'}, and this is {penstock.__version__}"
        yield note("server", what, "use the same version at both ends")
    if not described["durable"]:
        yield wrong(
            "server",
            "its store does not keep messages on a disk, or does not wait for it",
            "run penstock doctor there, with its own store",
        )
    yield compare_clocks("the clock of the service's store", (described["at"] - at) / 1_000_000)


def _examine_connection(host: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> Iterator[Finding]:
    """Before the client tries, and tries again."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            yield ok("server", f"{host}:{port} accepts connections")
            if tls is not None:
                with tls.wrap_socket(connection, server_hostname=host) as secured:
                    yield _certificate(secured)
    except ssl.SSLCertVerificationError as error:
        raise StoreUnreachable(f"the certificate of {host}:{port} is refused: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise StoreUnreachable(f"{host}:{port} does not speak TLS as this client does: {error.reason}") from error
    except TimeoutError:
        raise StoreUnreachable(f"{host}:{port} gives no answer within {timeout:g} s") from None
    except OSError as error:
        raise StoreUnreachable(f"{host}:{port} cannot be reached: {error.strerror or error}") from error


def _certificate(secured: ssl.SSLSocket) -> Finding:
    ends = str((secured.getpeercert() or {}).get("notAfter", ""))
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / DAY
    what = f"{secured.version()}; its certificate is good for {days:.0f} days"
    return ok("tls", what) if days >= SOON else note("tls", what, "renew it")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

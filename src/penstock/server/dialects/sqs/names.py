"""Names of queues: account, region and name in SQS, and the one name that the core has for them.

    orders                            the default account and region
    orders@eu-west-1                  the default account, another region
    orders@eu-west-1@123456789012     another account

No queue of SQS has an @ in its name, so that these never meet a queue of another dialect by accident.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.server.dialects.sqs.errors import no_queue
from penstock.server.http.request_response import Request
from penstock.server.settings import ServerSettings

NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
ACCOUNT = re.compile(r"[0-9]{12}")
REGION = re.compile(r"[a-z0-9-]{1,32}")
REGION_IN_HOST = re.compile(r"sqs\.([a-z]{2}-[a-z-]{1,25}-[0-9])\.")
CREDENTIAL = re.compile(r"Credential=([^/,\s]{1,128})/[0-9]{8}/([a-z0-9-]{1,32})/sqs/")
FIFO = ".fifo"
LONGEST_URL = 1000
LONGEST_SCOPE = 300


class QueueAddress(NamedTuple):
    """Where a queue is in SQS."""

    account: str
    region: str
    name: str

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"


class Names:
    """Owns the default account and region, and the address of this server as clients know it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.account = settings.sqs_account
        self.region = settings.sqs_region
        self._url = settings.sqs_url.rstrip("/")
        self._scheme = "https" if settings.tls_cert else "http"
        self._queue_of_url = lru_cache(maxsize=1024)(self._read_url)
        self._caller = lru_cache(maxsize=256)(self._read_credential)

    def caller(self, request: Request) -> tuple[str, str]:
        """The account and the region of the sender of a request: what its signature says, be it checked or not."""
        signed = request.headers.get("authorization")
        if signed is None:  # the address of a pre-signed request has its signature
            _, mark, rest = request.query.partition("X-Amz-Credential=")
            signed = f"Credential={unquote(rest[:LONGEST_SCOPE])}" if mark else ""
        account, region = self._caller(signed.partition(",")[0][:LONGEST_SCOPE])
        return request.grant.account or account, region

    def _read_credential(self, signed: str) -> tuple[str, str]:
        found = CREDENTIAL.search(signed)
        if found is None:
            return self.account, self.region
        return (found[1] if ACCOUNT.fullmatch(found[1]) else self.account), found[2]

    def base(self, request: Request, region: str) -> str:
        if self._url:
            return self._url.replace("{region}", region)
        return f"{self._scheme}://{request.headers.get('host', 'localhost')}"

    def queue_of(self, place: QueueAddress) -> str:
        """The core's name of a queue."""
        account, region, name = place
        if account != self.account:
            return f"{name}@{region}@{account}"
        return name if region == self.region else f"{name}@{region}"

    def place_of(self, queue: str) -> QueueAddress | None:
        """Where one of the core's queues is in SQS; None if SQS cannot express its name."""
        name, _, rest = queue.partition("@")
        if not NAME.fullmatch(name):
            return None
        if not rest:
            return QueueAddress(self.account, self.region, name) if name == queue else None
        region, mark, account = rest.partition("@")
        place = QueueAddress(account if mark else self.account, region, name)
        proper = REGION.fullmatch(region) and ACCOUNT.fullmatch(place.account)
        return place if proper and self.queue_of(place) == queue else None

    def queue_of_url(self, url: str, account: str, region: str) -> str:
        """The core's name of the queue that a URL, or a bare name, is about. Its host, which proxies change, says nothing."""
        if len(url) > LONGEST_URL:
            raise no_queue()
        return self._queue_of_url(url, account, region)

    def _read_url(self, url: str, account: str, region: str) -> str:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise no_queue() from None
        *_, owner, name = ["", *parts.path.split("/")]
        if not NAME.fullmatch(name):
            raise no_queue()
        found = REGION_IN_HOST.match(parts.netloc)
        return self.queue_of(QueueAddress(owner if ACCOUNT.fullmatch(owner) else account, found[1] if found else region, name))

    def queue_of_arn(self, arn: object) -> str | None:
        """The core's name of the queue that an ARN names; None if it is no ARN of a queue."""
        if not isinstance(arn, str) or len(arn) > LONGEST_URL:
            return None
        parts = arn.split(":")
        if len(parts) != 6 or parts[:3] != ["arn", "aws", "sqs"] or not NAME.fullmatch(parts[5]):
            return None
        place = QueueAddress(parts[4], parts[3], parts[5])
        return self.queue_of(place) if ACCOUNT.fullmatch(place.account) and REGION.fullmatch(place.region) else None

    def arn(self, queue: str) -> str:
        """The ARN of one of the core's queues; of one that SQS cannot express, with the core's name."""
        place = self.place_of(queue)
        return (place or QueueAddress(self.account, self.region, queue)).arn

    def url(self, base: str, queue: str) -> str:
        place = self.place_of(queue) or QueueAddress(self.account, self.region, queue)
        return f"{base}/{place.account}/{place.name}"

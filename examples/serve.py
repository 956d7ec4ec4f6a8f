"""Run the service on an embedded store, and print commands to try: `make run`. The settings are those of `penstock serve`."""

from __future__ import annotations

import sys

import penstock
from penstock.server import read_settings, serve

PAGE = """The page, in a browser:

  {url}/dashboard

"""
TRY = """\
Penstock serves {store} at {url}; Ctrl-C ends it. {page}In another terminal:

  curl -X PUT {url}/queues/orders -d '{{"retention_timeout": 3600, "visibility_timeout": 30}}'
  curl {url}/messages/orders -H 'Content-Type: text/plain' -d 'one pizza'
  curl -i {url}/messages/orders                                 # then: curl -X DELETE {url}/messages/ID
  curl -i {url}/messages/orders -H 'X-MQS-MAX-WAIT-TIME: 20'    # a long poll: send something meanwhile
  curl -X PUT {url}/mail && curl {url}/mail/messages -d hello   # the dialect MQ-Core
  curl {url}/metrics
  .venv/bin/penstock queues --store {url}

  {url}/dashboard/api lists every path; docs/service.md is the manual; make tour shows the library."""


def main() -> None:
    settings = read_settings({})

    def started(url: str) -> None:
        page = "" if settings.page == "off" else PAGE.format(url=url)
        print(TRY.format(store=settings.store, url=url, page=page), flush=True)  # noqa: T201

    with penstock.open(settings.store) as broker:
        serve(broker, settings, started=started)


if __name__ == "__main__":
    try:
        main()
    except penstock.PenstockError as error:
        sys.exit(f"penstock: {error}")

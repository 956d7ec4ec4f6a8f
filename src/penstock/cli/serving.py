"""The command serve: the store over HTTP."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from penstock.broker import open_local
from penstock.cli.output import complain
from penstock.cli.parser import Parser
from penstock.errors import MissingExtra
from penstock.urls import without_password


def add(parser: Parser) -> None:
    """Add the server's settings as flags; without the extra there are none to add."""
    parser.add_argument(
        "--config", metavar="FILE", help="the settings file; else $PENSTOCK_CONFIG, else penstock.toml if it exists"
    )
    try:
        from penstock.server.settings import settings_by_name
    except MissingExtra:
        return
    for name, known in settings_by_name().items():
        if name not in ("store", "token"):  # a secret on the command line is for everybody to see
            shown = known.default if known.default != "" else "none"
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"{known.metadata['help']} ({shown})")


def run_serve(args: Namespace) -> int:
    from penstock.server import ServerSettings, Worker, Workers, read_settings, serve

    flags: dict[str, Any] = {name: value for name, value in vars(args).items() if isinstance(value, str)}

    def read_again() -> ServerSettings:
        return read_settings(flags, file=args.config)

    def started(url: str) -> None:
        by = f" by {settings.workers} processes" if settings.workers > 1 else ""
        page = "" if settings.page == "off" else f" (the page: {url}/dashboard)"
        complain(f"serving {without_password(settings.store)} at {url}{by}{page}")

    def work(settings: ServerSettings, worker: Worker | None = None) -> int:
        with open_local(settings.store) as broker:
            serve(broker, settings, started=started, read_again=read_again, worker=worker)
        return 0

    settings = read_again()
    if settings.workers == 1:
        return work(settings)
    return Workers(settings, work=work, read_again=read_again, started=started, tell=complain).run()

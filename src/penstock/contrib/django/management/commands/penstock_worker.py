"""``manage.py penstock_worker``: runs tasks until SIGTERM or Ctrl-C; a second command is a second worker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from penstock.contrib.django.backend import PenstockBackend
from penstock.contrib.django.framework import task_backends
from penstock.contrib.django.running import work
from penstock.errors import PenstockError


class Command(BaseCommand):
    help = "Run tasks until SIGTERM or Ctrl-C. What runs is finished first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="of TASKS in the settings (default)")
        parser.add_argument("--queue", action="append", metavar="NAME", help="may be repeated; all QUEUES of the backend")
        parser.add_argument("--threads", type=int, default=1, metavar="N", help="tasks of a queue at a time (1)")
        parser.add_argument("--until-empty", action="store_true", help="end when there is nothing left to run")

    def handle(self, *_: Any, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, PenstockBackend):
            raise CommandError(f"the backend {options['backend']!r} is not Penstock's")
        queues = sorted(set(options["queue"] or backend.queues))
        if not queues:
            raise CommandError("the backend takes any queue: name yours with --queue")
        try:
            ran = work(backend, queues, threads=options["threads"], until_empty=options["until_empty"])
        except PenstockError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"ran {ran} tasks")

"""Celery on SQS, as its users have it, against `penstock serve` on SQLite: with worker processes, and under kill -9."""

from __future__ import annotations

from pathlib import Path

from sqs_clients import NEW, finish, require_clients, run, start
from test_serve import serving

from penstock.testing.servers import free_port

KILLS = (20, 80)
"""After so many tasks that were sent."""


def test_celery_has_results_retries_countdowns_order_and_a_warm_shutdown(tmp_path: Path) -> None:
    require_clients()
    with serving(f"sqlite:///{tmp_path}/queue.db", "--access-log", "off") as (_, url):
        run(NEW, "with_celery.py", url, tmp_path)


def test_no_task_of_celery_is_lost_if_the_server_is_killed(tmp_path: Path) -> None:
    require_clients()
    store, flags = f"sqlite:///{tmp_path}/queue.db", ("--access-log", "off", "--port", str(free_port()))
    program = None
    try:
        for kill in (*KILLS, None):
            with serving(store, *flags) as (server, url):
                program = program or start(NEW, "with_celery_load.py", url, tmp_path, SQS_VISIBILITY="10")
                if kill is None:
                    finish(program)
                else:
                    assert program.stdout
                    lines = iter(program.stdout.readline, "")
                    assert any(line.startswith(f"sent {kill} ") for line in lines), "the program has ended"
                    server.kill()
    finally:
        if program:
            program.terminate()
            program.wait()

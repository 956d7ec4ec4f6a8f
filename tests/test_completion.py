"""Completion in the shells themselves: bash, zsh and fish, each asked what it would offer."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing.servers import Missing, find

ASKED = {
    "penstock cre": {"create"},
    "penstock pipeline arch": {"archive"},
    "penstock create jobs --vis": {"--visibility"},
    "penstock create jobs --mode at_l": {"at_least_once"},
    "penstock --json dele": {"delete", "delete-queue"},
    "penstock schedule pau": {"pause"},
    "penstock schedule re": {"remove", "resume"},
    "penstock completion f": {"fish"},
}


def shell(name: str) -> str:
    try:
        return find(name)
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def script(name: str, folder: Path) -> Path:
    done = subprocess.run([sys.executable, "-m", "penstock", "completion", name], capture_output=True, text=True, check=True)
    made = folder / f"completion.{name}"
    made.write_text(done.stdout)
    return made


def test_bash_offers_what_the_parser_knows(tmp_path: Path) -> None:
    program, made = shell("bash"), script("bash", tmp_path)
    for line, wanted in ASKED.items():
        words = " ".join(line.split())
        ask = f"source {made}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _penstock; echo ${{COMPREPLY[@]}}"
        done = subprocess.run([program, "--norc", "-c", ask], capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == wanted, line
    ask = f"source {made}; complete -p penstock"
    done = subprocess.run([program, "--norc", "-c", ask], capture_output=True, text=True, check=True)
    assert "-F _penstock penstock" in done.stdout


def test_fish_offers_what_the_parser_knows(tmp_path: Path) -> None:
    program, made = shell("fish"), script("fish", tmp_path)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    for line, wanted in ASKED.items():
        ask = f"source {made}; complete -C '{line}'"
        done = subprocess.run([program, "--no-config", "-c", ask], capture_output=True, text=True, check=True, env=environment)
        assert not done.stderr
        assert {offered.split("\t")[0] for offered in done.stdout.splitlines()} == wanted, line


def test_zsh_completes_what_the_parser_knows(tmp_path: Path) -> None:
    """At its prompt, because its completion works nowhere else."""
    program, made = shell("zsh"), script("zsh", tmp_path)
    ready = tmp_path / "ready"
    (tmp_path / ".zshrc").write_text(f"PS1='$ '\nPROMPT_EOL_MARK=''\nsource {made}\ntouch {ready}\n")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(ZDOTDIR=str(tmp_path), TERM="dumb", HOME=str(tmp_path))
        os.execv(program, [program, "-i"])
    try:
        read_until(terminal, lambda _: ready.exists())
        for line, wanted in ASKED.items():
            if len(wanted) == 1:
                (whole,) = wanted
                ends = f"{line.rpartition(' ')[0]} {whole}"
                os.write(terminal, f"\x15{line}\t".encode())
                said = read_until(terminal, lambda said: f"{whole} " in said)  # noqa: B023
                assert whole in said, ends
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)


def read_until(terminal: int, true: Callable[[str], bool], seconds: float = 60) -> str:
    said, give_up_at = "", time.monotonic() + seconds
    while not true(said):
        assert time.monotonic() < give_up_at, said
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 65536).decode(errors="replace")
    return said

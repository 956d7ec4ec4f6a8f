"""The systemd unit and the image: as closed as docs/service.md says, and open enough for the service to run."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.testing.http import Http

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "deploy/penstock.service"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN = 65, 1
CALL = re.compile(r"^\d+ +(\w+)\(|^\d+ +<\.\.\. (\w+) resumed", re.M)


def analyze(*arguments: str) -> str:
    tool = shutil.which("systemd-analyze")
    assert tool, "install systemd (tools/provision does)"
    return subprocess.run([tool, "--no-pager", *arguments], capture_output=True, text=True, check=False).stdout


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.M)


def test_the_exposure_of_the_unit_is_what_the_docs_say() -> None:
    found = re.search(r"exposure level for penstock.service: ([0-9.]+)", analyze("security", "--offline=true", str(UNIT)))
    assert found
    assert float(found[1]) <= 1.1
    assert f"an exposure of {found[1]}" in (ROOT / "docs/service.md").read_text()


def calls_of(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    found: set[str] = set()
    for line in analyze("syscall-filter", group).splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= calls_of(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def use(command: list[str], folder: Path, before: Callable[[], None] | None = None) -> None:
    """Start the service with this command, use it, and end it."""
    (folder / "penstock.toml").touch()
    environment = {**os.environ, "PENSTOCK_STORE": f"sqlite:///{folder}/queue.db", "PENSTOCK_CONFIG": f"{folder}/penstock.toml"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=before) as process:
        assert process.stderr
        line = process.stderr.readline()
        url = re.search(r" at (http://\S+)", line)
        assert url, line
        http = Http(url[1])
        assert http("PUT", "/orders").status == 201
        assert http("POST", "/messages/orders", b"x" * 100_000).status == 201
        assert http("GET", "/messages/orders").status == 200
        with penstock.open(url[1]) as broker:
            broker["orders"].send_many([b"y"] * 100)
            broker["orders"].delete_many(broker["orders"].receive(100, wait=1))
        assert http("GET", "/metrics").status == 200
        server = int((folder / "pid").read_text()) if (folder / "pid").exists() else process.pid
        os.kill(server, signal.SIGHUP)
        assert process.stderr.readline() == "penstock: after SIGHUP, there are 0 tokens\n"
        os.kill(server, signal.SIGTERM)
        assert process.wait(120) == 0, process.stderr.read()


SERVE = [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", "--access-log", "off"]


def test_the_unit_allows_every_system_call_of_the_service(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    assert strace, "install strace (tools/provision does)"
    allowed = calls_of("@system-service") - calls_of("@privileged") - calls_of("@resources")
    assert values("SystemCallFilter") == ["@system-service", "~@privileged @resources"]
    trace = tmp_path / "trace"
    shell = f'echo $$ > {tmp_path}/pid; exec "$@"'
    use([strace, "-f", "-qq", "-o", str(trace), "sh", "-c", shell, "sh", *SERVE], tmp_path)
    made = {first or second for first, second in CALL.findall(trace.read_text())}
    assert {"accept4", "fdatasync", "fsync"} & made
    if os.geteuid() == 0:
        made.discard("fchown")  # only as root, SQLite gives the log to the owner of the file
    assert made - allowed == set()


def test_the_service_needs_no_memory_that_is_written_and_run(tmp_path: Path) -> None:
    assert values("MemoryDenyWriteExecute") == ["yes"]
    libc = ctypes.CDLL(None, use_errno=True)

    def refuse() -> None:
        if libc.prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
            os._exit(99)

    try:
        use(SERVE, tmp_path, refuse)
    except AssertionError:
        if subprocess.run(["true"], preexec_fn=refuse, check=False).returncode == 99:
            pytest.skip("this kernel cannot refuse it (Linux 6.3 can)")
        raise


def test_the_unit_reloads_tokens_and_keeps_its_folder_private() -> None:
    assert values("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert (values("User"), values("UMask"), values("StateDirectoryMode")) == (["penstock"], ["0077"], ["0700"])
    assert "ProcSubset=pid" not in UNIT.read_text().replace("(Not ProcSubset=pid", ""), "clocks read the boot's id"


def test_the_image_holds_what_the_lock_says_and_runs_without_root() -> None:
    _, build, final = DOCKERFILE.split("\nFROM ")
    assert "--require-hashes --only-binary :all: -r requirements-run.lock" in build
    assert all("--no-index" in step for step in re.findall(r"pip install .*", build)), "everything comes from checked files"
    assert "pip install" not in final
    assert "pip uninstall" in final
    assert re.search(r"^USER penstock$", final, re.M)
    assert final.index("USER penstock") < final.index("ENTRYPOINT")
    assert re.findall(r"^COPY (.*)$", final, re.M) == ["--from=build /app /app"]

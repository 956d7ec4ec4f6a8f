"""The systemd units, the images and the manifest: as closed as docs/service.md says, and open enough for the service to run."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

import penstock
from penstock.cli import BAD, NOT_FOUND, build
from penstock.server import BackgroundServer, ServerSettings
from penstock.spark.pipelines import declaration
from penstock.spark.pipelines.checks import CheckFigures
from penstock.spark.pipelines.exposition import Figures, exposition
from penstock.spark.pipelines.lag import QueueLag
from penstock.testing.http import Http

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "deploy/penstock.service"
PIPELINE_UNIT = ROOT / "deploy/penstock-pipeline@.service"
MANIFEST = ROOT / "deploy/pipeline.yaml"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN = 65, 1
CALL = re.compile(r"^\d+ +(\w+)\(|^\d+ +<\.\.\. (\w+) resumed", re.M)


def analyze(*arguments: str) -> str:
    tool = shutil.which("systemd-analyze")
    assert tool, "install systemd (tools/provision does)"
    return subprocess.run([tool, "--no-pager", *arguments], capture_output=True, text=True, check=False).stdout


def values(name: str, unit: Path = UNIT) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.M)


@pytest.mark.parametrize(("unit", "most", "page"), [(UNIT, 1.1, "service.md"), (PIPELINE_UNIT, 1.2, "pipelines.md")])
def test_the_exposure_of_the_unit_is_what_the_docs_say(unit: Path, most: float, page: str) -> None:
    found = re.search(r"exposure level for \S+: ([0-9.]+)", analyze("security", "--offline=true", str(unit)))
    assert found
    assert float(found[1]) <= most
    assert f"an exposure of {found[1]}" in (ROOT / "docs" / page).read_text()


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


# Pipelines. tests/spark/pipelines/test_service.py runs the command of the unit, and the pipeline of the manifest.


def pod() -> dict[str, Any]:
    (deployment,) = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Deployment"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (1, "Recreate")  # one run a checkpoint
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def test_the_unit_of_pipelines_ends_them_without_their_java_and_restarts_only_what_may_pass() -> None:
    (command,) = values("ExecStart", PIPELINE_UNIT)
    args = build().parse_args(command.split()[1:])
    assert values("KillMode", PIPELINE_UNIT) == ["mixed"]
    assert values("Restart", PIPELINE_UNIT) == ["on-failure"]
    assert values("RestartPreventExitStatus", PIPELINE_UNIT) == [f"{BAD} {NOT_FOUND}"]
    assert float(*values("TimeoutStopSec", PIPELINE_UNIT)) > args.grace
    assert "MemoryDenyWriteExecute=" not in PIPELINE_UNIT.read_text(), "Java compiles while it runs"


def test_the_manifest_asks_the_address_at_which_the_pipeline_listens_and_waits_for_its_end() -> None:
    spec = pod()
    (container,) = spec["containers"]
    args = build().parse_args(container["args"])
    host, port = args.listen.split(":")
    assert host == "0.0.0.0"  # the probes come from outside the container
    assert container["ports"] == [{"name": "http", "containerPort": int(port)}]
    assert {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")} == {
        "startup": {"path": "/ready", "port": "http"},
        "readiness": {"path": "/ready", "port": "http"},
        "liveness": {"path": "/health", "port": "http"},
    }
    assert spec["terminationGracePeriodSeconds"] > args.grace
    assert spec["securityContext"]["runAsNonRoot"]
    assert str(spec["securityContext"]["runAsUser"]) in (ROOT / "deploy/Dockerfile.spark").read_text()
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(args.file).parent) in mounts
    assert str(Path(args.checkpoint).parent) in mounts


def test_the_pipeline_of_the_manifest_is_one(tmp_path: Path) -> None:
    (settings,) = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "ConfigMap"]
    ((name, text),) = settings["data"].items()
    (tmp_path / name).write_text(text)
    assert Path(build().parse_args(pod()["containers"][0]["args"]).file).name == name
    declared = declaration.load(tmp_path / name)
    assert declared.trigger != "once"
    assert declared.restarts.times > 0
    mounts = {mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]}
    assert all(str(Path(sink.path).parent) in mounts for sink in declared.sinks if sink.path)


def test_the_image_of_pipelines_holds_what_the_lock_says_and_runs_without_root() -> None:
    _, build, final = (ROOT / "deploy/Dockerfile.spark").read_text().split("\nFROM ")
    assert "--require-hashes --no-deps --prefer-binary -w wheels -r requirements.lock" in build
    assert all("--no-index" in step for step in re.findall(r"pip install .*", build)), "everything comes from checked files"
    assert "pip install" not in final
    assert final.index("USER penstock") < final.index("ENTRYPOINT")
    assert re.findall(r"^COPY (.*)$", final, re.M) == ["--from=build /app /app"]


def test_the_dashboard_shows_only_metrics_that_there_are(tmp_path: Path) -> None:
    with (
        penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker,
        BackgroundServer(broker, ServerSettings(port=0, access_log=False)) as server,
    ):
        broker.create("jobs")
        with penstock.open(server.url) as remote:
            remote["jobs"].send(b"job")
        with urlopen(f"{server.url}/metrics") as answer:
            told = answer.read().decode()
    told += exposition("p", Figures(lag=1, oldest_seconds=1), {"c": CheckFigures(1, 1)}, {"jobs": QueueLag(1, 1)})
    known: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(penstock_\w+)(?:\{(.*)\})? \S+$", told, re.M):
        known.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    board = json.loads((ROOT / "deploy/grafana.json").read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 20
    for target in targets:
        names = re.findall(r"penstock_\w+", target["expr"])
        assert names, target
        by = re.search(r"by \(([^)]*)\)", target["expr"])
        labels = set(re.findall(r"\w+", by[1])) if by else set()
        labels |= set(re.findall(r"(\w+)=~", target["expr"]))
        for name in names:
            assert name in known, f"no such metric: {target['expr']}"
            assert labels <= known[name], f"{name} has no such label: {target['expr']}"
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target
    for variable in board["templating"]["list"][1:]:
        metric, label = re.findall(r"\w+", variable["query"]["query"])[1:]
        assert label in known[metric]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)

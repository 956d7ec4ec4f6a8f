"""The wheel, built and installed where nothing of this checkout can be seen, on each Python that the machine has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
VERSIONS = ["3.11", "3.12", "3.13", "3.14"]
PATIENCE = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def find_python(version: str) -> str | None:
    """This one, one on the path, or one that pyenv has built."""
    built = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [sys.executable, shutil.which(f"python{version}"), *map(str, sorted(built.glob(f"{version}.*/bin/python")))]
    for python in filter(None, found):
        asked = [python, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return python
    return None


class Clean:
    """An environment with nothing but the wheel and what it requires, in a folder from which no source can be seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "venv/bin/python")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK"))}

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def program(self, text: str) -> str:
        return self.run(self.python, "-W", "error", "-c", text).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def cleans() -> dict[str, Clean]:
    return {}


@pytest.fixture(params=VERSIONS)
def clean(
    request: pytest.FixtureRequest, wheel: Path, cleans: dict[str, Clean], tmp_path_factory: pytest.TempPathFactory
) -> Clean:
    return environment(request.param, wheel, cleans, tmp_path_factory)


@pytest.fixture
def own(wheel: Path, cleans: dict[str, Clean], tmp_path_factory: pytest.TempPathFactory) -> Clean:
    return environment(f"{sys.version_info.major}.{sys.version_info.minor}", wheel, cleans, tmp_path_factory)


def environment(version: str, wheel: Path, known: dict[str, Clean], folders: pytest.TempPathFactory) -> Clean:
    if version not in known:
        python = find_python(version)
        if python is None:
            pytest.skip(f"there is no Python {version} here")
        made = Clean(folders.mktemp(f"python{version}-"))
        made.run(python, "-m", "venv", str(made.folder / "venv"))
        made.run(made.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
        known[version] = made
    return known[version]


def test_the_wheel_has_every_file_of_the_source_and_no_other(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if not name.split("/")[0].endswith(".dist-info")}
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert packed == source
    assert "penstock/py.typed" in packed


def test_it_needs_one_library(clean: Clean) -> None:
    listed = json.loads(clean.run(clean.python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check").stdout)
    assert {each["name"] for each in listed} - {"pip", "setuptools"} == {"apsw", "penstock"}


PROGRAM = """
import asyncio, threading, penstock
from penstock.operations import backup, check, restore

with penstock.open("sqlite:///jobs.db") as broker:
    queue = broker.create("jobs", exist_ok=True, redrive=None)
    queue.purge()
    queue.send_many([b"one", b"two", b"three"])
    message = queue.receive()[0]
    queue.delete(message)
    done = []
    consumer = broker.consumer("jobs", workers=2)
    consumer.process(lambda body, message: done.append(body))
    consumer.run(until_empty=True)
    broker.schedule("tick", queue="jobs", every=3600, body=b"tick")
    assert [each.name for each in broker.schedules()] == ["tick"]
    broker.remove_schedule("tick")
print(message.body, sorted(done), penstock.__file__)

async def main():
    async with penstock.aopen("vsqs:///folder") as broker:
        queue = await broker.create("jobs", exist_ok=True)
        await asyncio.gather(*(queue.send(b"x") for _ in range(10)))
        async for message in queue.messages(limit=10):
            await message.delete()
            if not (await queue.stats()).messages:
                break

asyncio.run(main())
assert check("sqlite:///jobs.db") == []
"""


def test_a_small_program_runs(clean: Clean) -> None:
    told = clean.program(PROGRAM)
    assert told.startswith("b'one' [b'three', b'two'] ")
    assert str(clean.folder / "venv") in told, "it is the wheel's"


def test_the_command_line_runs_as_a_module_and_as_a_program(clean: Clean) -> None:
    module, script = [clean.python, "-m", "penstock"], [str(clean.folder / "venv/bin/penstock")]
    version = clean.run(*module, "--version").stdout
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", version)
    assert clean.run(*script, "--version").stdout == version
    store = ["--store", f"sqlite:///{clean.folder}/shell.db"]
    clean.run(*script, *store, "create", "jobs", "--exist-ok")
    clean.run(*module, *store, "send", "jobs", "hello")
    assert clean.run(*script, *store, "receive", "jobs", "--body").stdout == "hello"
    assert "complete -o default -F _penstock penstock" in clean.run(*module, "completion", "bash").stdout
    doctor = clean.run(*module, *store, "doctor", "--timeout", "60").stdout
    assert "extras: none; not installed: arrow, bench," in doctor


NEEDING = {
    "penstock.open('postgresql://u@127.0.0.1:1/d')": "postgres",
    "penstock.open('mysql://u@127.0.0.1:1/d')": "mysql",
    "penstock.open('memcached://127.0.0.1:1/x')": "memcached",
    "penstock.open('memory:').schedule('x', queue='q', cron='0 3 * * *', body=b'')": "schedules",
    "from penstock.server import BackgroundServer": "server",
    "from penstock.publishing.segments import pack_drafts": "arrow",
    "import penstock.arrow": "arrow",
    "from penstock.spark.session import session": "spark",
    "from penstock.spark import pipelines": "spark",
    "import pyspark_penstock": "spark",
    "from penstock.testing import StoreContract": "testing",
    "import penstock.contrib.kombu": "celery",
    "from penstock.contrib.dramatiq import PenstockBroker": "dramatiq",
    "from penstock.contrib.django import PenstockBackend": "django",
    "from penstock.contrib.opentelemetry import PenstockInstrumentor": "opentelemetry",
}
COMMANDS = {
    "watch": "cli",
    "serve": "server",
    "pipeline archive jobs out": "spark",
    "bench": "bench",
    "bench http": "server",
    "bench sqs": "bench",
    "bench brokers": "bench",
    "bench consumers": "bench",
    "bench frameworks": "bench",
    "bench spark": "spark",
    "bench pipeline": "spark",
}
TRIED = """
import penstock
for text in {texts!r}:
    try:
        exec(text)
        print("-")
    except penstock.MissingExtra as error:
        assert f'pip install "penstock[{{error.extra}}]"' in str(error), error
        print(error.extra)
"""


def test_what_needs_an_extra_says_which(clean: Clean) -> None:
    told = clean.program(TRIED.format(texts=list(NEEDING))).split()
    assert dict(zip(NEEDING, told, strict=True)) == NEEDING


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_needs_an_extra_says_which(command: str, own: Clean) -> None:
    done = own.run(own.python, "-m", "penstock", *command.split(), check=False)
    assert done.returncode != 0
    assert re.fullmatch(
        rf'penstock: .* needs an optional library: pip install "penstock\[{COMMANDS[command]}\]"\n', done.stderr
    )


def test_every_import_of_the_docs_works_or_names_an_extra(own: Clean) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = {
        line for page in pages for line in re.findall(r"^(?:from penstock\S* )?import (?:[\w, ]+)$", page.read_text(), re.M)
    }
    ours = sorted(line for line in found if "penstock" in line)
    assert len(ours) > 10
    told = own.program(TRIED.format(texts=ours)).split()
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    assert set(told) <= {"-", *extras}
    assert told.count("-") > 3


TYPED = """
from __future__ import annotations

import asyncio
from collections.abc import Iterator

import penstock
from penstock import Broker, Draft, Message, Queue, Receipt, Sent, Settings, Stats
from penstock.operations import backup
from penstock.operations.doctor import Finding, examine


def bodies(queue: Queue) -> Iterator[bytes]:
    message: Message
    for message in queue.receive(limit=10, wait=1):
        yield message.body
        queue.delete(message)


def handle(body: bytes, message: Message) -> None:
    print(len(body), message.receives + 1)


def main(url: str) -> int:
    with penstock.open(url) as broker:
        queue: Queue = broker.create("jobs", visibility=30)
        sent: Sent = queue.send(b"one", delay=1.5)
        queue.send_many([b"two", Draft(b"three", delay=1.5)])
        stats: Stats = queue.stats()
        settings: Settings = queue.settings
        consumer = broker.consumer("jobs", workers=4)
        consumer.process(handle)
        print(sent.id, stats.visible, settings.visibility, list(bodies(queue)))
        return use(broker)


def use(broker: Broker) -> int:
    return len(broker.queues().names)


async def later(url: str) -> None:
    async with penstock.aopen(url) as broker:
        queue = await broker.create("jobs")
        await queue.send(b"one")
        async for message in queue.messages(limit=10):
            await message.delete()


findings: list[Finding] = examine("sqlite:///jobs.db")
print(backup("sqlite:///jobs.db", "folder").bytes)
asyncio.run(later("memory:"))
"""
WRONG = """
import penstock

with penstock.open("memory:") as broker:
    broker.create("jobs").send(5)
    broker["jobs"].receive(limit="many")
    broker["jobs"].no_such_verb()
"""


def test_programs_are_checked_in_strict_mode_against_its_types(own: Clean, tmp_path: Path) -> None:
    for name, text in (("typed", TYPED), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(text)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", own.python, "--cache-dir", str(tmp_path / "cache")]
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    mypy += ["--config-file", str(tmp_path / "mypy.ini")]
    done = own.run(*mypy, str(tmp_path / "typed.py"), check=False)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")
    done = own.run(*mypy, str(tmp_path / "wrong.py"), check=False)
    assert [re.search(r"\[([a-z-]+)\]$", line)[1] for line in done.stdout.splitlines() if ": error: " in line] == [  # type: ignore[index]
        "arg-type",
        "arg-type",
        "attr-defined",
    ]

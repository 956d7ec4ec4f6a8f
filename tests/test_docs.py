"""The documentation cannot rot: its Python runs, its links resolve, and every setting and limit is documented."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest
import uvicorn

import penstock
from penstock import Settings, policy
from penstock.server import BackgroundServer
from penstock.testing.http import Http
from penstock.testing.serving import until

ROOT = Path(__file__).parent.parent
ADDRESS = "http://localhost:7843"
"""Where the examples expect a server."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if "DATABASE_URL" in page.read_text():
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgresql").new_url())
    if "MARIADB_URL" in page.read_text():
        monkeypatch.setenv("MARIADB_URL", request.getfixturevalue("mariadb").new_url())
    if "penstock.spark" in page.read_text():
        request.getfixturevalue("spark")  # the page expects a running session
    if "own_store" in page.read_text():
        monkeypatch.syspath_prepend(ROOT / "examples")
    names: dict[str, object] = {}
    with ExitStack() as stack:
        here = ADDRESS
        if any(ADDRESS in block for block in blocks(page, "python")):
            broker = stack.enter_context(penstock.open(f"sqlite:///{tmp_path}/served.db"))
            here = stack.enter_context(BackgroundServer(broker)).url
        for number, block in enumerate(blocks(page, "python")):
            text = block.replace("wait=20", "wait=0").replace(ADDRESS, here)
            exec(compile(text, f"{page.name}[{number}]", "exec"), names)


def test_the_curl_examples_of_the_server_run(tmp_path: Path) -> None:
    steps: list[tuple[str, list[str]]] = []
    for block in blocks(ROOT / "docs/service.md", "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    assert len(steps) > 10
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker, BackgroundServer(broker) as server:
        for command, expected in steps:
            here = command.replace("localhost:7843", server.url)
            done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
            pattern = re.escape("\n".join(expected)).replace("…", ".*")
            assert re.fullmatch(pattern, done.stdout.strip()), f"$ {command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    to_read = [ROOT / "README.md"]
    while to_read:
        page = to_read.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", page.read_text())
        to_read += [page.parent / link for link in links if not link.startswith("https://")]
    assert {page.resolve() for page in PAGES} <= seen


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    for field in dataclasses.fields(Settings):
        assert re.search(rf"^\| `{field.name}` \| {re.escape(str(field.default))}(?!\w)", text, re.M), field.name


def test_every_limit_is_documented() -> None:
    text = (ROOT / "docs/settings.md").read_text().replace(",", "")
    for name, value in vars(policy).items():
        if name.startswith("MAX_") and name not in ("MAX_NUMBER",):
            assert re.search(rf"\b{value}\b", text), name


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: (\w+)", text, re.M)
    assert set(targets) == set(re.findall(r"^(\w+):.*## ", text, re.M))


def test_the_fastapi_example_takes_and_ships_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = (block for block in blocks(ROOT / "docs/asyncio.md", "python") if "FastAPI" in block)
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(compile(source, "shop.py", "exec"), vars(shop))
    service = uvicorn.Server(uvicorn.Config(shop.app, port=0, log_level="warning"))
    thread = Thread(target=service.run)
    thread.start()
    try:
        until(lambda: service.started)
        http = Http(f"http://127.0.0.1:{service.servers[0].sockets[0].getsockname()[1]}")
        ids = {http("POST", "/orders", {"order": number}).json["id"] for number in range(20)}
        assert len(ids) == 20
        until(lambda: http("GET", "/orders").json == {"waiting": 0, "in_flight": 0, "shipped": 20})
    finally:
        service.should_exit = True
        thread.join(60)
    with penstock.open("sqlite:///shop.db") as broker:
        assert broker["orders"].stats().messages == 0

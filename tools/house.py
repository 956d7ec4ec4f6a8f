"""Measure the shape of the code: `make check` prints this table and fails when a number got worse.

The first part is read from the source by `ast`, the second by tracing one message. `tools/house.toml` keeps the best numbers so
far; when you improve one, update it with `tools/house.py --write`.
"""

from __future__ import annotations

import ast
import socket
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/penstock"
STORES = SOURCE / "stores"
KEPT = Path(__file__).with_suffix(".toml")
WANTED = {
    "verbs of the widest port": 14,
    "flags of all stores": 4,
    "calls up an inheritance stack in stores": 0,
    "classes of stores with two parents of ours": 0,
    "modules crossed by a warm SQLite send": 5,
    "modules crossed by a warm SQLite receive": 7,
    "modules crossed by a warm HTTP send": 12,
    "calls of the first send of a process": 60,
    "lines of stores with SQL": 8200,
    "lines of the longest file of stores": 400,
    "lines of the package without testing and bench": 20000,
    "rows of the import contract": 12,
}


def python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def lines(paths: list[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


class Class:
    def __init__(self, node: ast.ClassDef, path: Path) -> None:
        self.node, self.path = node, path
        self.bases = [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases]
        self.functions = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def classes() -> dict[str, Class]:
    return {
        node.name: Class(node, path)
        for path in python(STORES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def ancestors(name: str, known: dict[str, Class]) -> Iterator[Class]:
    for base in known[name].bases:
        if base in known:
            yield known[base]
            yield from ancestors(base, known)


def is_port(found: Class) -> bool:
    return found.path.name == "ports.py" or found.path.parent.name == "ports"


def calls_up(known: dict[str, Class]) -> int:
    """Calls of ``self.x()`` or ``super().x()`` that resolve to a base class."""
    count = 0
    for name, found in known.items():
        inherited = {function for above in ancestors(name, known) for function in above.functions}
        for function in found.functions.values():
            for node in ast.walk(function):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) or node.func.attr not in inherited:
                    continue
                owner = node.func.value
                if isinstance(owner, ast.Call):
                    count += isinstance(owner.func, ast.Name) and owner.func.id == "super"
                elif isinstance(owner, ast.Name) and owner.id == "self":
                    count += node.func.attr not in found.functions
    return count


def verbs(port: Class) -> int:
    return sum(not name.startswith("_") for name in port.functions)


def flags(port: Class) -> int:
    """Boolean class attributes, by which stores differ."""
    return sum(
        isinstance(each, ast.AnnAssign) and isinstance(each.annotation, ast.Name) and each.annotation.id == "bool"
        for each in port.node.body
    )


def read() -> dict[str, int]:
    known = classes()
    ports = [found for found in known.values() if is_port(found)]
    texts = [*python(STORES), *STORES.rglob("*.sql")]
    package = [path for path in python(SOURCE) if path.relative_to(SOURCE).parts[0] not in ("testing", "bench")]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        "verbs of the widest port": max(map(verbs, ports)),
        "flags of all stores": sum(map(flags, ports)),
        "calls up an inheritance stack in stores": calls_up(known),
        "classes of stores with two parents of ours": sum(
            len([base for base in found.bases if base in known and not is_port(known[base])]) > 1 for found in known.values()
        ),
        "lines of stores with SQL": lines(texts),
        "lines of the longest file of stores": max(lines([path]) for path in python(STORES)),
        "lines of the package without testing and bench": lines(package),
        "rows of the import contract": sum(len(each.get("layers", [])) for each in contract),
    }


class Trace:
    """Our functions that are called while it is on, in all threads started after it was made."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[str] = []
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and str(SOURCE) in frame.f_code.co_filename:
            self.calls.append(frame.f_code.co_filename)

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.calls.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False

    def modules(self) -> int:
        return len(set(self.calls))

    def warm(self, act: Callable[[], object]) -> int:
        """The fewest of ten: other threads (a flush of the log, a look at the clock) come in between now and then."""
        for _ in range(20):
            act()
        counts = []
        for _ in range(10):
            with self.listening():
                act()
            counts.append(self.modules())
        return min(counts)


def post(url: str) -> Callable[[], object]:
    """One connection that sends the same message repeatedly."""
    address = urlsplit(url)
    client = socket.create_connection((address.hostname, address.port or 0), timeout=60)
    request = b"POST /messages/house HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"

    def send() -> None:
        client.sendall(request)
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 201"), answer
        time.sleep(0.05)  # include what the server does after its answer

    return send


def trace() -> dict[str, int]:
    found = Trace()
    import penstock
    from penstock.server import BackgroundServer

    with tempfile.TemporaryDirectory() as folder, penstock.open(f"sqlite:///{folder}/house.db") as broker:
        broker.create("house")
        with penstock.open(f"sqlite:///{folder}/house.db") as fresh, found.listening():
            fresh["house"].send(b"x")
        first = len(found.calls)
        queue = broker["house"]
        send = found.warm(lambda: queue.send(b"x"))
        receive = found.warm(queue.receive)
        with BackgroundServer(broker) as server:
            http = found.warm(post(server.url))
    return {
        "modules crossed by a warm SQLite send": send,
        "modules crossed by a warm SQLite receive": receive,
        "modules crossed by a warm HTTP send": http,
        "calls of the first send of a process": first,
    }


def main() -> int:
    found = read() | trace()
    if sys.argv[1:] == ["--write"]:
        KEPT.write_text("".join(f'"{name}" = {found[name]}\n' for name in WANTED))
    kept = tomllib.loads(KEPT.read_text())
    worse = [name for name in WANTED if found[name] > max(kept[name], WANTED[name])]
    for name, wanted in WANTED.items():
        print(f"{name:48} {found[name]:6}  wanted {wanted:6}{'  WORSE than ' + str(kept[name]) if name in worse else ''}")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())

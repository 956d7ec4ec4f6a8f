"""The public names, the tree of errors, and the URLs of stores."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.stores.ids import Ids

SOURCE = Path(penstock.__file__).parent


@cache
def parsed() -> dict[Path, ast.Module]:
    """Every module of the package. (Parsing them takes seconds on a busy machine.)"""
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def test_the_public_names_are_a_list_that_is_kept() -> None:
    assert penstock.__all__ == sorted(penstock.__all__, key=lambda name: (name.islower(), name))
    public = {name for name in vars(penstock) if not name.startswith("_")}
    modules = {path.stem for path in SOURCE.iterdir()}
    assert public - modules | set(penstock._LATER) == set(penstock.__all__)
    assert all(getattr(penstock, name) for name in penstock.__all__)


def test_every_error_stands_in_the_drawn_tree_under_its_parent() -> None:
    drawn: dict[str, str | None] = {}
    line_of_parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines()[2:]:
        found = re.match(r"^([ │├└─]*)(\w+)", line)
        assert found, line
        depth = len(found[1]) // 4
        line_of_parents[depth:] = [found[2]]
        drawn[found[2]] = line_of_parents[depth - 1] if depth else None
    defined = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert drawn.keys() == defined.keys()
    for name, kind in defined.items():
        assert drawn[name] == (None if name == "PenstockError" else kind.__bases__[0].__name__)


def test_every_error_is_public() -> None:
    defined = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert defined <= set(penstock.__all__)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "''"),
        ("jobs.db", "'jobs.db'"),
        ("oracle://x", "'oracle://x'"),
        ("sqlite:", "sqlite:///relative/path"),
        ("sqlite://", "sqlite:///relative/path"),
        ("sqlite://host/file", "sqlite:///relative/path"),
        ("sqlite:jobs.db", "sqlite:///relative/path"),
        ("sqlite:///", "sqlite:///relative/path"),
        ("sqlite:///a%00b", "sqlite:///relative/path"),
        ("sqlite:///jobs.db?colour=red", "'colour'"),
        ("sqlite:///jobs.db?timeout=soon", "timeout is 'soon'"),
        ("sqlite:///jobs.db?timeout=-1", "timeout is '-1': it must be between 0 and 86400"),
        ("sqlite:///jobs.db?timeout=nan", "timeout is 'nan'"),
        ("sqlite:///jobs.db?timeout=1e400", "timeout is '1e400'"),
        ("sqlite://[", "'sqlite://['"),
        ("sqlite:///\udcff", "cannot be read"),
        ("sqlite:///%ff", "cannot be read"),
        ("memory:x", "write 'memory:'"),
        (None, "not NoneType"),
        (5, "not int: 5"),
    ],
)
def test_a_malformed_url_is_named(url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.BadURL, match=re.escape(words)):
        penstock.open(url)
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    penstock.open("sqlite:///relative.db?timeout=5").close()
    penstock.open(f"sqlite:///{tmp_path}/absolute%20name.db").close()
    assert {path.name for path in tmp_path.glob("*.db") if path.is_file()} == {"relative.db", "absolute name.db"}


def test_an_import_of_penstock_brings_nothing_optional() -> None:
    program = (
        "import sys, penstock; penstock.open('memory:'); "
        "print(sorted(set(sys.modules) & {'rich', 'pytest', 'hypothesis', 'matplotlib', 'huey', 'apsw', 'asyncio'}))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_missing_library_names_its_extra() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import penstock\n"
        "try:\n    from penstock.testing import StoreContract\n"
        "except penstock.MissingExtra as error:\n    print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert answer == 'penstock.testing needs an optional library: pip install "penstock[testing]"\n'


def test_ids_are_uuids_that_turn_back_into_numbers() -> None:
    ids = Ids(0x123456789ABCDEF)
    assert ids.make(1) == "12345678-9abc-8def-8000-000000000001"
    assert ids.number("12345678-9abc-8def-8000-000000000001") == 1
    assert ids.make(1) < ids.make(2) < ids.make(2**61)
    assert ids.number(ids.make(2**61)) == 2**61
    assert Ids(0).number(ids.make(1)) is None


def test_a_message_that_was_only_looked_at_cannot_be_settled() -> None:
    with penstock.open("memory:") as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        with pytest.raises(penstock.BadMessage, match="looked at"):
            queue.peek()[0].delete()


def test_every_module_of_the_package_opens_with_what_it_is_for() -> None:
    for path, tree in parsed().items():
        assert ast.get_docstring(tree), path


def test_one_name_is_one_thing_in_the_whole_package() -> None:
    """Classes and names of types, without tests and benchmarks. (A type variable belongs to its module.)"""
    found: dict[str, Path] = {}
    for path, tree in parsed().items():
        if path.relative_to(SOURCE).parts[0] in ("testing", "bench"):
            continue
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        given = [node for node in tree.body if isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node.value)]
        targets = [target.id for node in given for target in node.targets if isinstance(target, ast.Name)]
        for name in [*names, *(target for target in targets if re.match("[A-Z].*[a-z]", target))]:
            assert name not in found, f"{name} is a name in {found[name]} and in {path}"
            found[name] = path


def test_nobody_asks_which_store_it_has() -> None:
    asking = re.compile(r"isinstance\([^()]*(\([^()]*\))?[^()]*\b\w*Store\b")
    for path in SOURCE.rglob("*.py"):
        if "stores" not in path.relative_to(SOURCE).parts:
            assert not asking.search(path.read_text()), path


def test_a_store_reads_no_clock_does_not_sleep_and_does_not_log() -> None:
    """Its opener hands it a `Patience`, its callers hand it the instants, and `on_damage` tells the layers above."""
    forbidden = {"time", "logging", "datetime", "sched", "asyncio", "steady", "system_clock"}
    for path, tree in parsed().items():
        for node in ast.walk(tree) if "stores" in path.relative_to(SOURCE).parts else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                names = {module, *(alias.name for alias in node.names)}
                assert not names & forbidden, f"{path} line {node.lineno}"


def test_no_module_imports_itself_by_way_of_others_not_even_for_types() -> None:
    paths = {path.relative_to(SOURCE.parent).with_suffix(""): path for path in SOURCE.rglob("*.py")}
    modules = {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {name: _imports(path, modules.keys()) - {name} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()


def _imports(path: Path, modules: Collection[str]) -> set[str]:
    """The modules of ours that a module imports when it is loaded or when its types are checked, and not in its functions."""
    found: set[str] = set()
    nodes: list[ast.stmt] = list(parsed()[path].body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in modules else str(node.module) for name in names)
        elif isinstance(node, ast.If | ast.Try):
            nodes += [*node.body, *node.orelse]
    return found & set(modules)

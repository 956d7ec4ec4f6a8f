"""The planted faults of tools/mutants still fit the source."""

import sys
from pathlib import Path

TOP = Path(__file__).parent.parent


def test_every_planted_fault_has_its_place_in_the_source(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(TOP / "tools/mutants"))
    from faults import MUTANTS

    gone = [
        (mutant.name, name, old)
        for mutant in MUTANTS
        for name, old, _ in mutant.changes
        if old not in (TOP / "src/penstock" / name).read_text()
    ]
    assert not gone
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {Path(module.__file__).stem for name, module in sys.modules.items() if name.startswith("faults.")} == {
        path.stem for path in (TOP / "tools/mutants/faults").glob("*.py") if path.stem != "__init__"
    }

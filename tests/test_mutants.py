"""The planted faults of tools/mutants.py still fit the source."""

import runpy
from pathlib import Path

TOP = Path(__file__).parent.parent


def test_every_planted_fault_has_its_place_in_the_source() -> None:
    mutants = runpy.run_path(str(TOP / "tools/mutants.py"))["MUTANTS"]
    gone = [
        (mutant.name, name, old)
        for mutant in mutants
        for name, old, _ in mutant.changes
        if old not in (TOP / "src/penstock" / name).read_text()
    ]
    assert not gone
    assert len({mutant.name for mutant in mutants}) == len(mutants)

"""The file system that holds a folder, as Linux lists its mounts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
UNJOURNALED = "ext4 without a journal"


class Mount(NamedTuple):
    kind: str
    """The type of the file system; "unknown" where the system does not list its mounts."""
    options: frozenset[str]


def find_mount(folder: Path, proc: Path = PROC) -> Mount:
    try:
        mounts = [line.split()[:4] for line in (proc / "mounts").read_text().splitlines()]
    except OSError:  # not Linux
        return Mount("unknown", frozenset())
    places = {point.encode().decode("unicode_escape"): (device, kind, options) for device, point, kind, options in mounts}
    folder = folder.resolve()
    around = (folder, *folder.parents)
    device, kind, options = next((places[str(place)] for place in around if str(place) in places), ("", "unknown", ""))
    device = Path(device).resolve().name
    if (proc / "fs" / "ext4" / device).exists() and not list((proc / "fs" / "jbd2").glob(f"{device}-*")):
        kind = UNJOURNALED
    return Mount(kind, frozenset(options.split(",")))

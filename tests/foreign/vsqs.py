# ruff: noqa: PTH208, SIM105
"""A VSQS program written only from the format's documentation: it shares no code with Penstock.

    python vsqs.py FOLDER publish LOG PREFIX COUNT
    python vsqs.py FOLDER consume LOG LAPSE EVERY

The consumer claims messages for ten minutes, and each EVERY-th for LAPSE milliseconds, which it lets lapse. It logs like
`penstock.testing.worker`, and writes ``holding BODY`` shortly before a claim lapses: no other process may have received BODY by
then (or ``dropped BODY``, if it woke too late to know).
"""

import os
import sys
import time
from pathlib import Path


def now() -> int:
    return time.time_ns() // 1_000_000


def publish(folder: Path, body: bytes, clock=now) -> str:
    while True:
        id = str(clock())
        try:
            handle = os.open(folder / f"{id}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            continue
        if any(name.split(".")[0] == id and name != f"{id}.new" for name in os.listdir(folder)):
            os.close(handle)
            (folder / f"{id}.new").unlink()
            continue
        os.write(handle, body)
        os.close(handle)
        (folder / f"{id}.new").rename(folder / id)
        return id


def requeue(folder: Path, clock=now) -> None:
    """Drop the extension of every claim that has expired, until there is none."""
    while expired := [name for name in os.listdir(folder) if name.partition(".")[2].isdigit() and _until(name) < clock()]:
        for name in expired:
            try:
                (folder / name).rename(folder / name.split(".")[0])
            except FileNotFoundError:
                pass


def consume(folder: Path, visibility: int, clock=now) -> tuple[str, bytes] | None:
    """Take the oldest message, as its id and body; hide it for this many milliseconds."""
    while True:
        requeue(folder, clock)
        ready = [name for name in os.listdir(folder) if "." not in name]
        if not ready:
            return None
        id = min(ready, key=int)
        claimed = folder / f"{id}.{clock() + visibility}"
        try:
            (folder / id).rename(claimed)
            return id, claimed.read_bytes()
        except FileNotFoundError:
            continue


def delete(folder: Path, id: str) -> bool:
    for name in os.listdir(folder):
        # A publisher may be about to discover that the number is taken: its file is not the message.
        if name.split(".")[0] == id and name != f"{id}.new":
            try:
                (folder / name).unlink()
                return True
            except FileNotFoundError:
                pass
    return False


def _until(name: str) -> int:
    return int(name.split(".")[1])


def main(folder: Path, role: str, log: str, *rest: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(line: str) -> None:
        os.write(handle, f"{line}\n".encode())

    write("ready")
    if role == "publish":
        for number in range(int(rest[1])):
            write(f"try {rest[0]}-{number}")
            publish(folder, f"{rest[0]}-{number}".encode())
            write(f"sent {rest[0]}-{number}")
        return
    lapse, every = map(int, rest)
    count = 1
    while True:
        since = time.monotonic()
        lapses = count % every == 0
        message = consume(folder, lapse if lapses else 600_000)
        if message is None:
            time.sleep(0.002)
            continue
        count += 1
        id, body = message[0], message[1].decode()
        write(f"got {int(since * 1e9)} {body} 1")
        if lapses:
            time.sleep(lapse / 2000)
            write(f"{'holding' if time.monotonic() - since < lapse / 1600 else 'dropped'} {body}")
            continue
        write(f"deleting {body}")
        if delete(folder, id):
            write(f"deleted {time.monotonic_ns()} {body}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

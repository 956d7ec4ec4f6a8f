# ruff: noqa: PTH208, SIM105
"""A minimal MQ-Core, written only from the format's documentation, without Penstock: a publisher, a consumer and the mover.

    python mq_mover.py SPOOL publish LOG QUEUE PREFIX COUNT
    python mq_mover.py SPOOL consume LOG QUEUE
    python mq_mover.py SPOOL move LOG TIMER

MQ-Core says that a timer applies to files in delay/, but not where it is kept. This mover keeps it in memory, TIMER
milliseconds from when it first saw the file. The log has the format of `penstock.testing.worker`.
"""

import fcntl
import os
import sys
import time
import uuid
from pathlib import Path


def publish(spool: Path, queue: str, body: bytes) -> str:
    id = str(uuid.uuid1())
    new = spool / "new" / f"{queue}:{id}"
    handle = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        os.write(handle, body)
        os.fsync(handle)
    except OSError:
        new.unlink()
        raise
    finally:
        os.close(handle)
    return id


def fetch(spool: Path, queue: str) -> tuple[str, bytes] | None:
    """Take the first message and move it to delay/."""
    for id in sorted(os.listdir(spool / "queues" / queue)):
        delayed = spool / "delay" / f"{queue}:{id}"
        try:
            (spool / "queues" / queue / id).rename(delayed)
            return id, delayed.read_bytes()
        except FileNotFoundError:
            continue
    return None


def remove(spool: Path, queue: str, id: str) -> bool:
    for place in (spool / "new" / f"{queue}:{id}", spool / "queues" / queue / id, spool / "delay" / f"{queue}:{id}"):
        try:
            place.rename(spool / "remove" / f"{queue}:{id}")
            return True
        except FileNotFoundError:
            continue
    return False


def is_written(path: Path) -> bool:
    """Whether no process has it open for writing: only then is a read lease granted."""
    with path.open() as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return False
    return True


class Mover:
    def __init__(self, spool: Path, timer: float) -> None:
        self.spool, self.timer = spool, timer
        self.arrived: dict[str, float] = {}

    def move(self, now: float) -> None:
        """One round: deliver files that are complete, redeliver those that have waited long enough, destroy the removed."""
        for name in os.listdir(self.spool / "new"):
            try:
                if is_written(self.spool / "new" / name):
                    self._deliver("new", name)
            except FileNotFoundError:
                pass
        delayed = set(os.listdir(self.spool / "delay"))
        self.arrived = {name: self.arrived.get(name, now) for name in delayed}
        for name, since in self.arrived.items():
            if now - since >= self.timer:
                try:
                    self._deliver("delay", name)
                except FileNotFoundError:
                    pass
        for name in os.listdir(self.spool / "remove"):
            (self.spool / "remove" / name).unlink(missing_ok=True)

    def _deliver(self, part: str, name: str) -> None:
        queue, _, id = name.partition(":")
        (self.spool / part / name).rename(self.spool / "queues" / queue / id)


def main(spool: Path, role: str, log: str, *rest: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(line: str) -> None:
        os.write(handle, f"{line}\n".encode())

    write("ready")
    if role == "move":
        mover = Mover(spool, int(rest[0]) / 1000)
        while True:
            mover.move(time.monotonic())
            time.sleep(0.001)
    if role == "publish":
        queue, prefix, count = rest
        for number in range(int(count)):
            write(f"try {prefix}-{number}")
            publish(spool, queue, f"{prefix}-{number}".encode())
            write(f"sent {prefix}-{number}")
        return
    while True:
        since = time.monotonic_ns()
        message = fetch(spool, rest[0])
        if message is None:
            time.sleep(0.002)
            continue
        id, body = message[0], message[1].decode()
        write(f"got {since} {body} 1")
        write(f"deleting {body}")
        if remove(spool, rest[0], id):
            write(f"deleted {time.monotonic_ns()} {body}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

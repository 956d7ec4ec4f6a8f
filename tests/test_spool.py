"""The MQ-Core spool store keeps the contract, and its daemons do their work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.cli import main
from penstock.testing import FilesStoreContract, SharedStoreContract, UngroupedStoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted


class TestSpool(UngroupedStoreContract, SharedStoreContract, FilesStoreContract, Interrupted, Handled, Forked):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"spool:///{tmp_path}/queues"

    @pytest.fixture
    def make_url_in(self) -> Callable[[Path], str]:
        return lambda folder: f"spool:///{folder}/queues"


ID = "0191b9d5-7d3c-7000-8000-0000000000"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    with penstock.open(f"spool:///{tmp_path}/spool") as broker:
        broker.create("orders")
    return tmp_path / "spool"


@contextmanager
def daemon(command: str, spool: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = [
        sys.executable,
        "-c",
        "import sys; from penstock.cli import main; sys.exit(main())",
        command,
        f"spool:///{spool}",
    ]
    with subprocess.Popen(program) as process:
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(60) in (0, -signal.SIGTERM)  # the latter if it was still starting


def wait_until(condition: Callable[[], object]) -> None:
    """Poll: another process has no fake clock."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_mover_delivers_what_is_there_at_start_and_what_comes_later(spool: Path) -> None:
    (spool / "new" / f"orders:{ID}01").write_bytes(b"before")
    with daemon("mover", spool):
        wait_until(lambda: names(spool / "queues/orders") == [f"{ID}01"])
        (spool / "new" / f"orders:{ID}02").write_bytes(b"after")
        wait_until(lambda: names(spool / "queues/orders") == [f"{ID}01", f"{ID}02"])
        assert names(spool / "new") == []
        assert (spool / "queues/orders" / f"{ID}02").read_bytes() == b"after"


def test_a_mover_leaves_what_is_still_being_written(spool: Path) -> None:
    with daemon("mover", spool), (spool / "new" / f"orders:{ID}01").open("wb") as half:
        half.write(b"half")
        half.flush()
        (spool / "new" / f"orders:{ID}02").write_bytes(b"whole")
        wait_until(lambda: names(spool / "queues/orders"))
        assert names(spool / "queues/orders") == [f"{ID}02"]
        half.close()
        wait_until(lambda: names(spool / "queues/orders") == [f"{ID}01", f"{ID}02"])


def test_a_mover_gives_back_what_has_waited_long_enough(spool: Path) -> None:
    """The mtime is the timer. A file that another program moved there has none, and waits for the visibility of its queue."""
    with penstock.open(f"spool:///{spool}") as broker:
        broker["orders"].update(visibility=0.3)
    for number, delay in enumerate([-1, 0.5, 3600], start=1):
        path = spool / "delay" / f"orders:{ID}0{number}"
        path.write_bytes(b"x")
        os.utime(path, (time.time() + delay,) * 2)
    with daemon("mover", spool):
        wait_until(lambda: names(spool / "queues/orders") == [f"{ID}01", f"{ID}02"])
        assert names(spool / "delay") == [f"orders:{ID}03"]
        os.utime(spool / "delay" / f"orders:{ID}03", (1, 1))  # a changed timer takes effect
        wait_until(lambda: names(spool / "delay") == [])


def test_a_reaper_unlinks_what_was_removed_before_and_after_its_start(spool: Path) -> None:
    (spool / "remove" / f"orders:{ID}01").write_bytes(b"x")
    with daemon("reaper", spool):
        wait_until(lambda: names(spool / "remove") == [])
        (spool / "queues/orders" / f"{ID}02").write_bytes(b"x")
        (spool / "queues/orders" / f"{ID}02").rename(spool / "remove" / f"orders:{ID}02")
        wait_until(lambda: names(spool / "remove") == [])


def test_several_movers_and_reapers_share_a_spool(spool: Path) -> None:
    with daemon("mover", spool), daemon("mover", spool), daemon("reaper", spool), daemon("reaper", spool):
        for number in range(10, 99):
            (spool / "new" / f"orders:{ID}{number}").write_bytes(b"%d" % number)
        wait_until(lambda: len(names(spool / "queues/orders")) == 89)
        with penstock.open(f"spool:///{spool}") as broker:
            queue = broker["orders"]
            assert sorted(int(message.body) for message in queue.receive(99)) == list(range(10, 99))
            assert all(queue.delete_many(queue.peek(99)))
        wait_until(lambda: names(spool / "remove") == [])


def test_a_daemon_refuses_what_is_no_spool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mover", f"vsqs:///{tmp_path}/queues"]) == 2
    assert "works on a spool" in capsys.readouterr().err


def test_without_peers_the_order_is_strict(tmp_path: Path) -> None:
    with penstock.open(f"spool:///{tmp_path}/spool") as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(50)])
        assert [int(queue.receive()[0].body) for _ in range(50)] == list(range(50))


def test_with_peers_one_of_the_oldest_is_taken_by_chance_and_all_arrive(tmp_path: Path) -> None:
    with penstock.open(f"spool:///{tmp_path}/spool?peers=3") as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(60)])
        left, orderly = list(range(60)), True
        while left:
            number = int(queue.receive()[0].body)
            assert number in left[:4]
            orderly &= number == left[0]
            left.remove(number)
        assert not orderly
        assert queue.receive() == []

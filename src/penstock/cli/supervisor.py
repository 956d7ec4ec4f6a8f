"""Workers in processes of their own: one that dies is replaced, and if wanted, all start anew when their code changes."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from penstock.cli.output import complain
from penstock.errors import BadInput
from penstock.workers.consumer import Tally

RESTART_PAUSE = 1.0
LOOK_EVERY = 0.5
RELOAD_PATIENCE = 10.0
"""Seconds for which a worker may finish its tasks when its code has changed."""


class SourceFiles:
    """The files of a module: those of its package, or those beside it if it is in none."""

    def __init__(self, module: str) -> None:
        top = module.partition(".")[0]
        spec = find_spec(top)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            raise BadInput(f"the files of module {module!r:.200} cannot be watched: it has none")
        self._folder = Path(spec.origin).resolve().parent
        self._pattern = "**/*.py" if spec.submodule_search_locations else "*.py"
        self._seen = self._look()

    def changed(self) -> list[str]:
        """The names of those that have changed, come or gone since it was last asked."""
        before, self._seen = self._seen, self._look()
        paths = {path for path, _ in before.items() ^ self._seen.items()}
        return sorted(str(path.relative_to(self._folder)) for path in paths)

    def _look(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for path in self._folder.glob(self._pattern):
            try:
                status = path.stat()
            except OSError:  # it has just gone
                continue
            found[path] = status.st_mtime_ns, status.st_size
        return found


class Supervisor:
    def __init__(
        self, workers: int, target: Callable[..., None], task: tuple[Any, ...], files: SourceFiles | None = None
    ) -> None:
        """``target`` is called in each process, with the end of a pipe for its tally and with ``task``."""
        self._workers = workers
        self._target = target
        self._task = task
        self._files = files
        self._stopping = False
        self._context = multiprocessing.get_context("spawn")  # a fork would carry the store's connections along
        self._running: dict[SpawnProcess, Connection] = {}
        self._tally = Tally()

    def run(self) -> Tally:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._start_all()
            while self._running or (self._files is not None and not self._stopping):
                if self._running:
                    wait([worker.sentinel for worker in self._running], timeout=LOOK_EVERY)
                else:  # none runs before its code is mended
                    time.sleep(LOOK_EVERY)
                for worker in [worker for worker in self._running if not worker.is_alive()]:
                    self._ended(worker)
                if self._files is not None and not self._stopping and (names := self._files.changed()):
                    complain(f"{', '.join(names[:5])}{', …' if names[5:] else ''} changed; starting the workers again")
                    self._end_all()
                    self._start_all()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._tally

    def _start_all(self) -> None:
        for _ in range(self._workers):
            if not self._stopping:
                self._start()

    def _start(self) -> None:
        end, far = self._context.Pipe(duplex=False)
        worker = self._context.Process(target=self._target, args=(far, *self._task))
        worker.start()
        far.close()
        self._running[worker] = end
        if self._stopping:  # the signal came before this one was known
            worker.terminate()

    def _end_all(self) -> None:
        for worker in self._running:
            worker.terminate()
        give_up_at = time.monotonic() + RELOAD_PATIENCE
        for worker in list(self._running):
            worker.join(max(0.0, give_up_at - time.monotonic()))
            if worker.is_alive():
                complain("a worker has not finished its tasks in time, and is killed: they run again when their leases lapse")
                worker.kill()
            self._collect(worker)

    def _ended(self, worker: SpawnProcess) -> None:
        self._collect(worker)
        if not worker.exitcode or self._stopping:
            return
        if self._files is not None:
            complain(f"a worker has ended with {worker.exitcode}; starting another when the code changes")
            return
        complain(f"a worker has ended with {worker.exitcode}; starting another")
        time.sleep(RESTART_PAUSE)
        if not self._stopping:
            self._start()

    def _collect(self, worker: SpawnProcess) -> None:
        worker.join()
        end = self._running.pop(worker)
        if end.poll():
            try:
                told: Tally = end.recv()
                for name, count in asdict(told).items():
                    setattr(self._tally, name, getattr(self._tally, name) + count)
            except EOFError:  # it died without a word
                pass
        end.close()

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for worker in list(self._running):
            worker.terminate()

"""What the pipelines of the command line share: the store, Spark, progress, and how they answer."""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from penstock.cli.output import complain, emit
from penstock.cli.parser import Parser
from penstock.errors import BadURL, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.progress import Watch


class Pipelines(Protocol):
    """Adds a pipeline to the group."""

    def __call__(self, name: str, run: Callable[[Namespace, Frame], int], help: str) -> Parser: ...


class Frame:
    """What a pipeline gets: the store, Spark (started on first use), and a way to watch a query."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.url = absolute(args.store)
        self._spark: SparkSession | None = None
        self._watch: Watch | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            from penstock.spark.session import session

            with _hushed(not self.args.debug):
                self._spark = session(
                    self.args.master, remote=self.args.remote, name=f"penstock {self.args.pipeline}", **self._config()
                )
            if self.args.remote is None:
                self._spark.sparkContext.setLogLevel("WARN" if self.args.debug else "OFF")
                if not self.args.master.startswith("local"):
                    self._await_executors(self._spark)
        return self._spark

    def _config(self) -> dict[str, str]:
        config = {name.replace(".", "__"): value for name, value in self.args.conf}
        return config if self.args.packages is None else config | {"spark__jars__packages": self.args.packages}

    def _await_executors(self, spark: SparkSession) -> None:
        from penstock.spark.reaching import await_executors

        if not await_executors(spark):
            complain(
                f"{self.args.master} has given no executor yet: it has no worker, or none with free cores and memory; "
                "this program waits for one"
            )

    @property
    def watch(self) -> Watch:
        if self._watch is None:
            from penstock.spark.pipelines.progress import Watch

            self._watch = Watch(self.args.pipeline, self.args.progress, listen=self.args.listen)
        return self._watch

    def answer(self, text: str, figures: dict[str, Any]) -> None:
        """The result: a line for people, or with --json one document."""
        if self.args.json:
            emit({"pipeline": self.args.pipeline, **figures})
        else:
            print(text)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._spark is not None:
            self._spark.stop()


def absolute(url: str) -> str:
    """The store's URL with an absolute path, because Spark's processes have other working directories."""
    scheme, colon, rest = url.partition(":///")
    if not colon or scheme not in ("sqlite", "vsqs", "spool") or rest.startswith("/"):
        return url
    path, mark, query = rest.partition("?")
    if not path:
        raise BadURL(f"URL {url!r:.200} has no path")
    return f"{scheme}:///{quote(str(Path(unquote(path)).absolute()))}{mark}{query}"


@contextmanager
def _hushed(hush: bool) -> Iterator[None]:
    """Keep Java and Spark from writing to stderr, so that people see only our own lines.

    If they do not start, what they wrote is shown."""
    if not hush or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except PenstockError:
            raise
        except Exception:
            said.seek(0)
            for line in said.read().splitlines()[-5:]:
                os.write(kept, f"{line}\n".encode())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)

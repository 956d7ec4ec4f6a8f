"""When a declared pipeline that has failed is started again, and which errors are final."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.spark.options import FileNotShared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNITS = {"second": 1, "minute": 60, "hour": 3600}


@dataclass(frozen=True, slots=True)
class Restarts:
    """``times``: in a row, without a batch in between. The wait is doubled each time."""

    times: int = 10
    first: float = 1
    longest: float = 300

    def wait(self, failures: int) -> float | None:
        """The seconds to wait after so many failures in a row; None: no more."""
        return None if failures > self.times else float(min(self.longest, self.first * 2 ** (failures - 1)))


NEVER = Restarts(times=0)


def is_final(error: BaseException) -> bool:
    """Whether a restart would meet the same error: the file, the data or the checkpoint is wrong, not the weather."""
    return isinstance(error, FileNotShared) or not isinstance(error, StoreError | OSError)


def is_alive(spark: SparkSession) -> bool:
    """Whether Spark itself can run queries again."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return True
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # its process is gone
        return False


def read_seconds(text: str) -> float | None:
    """Of a text such as `10 seconds`; None if it is none."""
    found = re.fullmatch(r"(\d{1,9}) (second|minute|hour)s?", text)
    return None if found is None else float(int(found[1]) * UNITS[found[2]])

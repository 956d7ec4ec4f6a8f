"""A driver that the tests kill: both queries of faulty.py side by side, until killed or (``once``) all is read.

python job.py FOLDER URL FAULTS [once]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from faulty import Queries

from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA


def main(folder: str, url: str, faults: str, *how: str) -> None:
    shipped = os.environ.get("PENSTOCK_ZIP")
    spark = session(
        os.environ.get("PENSTOCK_MASTER", "local[2]"),
        spark__sql__shuffle__partitions="2",
        spark__local__dir=f"{folder}/local",
        spark__sql__streaming__pollingDelay="10ms",
        spark__driver__extraJavaOptions=QUICK_JAVA,
        spark__executor__memory="512m",
        **({"spark__submit__pyFiles": shipped} if shipped else {}),
    )
    spark.sparkContext.setLogLevel("OFF")
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True, check=True).stdout
    Path(faults, "pids").write_text(f"{os.getpid()} {children}")
    queries = Queries(spark, Path(folder), url, Path(faults), once=bool(how))
    started = [queries.start_lake(), queries.start_onward()]
    for query in started:
        query.awaitTermination()


main(*sys.argv[1:])

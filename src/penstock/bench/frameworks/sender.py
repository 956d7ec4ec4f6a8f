"""A process that sends the tasks of one target: it reads how many from its input, lines of JSON, and answers each with one.

python -m penstock.bench.frameworks.sender TARGET ADDRESS
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module

from penstock.bench.frameworks.targets import TARGETS


def main(name: str, address: str) -> None:
    target = TARGETS[name]
    os.environ.update(target.environment(address))
    send = import_module(target.app).send
    for line in sys.stdin:
        try:
            count = json.loads(line)["tasks"]
            began, used = time.perf_counter(), time.process_time()
            for _ in range(count):
                send()
            answer: dict[str, float | str] = {"took": time.perf_counter() - began, "processor": time.process_time() - used}
        except Exception as error:  # whatever a framework raises; the benchmark says it and goes on with the others
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Metrics in Prometheus' text format. The number of queues that get lines of their own is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

MOST_QUEUES = 200
OTHERS = ":others"
"""No queue can have this name."""
LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> dict[str, int]:
        """How many values there were up to each bound, and above the bound before."""
        return {str(bound): count for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True)}

    def percentiles(self) -> dict[str, float | int | None]:
        """The bounds below which so many of a hundred values are; the highest bound stands for all above."""
        total = sum(self._counts)
        found: dict[str, float | int | None] = {}
        for part in (50, 90, 99):
            seen = 0
            for bound, count in zip((*self._bounds, self._bounds[-1]), self._counts, strict=True):
                seen += count
                if seen * 100 >= total * part:
                    found[f"p{part}"] = bound if total else None
                    break
        return {**found, "count": total}

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}le="{bound}"}} {total}'
        inner = f"{{{labels.rstrip(',')}}}" if labels else ""
        yield f"{name}_sum{inner} {self._sum}"
        yield f"{name}_count{inner} {total}"


class Metrics:
    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}
        self.latencies: dict[str, Histogram] = {}
        self.messages: dict[tuple[str, str], int] = {}
        self.commit_sizes = Histogram(SIZES)
        self.commit_seconds = Histogram(LATENCIES)
        self._queues: set[str] = set()

    def count_request(self, dialect: str, method: str, status: int, seconds: float) -> None:
        key = (dialect, method, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        latencies = self.latencies.get(dialect)
        if latencies is None:
            latencies = self.latencies[dialect] = Histogram(LATENCIES)
        latencies.add(seconds)

    def count_messages(self, deed: str, queue: str, number: int) -> None:
        if queue not in self._queues:
            if len(self._queues) < MOST_QUEUES:
                self._queues.add(queue)
            else:
                queue = OTHERS
        key = (deed, queue)
        self.messages[key] = self.messages.get(key, 0) + number

    def count_commit(self, size: int, seconds: float) -> None:
        self.commit_sizes.add(size)
        self.commit_seconds.add(seconds)

    def render(self, gauges: Mapping[str, float], queues: Mapping[str, Mapping[str, float]]) -> str:
        """``gauges`` are the server's; ``queues`` has, for each metric, its value by queue."""
        lines: list[str] = []
        for name, value in gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE penstock_{name} {kind}", f"penstock_{name} {value}"]
        lines.append(self.render_queues(queues).rstrip("\n"))
        lines.append("# TYPE penstock_requests_total counter")
        for (dialect, method, status), count in sorted(self.requests.items()):
            lines.append(f'penstock_requests_total{{dialect="{dialect}",method="{method}",status="{status}"}} {count}')
        lines += self._histograms()
        return "\n".join(lines) + "\n"

    def render_queues(
        self, queues: Mapping[str, Mapping[str, float]], wanted: Callable[[str], bool] = lambda _queue: True
    ) -> str:
        """Only what is about queues, and of what was counted only those that are wanted."""
        lines: list[str] = []
        for name, values in queues.items():
            lines.append(f"# TYPE penstock_queue_{name} gauge")
            lines += [f'penstock_queue_{name}{{queue="{escape(queue)}"}} {value}' for queue, value in values.items()]
        lines.append("# TYPE penstock_messages_total counter")
        for (deed, queue), count in sorted(self.messages.items()):
            if wanted(queue):
                lines.append(f'penstock_messages_total{{deed="{deed}",queue="{escape(queue)}"}} {count}')
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterable[str]:
        yield "# TYPE penstock_request_seconds histogram"
        for dialect, histogram in sorted(self.latencies.items()):
            yield from histogram.lines("penstock_request_seconds", f'dialect="{dialect}",')
        yield "# TYPE penstock_commit_operations histogram"
        yield from self.commit_sizes.lines("penstock_commit_operations")
        yield "# TYPE penstock_commit_seconds histogram"
        yield from self.commit_seconds.lines("penstock_commit_seconds")


def escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

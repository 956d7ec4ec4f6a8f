"""A complete shop: orders in a queue, a price list in Parquet, joined and windowed, totals to a queue and to the lake, bad
orders to a dead letter queue, redriven after a fix, and a report. python examples/shop/run.py [FOLDER]

It prints the equivalent commands. A fake clock makes up two hours of trade.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock
from penstock.spark import pipelines
from penstock.spark.pipelines.page import render
from penstock.spark.pipelines.redrive import letters, summarize

HERE = Path(__file__).parent
PRICES = {"bolt": 0.25, "nut": 0.10, "washer": 0.05, "hinge": 3.50}
NEW = {"gear": 12.00}
PRODUCERS = {"web": 60, "app": 30, "phone": 10}


class Day:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC) - timedelta(hours=2)

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1_000_000)


def main(folder: Path, spark: SparkSession | None = None) -> dict[str, int]:
    """Run everything; returns where the orders ended up."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder.absolute()}/shop.db"
    shutil.copy(HERE / "shop.toml", folder)
    chance, day = random.Random(7), Day()  # noqa: S311
    with penstock.open(url, clock=day) as broker:
        for name in ("orders-dead", "totals"):
            broker.create(name, history=7 * 86400)
        for name in ("orders", "parcels"):
            broker.create(name, history=7 * 86400, visibility=120, redrive=("orders-dead", 3))
        write_prices(folder, PRICES)
        say("For an hour orders come in and parcels are packed; at last also orders for gears, which have no price yet")
        ordered = trade(broker, day, chance, minutes=60, gears_after=timedelta(minutes=50))

        spark = spark or start()
        tell("pipeline run shop.toml")
        ran = pipelines.run(spark, folder / "shop.toml", store=url)
        say(f"{ran.taken:,} orders were taken; totals of {broker['totals'].stats().messages} windows are in the queue")

        tell("pipeline redrive orders-dead --summary --field item")
        for by, counts in summarize(letters(spark, url, "orders-dead"), field="item").items():
            say(f"{by:>8}: " + ", ".join(f"{value} {count:,}" for value, count in counts))

        say("Gears get a price, and the orders for them go back")
        write_prices(folder, PRICES | NEW)
        where = "source = 'orders' AND json:item::string = 'gear' AND json:quantity::int > 0"
        tell(f'pipeline redrive orders-dead --where "{where}"')
        done = pipelines.redrive(spark, url, "orders-dead", where=where)
        say(f"{done.moved} of {done.chosen}")

        say("Meanwhile more orders have come")
        ordered += trade(broker, day, chance, minutes=40, gears_after=timedelta(0))
        tell("pipeline run shop.toml")
        ran = pipelines.run(spark, folder / "shop.toml", store=url)
        say(f"{ran.taken:,} orders were taken, {ran.late} came too late for their window")

        tell("pipeline report parcels orders-dead --html report.html")
        figures = pipelines.report(spark, ["parcels", "orders-dead"], url=url)
        (folder / "report.html").write_text(render(figures, "The shop: parcels and dead letters"), encoding="utf-8")
        say(f"{folder / 'report.html'}")

        sold = spark.read.parquet(str(folder / "lake" / "sales")).count()
        dead = sum(m.attributes.get("queue") == "orders" for m in broker["orders-dead"].peek(10_000))
        say(f"{ordered:,} orders: {sold:,} are in the lake and {dead} are dead letters")
        return {"ordered": ordered, "sold": sold, "dead": dead, "left": broker["orders"].stats().messages, "late": ran.late}


def start() -> SparkSession:
    from penstock.spark.session import session

    spark = session(name="shop", spark__sql__shuffle__partitions="2", spark__ui__showConsoleProgress="false")
    spark.sparkContext.setLogLevel("OFF")
    return spark


def write_prices(folder: Path, prices: dict[str, float]) -> None:
    table = pa.table({"item": list(prices), "price": list(prices.values())})
    (folder / "prices").mkdir(exist_ok=True)
    pq.write_table(table, folder / "prices" / "prices.parquet")


def trade(broker: penstock.Broker, day: Day, chance: random.Random, *, minutes: int, gears_after: timedelta) -> int:
    """Orders, minute by minute, and packers that take parcels a while after they were sent, some of them twice or in vain."""
    ordered, gears_from = 0, day.now + gears_after
    for minute in range(minutes):
        busy = 10 + 6 * (minute % 40 in range(15, 30))
        drafts = []
        for _ in range(chance.randint(busy - 4, busy + 4)):
            ordered += 1
            drafts.append(order(day, chance, ordered, gears=day.now >= gears_from))
        broker["orders"].send_many(drafts)
        broker["parcels"].send_many(drafts[::3])
        pack(broker, day, chance, late=minute % 40 in range(18, 30))
    return ordered


def order(day: Day, chance: random.Random, number: int, *, gears: bool) -> penstock.Draft:
    producer = chance.choices(list(PRODUCERS), list(PRODUCERS.values()))[0]
    body: dict[str, object] = {
        "order_id": number,
        "item": chance.choice([*PRICES, *(NEW if gears else {})]),
        "quantity": chance.choice([1, 1, 2, 3, 10, 25]) if chance.random() > 0.01 else 0,
        "at": f"{day.now + timedelta(seconds=chance.random() * 59):%Y-%m-%d %H:%M:%S}",
    }
    text = json.dumps(body) if chance.random() > 0.005 else f"order by fax no. {number}"
    return penstock.Draft(text.encode(), "application/json", {"producer": producer})


def pack(broker: penstock.Broker, day: Day, chance: random.Random, *, late: bool) -> None:
    """One minute of packing."""
    end = day.now + timedelta(minutes=1)
    while day.now < end:
        day.now += timedelta(seconds=chance.expovariate(1 / (11 if late else 6)))
        for parcel in broker["parcels"].receive():
            day.now += timedelta(seconds=chance.lognormvariate(0.7, 0.6))
            if b"hinge" in parcel.body and chance.random() < 0.15:
                parcel.release(30)  # hinges are out of stock
            else:
                parcel.delete()


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def tell(command: str) -> None:
    say(f"\n$ penstock --store sqlite:///shop.db {command}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="shop-")))

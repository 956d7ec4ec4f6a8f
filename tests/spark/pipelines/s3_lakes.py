"""Archives to tables on S3, in a process whose environment says where that is; Spark itself cannot reach it.

python s3_lakes.py FOLDER BUCKET
"""

from __future__ import annotations

import sys

import penstock
from penstock.errors import BadInput
from penstock.spark.pipelines import archive, replay, report
from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA


def main(folder: str, bucket: str) -> None:
    url = f"sqlite:///{folder}/queue.db"
    spark = session("local[2]", spark__local__dir=f"{folder}/local", spark__driver__extraJavaOptions=QUICK_JAVA)
    spark.sparkContext.setLogLevel("OFF")
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        for kind, table in (("delta", f"delta:s3a://{bucket}/lake"), ("iceberg", "iceberg:prod/shop.jobs")):
            for run in range(2):
                queue.send_many(b'{"n": %d}' % n for n in range(run * 10, run * 10 + 10))
                assert archive(spark, url, "jobs", table, once=True, checkpoint=f"{folder}/{kind}", columns="n int").rows == 10
            assert report(spark, [table])["all"]["messages"] == 20
            assert replay(spark, table, url, where="data.n >= 15", checkpoint=f"{folder}/{kind}-replay").rows == 5
            assert archive(spark, url, "jobs", table, once=True, checkpoint=f"{folder}/{kind}").rows == 5
        queue.send(b"stays")
        for place, checkpoint in ((f"delta:s3://{bucket}/lake", None), (f"s3://{bucket}/plain", f"{folder}/plain")):
            try:
                archive(spark, url, "jobs", place, once=True, checkpoint=checkpoint)
            except BadInput as error:
                print(error)
        assert queue.stats().visible == 1
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

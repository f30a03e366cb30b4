"""A client of Spark Connect, for the tests: everything the connector offers, without a ``sparkContext``."""

import sys

from pyspark.sql import SparkSession

from holtmq.spark import register, report_to, session


def main(url: str, checkpoint: str) -> None:
    SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark = session(master="sc://localhost:15002")
    assert "connect" in type(spark).__module__, "this is no Connect session"
    register(spark, url, database="connected", pattern="orders")
    report_to(spark, url)
    print("rows", spark.read.format("holtmq").option("url", url).option("queue", "orders").load().count())
    print("table", spark.sql("SELECT count(*) FROM connected.orders").collect()[0][0])
    stream = spark.readStream.format("holtmq").option("url", url).option("queue", "orders")
    writer = stream.option("startingOffsets", "earliest").load().select("payload").writeStream
    writer = writer.format("holtmq").option("url", url).option("queue", "copies").queryName("copy")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    print("ended", query.awaitTermination(300))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""JSON, Avro and Protobuf bodies as columns, by functions that Spark has itself.

    python examples/bodies_on_spark.py [NAMESERVER]

JSON needs nothing more. Avro and Protobuf are modules of Spark that its package on PyPI leaves out: they are
fetched from Maven Central once, by `spark.jars.packages` below or `spark-submit --packages`; without a
network only JSON is shown.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from ledgermq.client import Message
from ledgermq.client.sync import Admin, Producer
from ledgermq.spark_jobs import register

#: Versions must be those of Spark itself.
MODULES = "org.apache.spark:spark-avro_2.13:4.3.0,org.apache.spark:spark-protobuf_2.13:4.3.0"
AVRO_SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "amount", "type": "double"}]}"""


def json_bodies(orders: DataFrame) -> DataFrame:
    """Return the fields of bodies like {"id": 1, "amount": 9.5}; fields of other bodies are null."""
    text = col("body").cast("string")
    return orders.select("offset", from_json(text, "id BIGINT, amount DOUBLE").alias("order")).select(
        "offset", "order.*"
    )


def avro_bodies(orders: DataFrame) -> DataFrame:
    """Return the fields of bodies in plain Avro (one datum, no container file)."""
    from pyspark.sql.avro.functions import from_avro

    return orders.select("offset", from_avro("body", AVRO_SCHEMA).alias("order")).select("offset", "order.*")


def protobuf_bodies(orders: DataFrame, descriptors: str) -> DataFrame:
    """Return the fields of bodies of the message `Order`.

    `descriptors`: file made by `protoc --include_imports --descriptor_set_out=FILE order.proto`.
    """
    from pyspark.sql.protobuf.functions import from_protobuf

    order = from_protobuf("body", "Order", descFilePath=descriptors)
    return orders.select("offset", order.alias("order")).select("offset", "order.*")


def main(nameserver: str) -> None:
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("json-orders", queues=1, if_not_exists=True)
        producer.send_batch(
            [Message("json-orders", b'{"id": %d, "amount": %.1f}' % (n, n * 1.5)) for n in range(3)]
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this interpreter
    # For Avro and Protobuf: .config("spark.jars.packages", MODULES)
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    register(spark)
    options = {"nameservers": nameserver, "subscribe": "json-orders"}
    orders = json_bodies(spark.read.format("ledgermq").options(**options).load())
    orders.show()
    assert {row.amount for row in orders.collect()} == {0.0, 1.5, 3.0}
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
